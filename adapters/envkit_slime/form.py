"""What slime and miles do differently; everything else in this package serves both."""

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from envkit.trajectory import Row, Segment, Trajectory
from envkit_slime.engine import GenerateState, Span
from envkit_slime.sample import Sample


class Form(ABC):
    """One trainer's `GenerateState` and `Sample`."""

    @property
    @abstractmethod
    def state(self) -> GenerateState:
        """Tokenizer, processor and abort flag."""

    @abstractmethod
    def session_id(self, sample: Sample) -> str:
        """Return the key that routes the sample's requests, making one where it has none."""

    @abstractmethod
    def append(self, args: Namespace, sample: Any, segments: Sequence[Segment]) -> None:  # noqa: ANN401
        """Append a response to a cleared sample: tokens, columns and the server's statistics."""

    @abstractmethod
    def fill(self, args: Namespace, sample: Any) -> None:  # noqa: ANN401
        """Give a sample without anything sampled the optional columns of its neighbours."""

    def span(self, sample: Sample) -> Span:
        """Return what opens a trace span on the sample for each of its requests."""
        del sample

        def open_span(attributes: dict[str, Any]) -> AbstractContextManager[Any]:
            return nullcontext(attributes)

        return open_span

    def attributes(self, meta_info: dict[str, Any]) -> dict[str, Any]:
        """Return what a span keeps of an answer's `meta_info`."""
        return meta_info

    def request_fields(self, args: Namespace, sample: Sample) -> dict[str, Any]:
        """Return what the trainer adds to each of a sample's requests."""
        del args, sample
        return {}

    def keeps_partial(self, args: Namespace) -> bool:
        """Return whether aborted samples come back to be resumed."""
        return bool(getattr(args, "partial_rollout", False))

    def check_rows(self, rows: Sequence[Row]) -> None:
        """Reject rows of one episode that the trainer does not keep together."""
        del rows

    def annotate(self, args: Namespace, sample: Sample, trajectory: Trajectory) -> None:
        """Add what only this trainer keeps in a sample's metadata."""
        del args, sample, trajectory
