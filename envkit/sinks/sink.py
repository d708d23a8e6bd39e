"""The sink interface for finished trajectories and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from envkit.rollout import RolloutState
from envkit.sinks.received import Received
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


@runtime_checkable
class BufferingSink(Sink, Protocol):
    """A sink that sends episodes later than they are written; an error loses the unsent ones."""

    @property
    def has_unsent(self) -> bool:
        """Whether a written episode was not sent yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRun:
    """The context a plugin gets when it opens a sink for `envkit rollout`.

    `envkit rollout` calls an entry point of group `envkit.sinks` with the option's value and this.
    """

    directory: Path
    """The run directory."""
    config: Mapping[str, Any]
    """The run's configuration, for dashboards."""
    state: RolloutState
    """The rollout's progress."""
    overwrite: bool
    """Replace an existing file."""
    is_resumed: bool = False
    """Whether an earlier command started the run."""
    received: Received | None = None
    """What the sink got from earlier commands, which it does not get again. None for a file that
    each command rewrites."""
    tell: Callable[[str], None] | None
    """Prints where a sink writes and when it fails; None when quiet."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.directory.name

    def say(self, line: str) -> None:
        """Print a line unless quiet."""
        if self.tell is not None:
            self.tell(line)
