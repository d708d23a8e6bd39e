"""Convert SkyRL's sampling parameters, which are vLLM's, to envkit's `Sampling` and back."""

from collections.abc import Mapping
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling

_BAN_BIAS: Final = -100.0
"""The lowest bias that vLLM accepts; it gives a token probability 0."""
_OWN: Final = frozenset(
    {"max_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "seed", "logprobs"}
)


def to_sampling(params: Mapping[str, Any]) -> Sampling:
    """Return the sampling of a trainer's parameters; unknown ones become extras.

    Args:
        params: As SkyRL's `get_sampling_params_for_backend` returns them.

    Raises:
        ConfigurationError: More than one sample per request: SkyRL repeats prompts instead.
    """
    if (params.get("n") or 1) > 1:
        raise ConfigurationError(
            f"sampling parameter n must be 1, got {params['n']}; SkyRL repeats each prompt "
            "generator.n_samples_per_prompt times instead"
        )
    top_k = params.get("top_k")
    default = Sampling()
    return Sampling(
        temperature=float(_given(params, "temperature", default.temperature)),
        top_p=float(_given(params, "top_p", default.top_p)),
        top_k=None if top_k is None or top_k < 1 else int(top_k),
        max_new_tokens=int(_given(params, "max_tokens", default.max_new_tokens)),
        stop=tuple(params.get("stop") or ()),
        stop_ids=tuple(params.get("stop_token_ids") or ()),
        seed=params.get("seed"),
        extras={key: value for key, value in params.items() if key not in _OWN and key != "n"},
    )


def to_params(sampling: Sampling) -> dict[str, Any]:
    """Return vLLM's parameters.

    The tokens of a stop string and the log-probability of every sampled token are always requested:
    the ledger records everything sampled.
    """
    params: dict[str, Any] = {
        **sampling.extras,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "logprobs": 1,
        "include_stop_str_in_output": True,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_ids),
    }
    if sampling.stop:  # vLLM looks for it in text without special tokens, SkyRL's default
        params["skip_special_tokens"] = False
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    if sampling.banned_ids:
        bans = {str(token): _BAN_BIAS for token in sampling.banned_ids}
        params["logit_bias"] = {**(params.get("logit_bias") or {}), **bans}
    return params


def _given(params: Mapping[str, Any], key: str, default: Any) -> Any:  # noqa: ANN401  # a number
    value = params.get(key)
    return default if value is None else value
