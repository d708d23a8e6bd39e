"""What takes finished trajectories and metrics."""

from collections.abc import Mapping
from typing import Protocol

from envkit.trajectory.trajectory import Trajectory


class Sink(Protocol):
    """Takes trajectories as they finish; one thread at a time."""

    def write(self, trajectory: Trajectory) -> None:
        """Take one finished trajectory."""
        ...

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take the metrics of a run, or of one training step."""
        ...

    def close(self) -> None:
        """Release everything; safe to call twice."""
        ...
