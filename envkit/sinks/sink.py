"""What takes finished trajectories and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from envkit.rollout import RolloutState
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """What a plugin learns when it opens a sink for `envkit rollout`.

    An entry point of the group `envkit.sinks` is called with the option's value and this.
    """

    name: str
    """Of the run."""
    config: Mapping[str, Any]
    """What is played and how, for dashboards."""
    state: RolloutState
    """The rollout's progress."""
    overwrite: bool
    """Replace a file that is there."""
    tell: Callable[[str], None] | None
    """Takes lines: where to look, and the failures of sinks; None when quiet."""

    def say(self, line: str) -> None:
        """Tell a line, unless quiet."""
        if self.tell is not None:
            self.tell(line)
