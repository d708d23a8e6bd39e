"""Differences between slime and miles; the rest of this package serves both."""

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envkit.trajectory import Row, Segment, Trajectory
from envkit_slime.engine import GenerateState, Span, no_span
from envkit_slime.sample import Sample


class Form(ABC):
    """One trainer's `GenerateState` and `Sample`."""

    @property
    @abstractmethod
    def state(self) -> GenerateState:
        """Tokenizer, processor and abort flag."""

    @abstractmethod
    def session_id(self, sample: Sample) -> str:
        """Return the key that routes the sample's requests, creating one if it has none."""

    @abstractmethod
    def append(self, args: Namespace, sample: Any, segments: Sequence[Segment]) -> None:  # noqa: ANN401
        """Append a response to a cleared sample: tokens, columns and the server's statistics."""

    @abstractmethod
    def fill(self, args: Namespace, sample: Any) -> None:  # noqa: ANN401
        """Add optional columns to a sample without sampled tokens."""

    def span(self, sample: Sample) -> Span:
        """Return a function that opens a trace span on the sample per request."""
        del sample
        return no_span

    def attributes(self, meta_info: dict[str, Any]) -> dict[str, Any]:
        """Return the span attributes from an answer's `meta_info`."""
        return meta_info

    def request_fields(self, args: Namespace, sample: Sample) -> dict[str, Any]:
        """Return the trainer's extra fields for a sample's requests."""
        del args, sample
        return {}

    def keeps_partial(self, args: Namespace) -> bool:
        """Return whether aborted samples are resumed."""
        return bool(getattr(args, "partial_rollout", False))

    def check_rows(self, args: Namespace, sample: Sample, rows: Sequence[Row]) -> None:
        """Reject an episode's rows if the trainer would not weigh them as one episode."""
        del args, sample, rows

    def annotate(self, args: Namespace, sample: Sample, trajectory: Trajectory) -> None:
        """Add metadata that only this trainer uses."""
        del args, sample, trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One call of a generate function."""

    form: Form
    args: Namespace
    evaluation: bool
    tokenizer: Any
    """Decodes responses for people and for text graders."""

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
        return self.form.keeps_partial(self.args) and not self.evaluation
