"""slime's generate function: `--custom-generate-function-path envkit_slime.generate`."""

import uuid
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from envkit.trajectory import Segment
from envkit_slime.contract import CONTRACT
from envkit_slime.engine import GenerateState, Span
from envkit_slime.form import Form
from envkit_slime.rollout import roll
from envkit_slime.sample import Sample
from envkit_slime.upstream import require
from envkit_slime.writer import meta_info, neutral_experts


class SlimeForm(Form):
    """slime's `GenerateState` and `Sample`.

    slime/rollout/sglang_rollout.py and slime/utils/types.py.
    """

    def __init__(
        self, args: Namespace, *, evaluation: bool = False, state: GenerateState | None = None
    ) -> None:
        super().__init__(args, evaluation=evaluation)
        self._state = state

    @property
    def state(self) -> GenerateState:
        """The process-wide state unless one is given; tokenizer and processor are loaded once."""
        if self._state is not None:
            return self._state
        module = require("slime.rollout.sglang_rollout")
        CONTRACT.check()
        return module.GenerateState(self.args)

    def session_id(self, sample: Any) -> str:  # noqa: ANN401
        """Return the sample's session; slime sets it in training and not in evaluation."""
        sample.session_id = sample.session_id or str(uuid.uuid4())
        return sample.session_id

    def span(self, sample: Sample) -> Span:
        """Return slime's own span, which its performance metrics read."""
        trace = require("slime.observability.trace_utils")

        def open_span(attributes: dict[str, Any]) -> AbstractContextManager[Any]:
            return trace.trace_span(sample, "sglang_generate", attrs=attributes)

        return open_span

    def attributes(self, meta_info: dict[str, Any]) -> dict[str, Any]:
        """Return the attributes that slime's metrics need."""
        return require("slime.observability.trace_utils").build_sglang_meta_trace_attrs(meta_info)

    def append(self, sample: Any, segments: Sequence[Segment]) -> None:  # noqa: ANN401
        """Append by slime's own method, which keeps and checks every column."""
        for segment in segments:
            meta = meta_info(segment)
            sampled = {} if meta is None else {"log_probs": segment.logprobs, "meta_info": meta}
            sample.append_response_tokens(
                self.args, tokens=segment.train_ids, trainable=meta is not None, **sampled
            )

    def fill(self, sample: Any) -> None:  # noqa: ANN401
        """Add the columns of routing replay and top-p replay if the run uses them."""
        torch = require("torch")
        if getattr(self.args, "use_rollout_routing_replay", False):
            experts = neutral_experts(self.args, len(sample.tokens) - 1)
            sample.rollout_routed_experts = torch.from_numpy(experts)
        if getattr(self.args, "rollout_top_p", 1.0) != 1.0:
            rows = sample.response_length + 1
            sample.rollout_top_p_token_ids = torch.zeros(0, dtype=torch.int32)
            sample.rollout_top_p_token_offsets = torch.zeros(rows, dtype=torch.int32)

    def _returns_aborted(self) -> bool:
        path: Any = getattr(self.args, "rollout_function_path", None)
        is_fully_async = isinstance(path, str) and "fully_async" in path
        return is_fully_async or super()._returns_aborted()


async def generate(
    args: Namespace,
    sample: Any,  # noqa: ANN401  # slime's Sample
    sampling_params: Mapping[str, Any],
    evaluation: bool = False,
) -> Any:  # noqa: ANN401  # slime's Sample, or a list of them by opt-in
    """Play an environment for one sample of slime.

    The environment, its limits and everything else come from the mapping `envkit` of
    `--custom-config-path` and from `sample.metadata["envkit"]`; docs/trainers/slime.md lists them
    all. Returns exactly one sample unless `fan_out` is set.

    An episode that fails gives a sample with status FAILED, reward 0.0 and `remove_sample`. An
    abort by slime gives status ABORTED, and the sample is resumed when slime passes it here again.

    Args:
        args: slime's arguments.
        sample: Changed in place.
        sampling_params: Never changed.
        evaluation: Set by slime in evaluation.

    Raises:
        ConfigurationError: A setting is wrong.
        RunFailedError: As for `Player.play`.
        TemplateError: The model's chat template cannot be encoded exactly.
    """
    return await roll(SlimeForm(args, evaluation=evaluation), sample, sampling_params)
