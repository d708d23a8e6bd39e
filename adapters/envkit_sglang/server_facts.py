"""What a server says about itself: its limits, its model, its health."""

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import EngineFault, FaultKind
from envkit.rollout.engine import LogprobKind

_PROBE_TEMPERATURE: Final = 1000.0
_PROBE_TOKENS: Final = 20
_PROBE_SPREAD: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The facts of `/server_info` that a client needs. None means that the server did not say."""

    version: str | None = None
    model: str | None = None
    """Folder or name of the served model."""
    served_model_name: str | None = None
    """What the server calls the model. It stays when new weights are loaded from a folder."""
    context_length: int | None = None
    """Bound on prompt plus new tokens, images expanded."""
    max_prompt_length: int | None = None
    """Prompts must be shorter than this; a little less than the context length."""
    weight_version: str | None = None
    is_deterministic: bool = False
    """True when the server honours `Sampling.seed`; others ignore it."""
    returns_routed_experts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """Whether a server answers."""

    url: str
    healthy: bool
    detail: str
    """What is wrong and what to check, or the served version and model."""
    seconds: float
    """How long the answer took; a healthy idle server samples one token for it."""
    info: ServerInfo | None = None
    """None when the server could not be asked."""


def _integer(value: Any) -> int | None:  # noqa: ANN401  # whatever JSON holds
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:  # noqa: ANN401  # whatever JSON holds
    return value if isinstance(value, str) else None


def parse_server_info(body: bytes) -> ServerInfo:
    """Return the facts of a `/server_info` body; absent and odd values become None.

    Older servers keep the scheduler's numbers under "scheduler_info", newer ones beside the rest.

    Raises:
        EngineFault: The body is no JSON object.
    """
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EngineFault(f"/server_info must answer JSON, got {body[:80]!r}") from error
    if not isinstance(answer, dict):
        raise EngineFault(f"/server_info must answer a JSON object, got {body[:80]!r}")
    nested = answer.get("scheduler_info")
    scheduler: dict[str, Any] = nested if isinstance(nested, dict) else {}
    longest = answer.get("max_req_input_len", scheduler.get("max_req_input_len"))
    return ServerInfo(
        version=_text(answer.get("version")),
        model=_text(answer.get("model_path")),
        served_model_name=_text(answer.get("served_model_name")),
        context_length=_integer(answer.get("context_length")),
        max_prompt_length=_integer(longest),
        weight_version=_text(answer.get("weight_version")),
        is_deterministic=bool(answer.get("enable_deterministic_inference")),
        returns_routed_experts=bool(answer.get("enable_return_routed_experts")),
    )


def logprob_probe(token: int) -> dict[str, Any]:
    """Return a request whose answer shows which log-probabilities a server reports.

    At a very high temperature all tokens are almost equally likely, so the best ones of the sampled
    distribution lie together; those of the unscaled one do not.
    """
    return {
        "input_ids": [token],
        "sampling_params": {"max_new_tokens": 1, "temperature": _PROBE_TEMPERATURE},
        "return_logprob": True,
        "top_logprobs_num": _PROBE_TOKENS,
    }


def probed_kind(body: bytes) -> LogprobKind | None:
    """Return what the answer to `logprob_probe` shows, or None where it shows nothing."""
    try:
        top: Any = json.loads(body)["meta_info"]["output_top_logprobs"][0]
        values = [float(entry[0]) for entry in top]
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return None
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    spread = max(values) - min(values)
    return LogprobKind.SAMPLED if spread < _PROBE_SPREAD else LogprobKind.RAW


def refuse_raw_logprobs(url: str) -> EngineFault:
    """Return the fault of a server that reports log-probabilities before temperature."""
    return EngineFault(
        f"the SGLang server at {url} reports the log-probabilities of the unscaled distribution, "
        "which are wrong for training at this temperature: start it without "
        "SGLANG_RETURN_ORIGINAL_LOGPROB, or sample at temperature 1",
        kind=FaultKind.PERMANENT,
    )
