"""miles' generate function: `--custom-generate-function-path envkit_miles.generate`."""

import base64
import time
import uuid
from argparse import Namespace
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from envkit.errors import ConfigurationError, EnvkitError, LedgerFault, MissingDependencyError
from envkit.messages import text_of
from envkit.trajectory import Row, Segment, Trajectory
from envkit_miles.contract import CONTRACT
from envkit_slime.engine import EXPERTS, START, GenerateState, Span
from envkit_slime.form import Form
from envkit_slime.rollout import roll
from envkit_slime.sample import Sample
from envkit_slime.upstream import require
from envkit_slime.writer import meta_info, neutral_experts

_ROUTING_KEYS: Final = ("routing_key", "session_id")
"""Names of the routing key in `Sample`: current, and in miles-rl 0.0.2."""


class MilesForm(Form):
    """miles' `GenerateState` and `Sample` (miles/utils/types.py)."""

    def __init__(self, state: GenerateState, args: Namespace, *, evaluation: bool = False) -> None:
        super().__init__(args, evaluation=evaluation)
        self._state = state

    @property
    def state(self) -> GenerateState:
        """State of the calling rollout; miles has one per rollout function."""
        return self._state

    def session_id(self, sample: Sample) -> str:
        """Return the sample's routing key, which miles sets only for some router policies."""
        name = next((name for name in _ROUTING_KEYS if hasattr(sample, name)), _ROUTING_KEYS[0])
        given: str | None = getattr(sample, name, None)
        if given is None:
            given = str(uuid.uuid4())
            setattr(sample, name, given)
        return given

    def span(self, sample: Sample) -> Span:
        """Return a recorder of reply and step times for miles' dashboard, if it is on.

        As miles/rollout/generate_hub/multi_turn.py.
        """
        sink = None if self.evaluation else _dashboard()
        if sink is None:
            return super().span(sample)
        turn, ended = 0, 0.0

        @contextmanager
        def open_span(attributes: dict[str, Any]) -> Generator[dict[str, Any]]:
            nonlocal turn, ended
            started = time.time()
            if turn:
                sink.tool_span(sample, ended, started, turn=turn)
            turn += 1
            yield attributes
            ended = time.time()
            tokens = str(attributes.get("completion_tokens", ""))
            sink.gen_span(sample, started, ended, turn=turn, detail=tokens)

        return open_span

    def request_fields(self, sample: Sample) -> dict[str, Any]:
        """Return the LoRA adapter to sample from; without it the server samples the base model.

        As miles/rollout/generate_utils/generate_endpoint_utils.py.

        Raises:
            ConfigurationError: The sample belongs to one of several adapters, the run replays the
                indexer's choices, or distils by the student's most likely tokens.
        """
        if getattr(self.args, "use_rollout_indexer_replay", False):
            raise ConfigurationError(
                "envkit does not record the indexer's choices, which indexer replay trains with; "
                "drop --use-rollout-indexer-replay"
            )
        strategy = getattr(self.args, "opd_top_k_strategy", "only-student")
        if getattr(self.args, "opd_log_prob_top_k", 0) and strategy != "only-teacher":
            raise ConfigurationError(
                "envkit does not request the student's most likely tokens, which distillation by "
                f"--opd-top-k-strategy {strategy} compares; drop --opd-log-prob-top-k, or use "
                "only-teacher"
            )
        adapter = getattr(sample, "adapter", None)
        if adapter is not None:
            raise ConfigurationError(
                "envkit plays episodes of one policy, which has one LoRA adapter at most, "
                f"got a sample of adapter {adapter.name!r}; drop --multi-lora-n-adapters"
            )
        is_enabled = (getattr(self.args, "lora_rank", 0) or 0) > 0 or (
            getattr(self.args, "lora_adapter_path", None) is not None
        )
        if not is_enabled or getattr(self.args, "lora_train_only", False):
            return {}
        return {"lora_path": require("miles.rollout.sglang_rollout").LORA_ADAPTER_NAME}

    def append(self, sample: Any, segments: Sequence[Segment]) -> None:  # noqa: ANN401
        """Extend the sample's lists, then let miles count and check.

        Raises:
            LedgerFault: miles' own `validate` refuses the sample.
        """
        sample.rollout_log_probs, sample.loss_mask = [], []
        for segment in segments:
            sample.tokens = sample.tokens + list(segment.train_ids)
            sample.response_length += segment.token_count
            sample.rollout_log_probs += segment.logprobs
            meta = meta_info(segment)
            sample.loss_mask += [int(meta is not None)] * segment.token_count
            if meta is None:
                continue
            sample.update_from_meta_info(self.args, meta)
            if meta.get(EXPERTS) is not None:
                known = sample.rollout_routed_experts
                sample.rollout_routed_experts = _with_experts(self.args, known, meta)
        _validate(sample)

    def fill(self, sample: Any) -> None:  # noqa: ANN401
        """Add the column of routing replay if the run uses it."""
        if getattr(self.args, "use_rollout_routing_replay", False):
            sample.rollout_routed_experts = neutral_experts(self.args, len(sample.tokens) - 1)
        _validate(sample)

    def check_rows(self, sample: Sample, rows: Sequence[Row]) -> None:
        """Reject several rows where miles counts rows, not episodes.

        It splits a batch with images into steps by row
        (miles/ray/rollout/train_data_conversion.py, can_schedule_on_rollout_side), and the samples
        of miles-rl 0.0.2 have no `rollout_id`: there each row weighs like an episode.

        Raises:
            ConfigurationError: There are several rows, and one of the two holds.
        """
        if len(rows) < 2:
            return
        by_token = getattr(self.args, "calculate_per_token_loss", False)
        if not hasattr(type(sample), "rollout_id") and not by_token:
            raise ConfigurationError(
                f"this release of miles weighs each of an episode's {len(rows)} rows like an "
                "episode; add --calculate-per-token-loss, or install miles from its repository"
            )
        if any(row.images for row in rows):
            raise ConfigurationError(
                "miles cuts a batch with images into optimizer steps of --global-batch-size rows, "
                f"so {len(rows)} rows of one episode would be trained in several steps; drop "
                "fan_out, or play an environment with one agent"
            )

    def annotate(self, sample: Sample, trajectory: Trajectory) -> None:
        """Add the conversation's text for `--save-debug-trajectory-data`.

        miles/ray/rollout/debug_data.py.
        """
        if getattr(self.args, "save_debug_trajectory_data", None) is not None:
            sample.metadata["messages"] = [
                {"role": entry["role"], "content": str(text_of(entry))}
                for entry in trajectory.messages
            ]


def _dashboard() -> Any:  # noqa: ANN401
    """Return the recorder of miles' dashboard; None if it is off or not available."""
    try:
        return require("miles.utils.lifecycle").TrajectoryLifecycle().sink
    except MissingDependencyError:  # miles-rl 0.0.2
        return None


def _with_experts(
    args: Namespace, known: np.ndarray[Any, Any] | None, meta_info: Mapping[str, Any]
) -> np.ndarray[Any, Any]:
    """Return the experts of all tokens so far; rows before the request's start were known."""
    given = meta_info[EXPERTS]
    flat = np.frombuffer(base64.b64decode(given), np.int32) if isinstance(given, str) else given
    rows = np.asarray(flat, np.int32).reshape(-1, args.num_layers, args.moe_router_topk)
    start = int(meta_info[START])
    if known is None or start == 0:
        return rows
    return np.concatenate([known[:start], rows])


def _validate(sample: Any) -> None:  # noqa: ANN401
    try:
        sample.validate()
    except AssertionError as error:
        raise LedgerFault(f"miles refuses the sample: {error}") from error


class _Refusal(dict[str, Any]):
    """Sampling parameters that raise when miles copies them for its next group.

    miles logs a group's exception and submits another one, forever
    (miles/rollout/inference_rollout/inference_rollout_train.py). An exception while submitting ends
    the rollout.
    """

    def __init__(self, error: EnvkitError) -> None:
        super().__init__()
        self._error = error

    def copy(self) -> dict[str, Any]:
        raise self._error


async def generate(input: Any) -> Any:  # noqa: A002, ANN401  # miles names it so
    """Play an environment for one sample of miles.

    miles calls it with one `GenerateFnInput`, because the first parameter is named `input`
    (miles/rollout/inference_rollout/compatibility.py). See `envkit_slime.generate` for what
    happens.

    Args:
        input: State, sample, sampling parameters and whether this is an evaluation.

    Returns:
        miles' GenerateFnOutput.

    Raises:
        ConfigurationError: A setting is wrong.
        RunFailedError: As for `Player.play`.
        TemplateError: The model's chat template cannot be encoded exactly.
    """
    try:
        CONTRACT.check()
        samples = await roll(
            MilesForm(input.state, input.args, evaluation=input.evaluation),
            input.sample,
            input.sampling_params,
        )
    except EnvkitError as error:
        input.state.sampling_params = _Refusal(error)
        raise
    return require("miles.rollout.base_types").GenerateFnOutput(samples=samples)


async def generate_slime_form(
    args: Namespace,
    sample: Any,  # noqa: ANN401  # miles' Sample
    sampling_params: Mapping[str, Any],
    evaluation: bool = False,
) -> Any:  # noqa: ANN401  # miles' Sample, or a list of them by opt-in
    """Do the same for miles' older rollout, which has slime's call convention.

    For `MILES_USE_LEGACY_ROLLOUT_V1=1`, where the state is process-wide
    (miles/rollout/sglang_rollout.py).

    Args:
        args: miles' arguments.
        sample: Changed in place.
        sampling_params: Never changed.
        evaluation: Whether this is an evaluation.
    """
    state = require("miles.rollout.sglang_rollout").GenerateState(args)
    CONTRACT.check()
    return await roll(MilesForm(state, args, evaluation=evaluation), sample, sampling_params)
