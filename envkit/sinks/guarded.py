"""Additional sinks whose failures never cost a trajectory or stop the run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from envkit.closing import Closing
from envkit.sinks.sink import Sink
from envkit.trajectory.trajectory import Trajectory

PATIENCE: Final = 3
"""A sink is disabled after this many consecutive failures, because each may have waited for a dead
server."""


@dataclass(slots=True)
class SinkFailures:
    """Failures of one sink."""

    name: str
    first: str
    """Message of the first failure."""
    failed: int = 0
    """Calls that raised."""
    skipped: int = 0
    """Trajectories and metrics skipped after the sink was disabled."""

    def __str__(self) -> str:
        skipped = f", and {self.skipped} skipped after that" if self.skipped else ""
        return f"{self.name}: {self.failed} writes failed{skipped}: {self.first}"


class _Guarded:
    def __init__(self, name: str, sink: Sink) -> None:
        self.name, self.sink = name, sink
        self.failures: SinkFailures | None = None
        self.in_a_row = 0


class GuardedSinks(Closing):
    """Several sinks as one, which never raises.

    The first failure of a sink is reported, and `failures` counts all of them. The other sinks
    continue. A sink is disabled after `PATIENCE` consecutive failures. Write a trajectory to the
    run's own record first::

        with JsonlSink("run") as record, GuardedSinks({"parquet": ParquetSink("run.parquet")}) as s:
            async for trajectory in collect(...):
                record.write(trajectory)
                s.write(trajectory)
    """

    def __init__(
        self, sinks: Mapping[str, Sink], *, tell: Callable[[str], None] | None = None
    ) -> None:
        """Guard the sinks.

        Args:
            sinks: Sinks by the name used in reports.
            tell: Receives a line at the first failure of each sink; None only records `failures`.
        """
        self._guarded: Final = [_Guarded(name, sink) for name, sink in sinks.items()]
        self.tell = tell
        """Reports failures; may be reassigned while the sinks are in use."""

    @property
    def failures(self) -> tuple[SinkFailures, ...]:
        """Failures of each failed sink; empty if all succeeded."""
        return tuple(one.failures for one in self._guarded if one.failures is not None)

    def write(self, trajectory: Trajectory) -> None:
        """Write the trajectory to every sink."""
        for one in self._guarded:
            self._call(one, lambda sink: sink.write(trajectory))

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the metrics to every sink."""
        for one in self._guarded:
            self._call(one, lambda sink: sink.write_metrics(metrics, step))

    def close(self) -> None:
        """Close every sink, including failed ones."""
        for one in self._guarded:
            self._call(one, lambda sink: sink.close(), always=True)

    def _call(self, one: _Guarded, act: Callable[[Sink], None], *, always: bool = False) -> None:
        if one.failures is not None and one.in_a_row >= PATIENCE and not always:
            one.failures.skipped += 1
            return
        try:
            act(one.sink)
        except Exception as error:  # noqa: BLE001  # any library's; told once and counted
            self._failed(one, error)
        else:
            one.in_a_row = 0

    def _failed(self, one: _Guarded, error: Exception) -> None:
        message = " ".join(str(error).split()) or type(error).__name__
        one.in_a_row += 1
        if one.failures is None:
            one.failures = SinkFailures(one.name, message)
            if self.tell is not None:
                self.tell(f"sink {one.name} failed; the run continues: {message}")
        one.failures.failed += 1
