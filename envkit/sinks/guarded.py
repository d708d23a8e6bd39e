"""Additional sinks whose failures never cost a trajectory or stop the run."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from envkit.closing import Closing
from envkit.sinks.received import Received
from envkit.sinks.sink import BufferingSink, Sink
from envkit.trajectory.stop import StopReason
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
    def __init__(self, name: str, sink: Sink, received: Received | None) -> None:
        self.name, self.sink, self.received = name, sink, received
        self.failures: SinkFailures | None = None
        self.in_a_row = 0
        self._unsent: list[str] = []

    def wants(self, trajectory: Trajectory) -> bool:
        is_finished = trajectory.stop_reason is not StopReason.ABORTED
        return self.received is None or (is_finished and trajectory.episode_id not in self.received)

    def wants_metrics(self) -> bool:
        return self.received is None or bool(self._unsent) or not self.received.has_metrics

    def write(self, trajectory: Trajectory) -> None:
        self._unsent.append(trajectory.episode_id)
        with self._recorded():
            self.sink.write(trajectory)

    def write_metrics(self, metrics: Mapping[str, float], step: int | None) -> None:
        with self._recorded():
            self.sink.write_metrics(metrics, step)
        if self.received is not None:
            self.received.add_metrics()

    def close(self) -> None:
        try:
            with self._recorded():
                self.sink.close()
        finally:
            if self.received is not None:
                self.received.close()

    @contextmanager
    def _recorded(self) -> Generator[None]:
        """Record what the block sends; an error loses what was unsent."""
        try:
            yield
        except BaseException:
            self._unsent.clear()
            raise
        if isinstance(self.sink, BufferingSink) and self.sink.has_unsent:
            return
        episodes, self._unsent = self._unsent, []
        if self.received is not None:
            for episode_id in episodes:
                self.received.add(episode_id)


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
        self,
        sinks: Mapping[str, Sink],
        *,
        received: Mapping[str, Received] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Guard the sinks.

        Args:
            sinks: Sinks by the name used in reports.
            received: Records of what sinks have, by the same names. A sink with a record gets each
                finished episode once over all runs that use the record, and metrics without a step
                only after new episodes; aborted episodes wait until they are resumed and finished.
                A sink without a record gets every call. The records are closed with the sinks.
            tell: Receives a line at the first failure of each sink; None only records `failures`.
        """
        known = received or {}
        self._guarded: Final = [_Guarded(name, one, known.get(name)) for name, one in sinks.items()]
        self.tell = tell
        """Reports failures; may be reassigned while the sinks are in use."""

    @property
    def failures(self) -> tuple[SinkFailures, ...]:
        """Failures of each failed sink; empty if all succeeded."""
        return tuple(one.failures for one in self._guarded if one.failures is not None)

    def write(self, trajectory: Trajectory) -> None:
        """Write the trajectory to every sink that does not have it."""
        for one in self._guarded:
            if one.wants(trajectory):
                self._call(one, lambda one: one.write(trajectory))

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the metrics to every sink."""
        for one in self._guarded:
            if step is not None or one.wants_metrics():
                self._call(one, lambda one: one.write_metrics(metrics, step))

    def close(self) -> None:
        """Close every sink, including failed ones."""
        for one in self._guarded:
            self._call(one, _Guarded.close, always=True)

    def _call(
        self, one: _Guarded, act: Callable[[_Guarded], None], *, always: bool = False
    ) -> None:
        if one.failures is not None and one.in_a_row >= PATIENCE and not always:
            one.failures.skipped += 1
            return
        try:
            act(one)
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
