"""The sink interface for finished trajectories and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from envkit.rollout.plan import RolloutState
from envkit.rollout.run_folder import RECEIVED_FILE
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
    """The run whose episodes a sink gets.

    `envkit rollout --sink NAME=VALUE` calls the entry point NAME of the group `envkit.sinks` with
    the string VALUE, "" without one, and this.
    """

    sink: str = ""
    """Name of the entry point."""
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
    records: dict[str, Received] = field(default_factory=dict[str, Received])
    """The result of `received` by the sink's name."""
    tell: Callable[[str], None] | None
    """Prints where a sink writes and when it fails; None when quiet."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.directory.name

    def received(self, label: str = "") -> Received:
        """Return what the sink got from earlier commands, which it does not get again.

        A sink that does not ask gets all stored episodes at every command, as a file needs that
        each command rewrites.

        Args:
            label: Tells the places apart to which the sink may write the run, such as projects.

        Raises:
            StorageError: The record cannot be read.
        """
        place = f"{self.sink}-{quote(label, safe='')}" if label else self.sink
        record = Received(self.directory / RECEIVED_FILE.format(place), is_new=not self.is_resumed)
        self.records[self.sink] = record
        return record

    def say(self, line: str) -> None:
        """Print a line unless quiet."""
        if self.tell is not None:
            self.tell(line)
