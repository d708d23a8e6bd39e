"""The sink interface for finished trajectories and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from envkit.rollout import RolloutState
from envkit.trajectory.trajectory import Trajectory


class Sink(Protocol):
    """Receives trajectories as they finish, from one thread at a time."""

    def write(self, trajectory: Trajectory) -> None:
        """Write one finished trajectory."""
        ...

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the metrics of a run or of one training step."""
        ...

    def close(self) -> None:
        """Release everything; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """The context a plugin gets when it opens a sink for `envkit rollout`.

    `envkit rollout` calls an entry point of group `envkit.sinks` with the option's value and this.
    """

    name: str
    """Name of the run."""
    config: Mapping[str, Any]
    """The run's configuration, for dashboards."""
    state: RolloutState
    """The rollout's progress."""
    overwrite: bool
    """Replace an existing file."""
    tell: Callable[[str], None] | None
    """Prints where a sink writes and when it fails; None when quiet."""

    def say(self, line: str) -> None:
        """Print a line unless quiet."""
        if self.tell is not None:
            self.tell(line)
