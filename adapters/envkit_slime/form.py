"""One call of a generate function, of slime or of miles; the rest of this package serves both."""

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from envkit.trajectory import Row, Segment, Trajectory
from envkit_slime.engine import GenerateState, Span, no_span
from envkit_slime.sample import Sample


class Form(ABC):
    """One call of a trainer's generate function, with its `GenerateState` and `Sample`."""

    def __init__(self, args: Namespace, *, evaluation: bool) -> None:
        """Store what the trainer passes.

        Args:
            args: The trainer's arguments.
            evaluation: Whether this is the trainer's evaluation.
        """
        self.args, self.evaluation = args, evaluation

    @property
    @abstractmethod
    def state(self) -> GenerateState:
        """Tokenizer, processor and abort flag."""

    @property
    def tokenizer(self) -> Any:  # noqa: ANN401
        """Decodes responses for people and for text graders."""
        return getattr(self.state, "tokenizer", None)

    @property
    def filler_id(self) -> int:
        """The token of samples without sampled tokens."""
        for name in ("eos_token_id", "pad_token_id"):
            value = getattr(self.tokenizer, name, None)
            if isinstance(value, int):
                return value
        return 0

    @property
    def keeps_partial(self) -> bool:
        """Whether an aborted sample is resumed."""
        return self._returns_aborted() and not self.evaluation

    @abstractmethod
    def session_id(self, sample: Sample) -> str:
        """Return the key that routes the sample's requests, creating one if it has none."""

    @abstractmethod
    def append(self, sample: Any, segments: Sequence[Segment]) -> None:  # noqa: ANN401
        """Append a response to a cleared sample: tokens, columns and the server's statistics."""

    @abstractmethod
    def fill(self, sample: Any) -> None:  # noqa: ANN401
        """Add optional columns to a sample without sampled tokens."""

    def span(self, sample: Sample) -> Span:
        """Return a function that opens a trace span on the sample per request."""
        del sample
        return no_span

    def attributes(self, meta_info: dict[str, Any]) -> dict[str, Any]:
        """Return the span attributes from an answer's `meta_info`."""
        return meta_info

    def request_fields(self, sample: Sample) -> dict[str, Any]:
        """Return the trainer's extra fields for a sample's requests."""
        del sample
        return {}

    def check_rows(self, sample: Sample, rows: Sequence[Row]) -> None:
        """Reject an episode's rows if the trainer would not weigh them as one episode."""
        del sample, rows

    def annotate(self, sample: Sample, trajectory: Trajectory) -> None:
        """Add metadata that only this trainer uses."""
        del sample, trajectory

    def _returns_aborted(self) -> bool:
        """Return whether the trainer passes aborted samples to a later call."""
        return bool(getattr(self.args, "partial_rollout", False))
