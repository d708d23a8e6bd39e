"""Contain failures in their episode, and stop runs that only fail.

A failure inside an episode ends only that episode. If all first episodes fail in the same way, the
run ends, because there would be nothing to train on. `Breaker` watches the later ones.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from envkit.errors import ConfigurationError, EngineFault, FaultKind, RunFailedError
from envkit.rollout.boundary import is_own_cancellation
from envkit.rollout.breaker import Admission, Breaker
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.self_check import SelfCheck
from envkit.rollout.setup import EpisodeSpec
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import Trajectory

_ALIKE: Final = 8
"""Number of first episodes that must fail in the same way. Fewer could be bad luck."""
_SHOWN: Final = 300


def _fault_of(played: Sequence[Trajectory]) -> FaultRecord | None:
    return next((one.fault for one in played if one.fault is not None), None)


class FirstEpisodes:
    """Watches the first episodes of each environment until one ends without a fault."""

    def __init__(self) -> None:
        self._succeeded: set[str] = set()
        self._failures: dict[str, Counter[str]] = {}

    def any_succeeded(self, env_id: str) -> bool:
        """Return whether an episode of the environment has ended without a fault."""
        return env_id in self._succeeded

    def note(self, env_id: str, played: Sequence[Trajectory]) -> str | None:
        """Count an episode; return why further episodes are pointless, or None.

        Args:
            env_id: Environment of the episode.
            played: The records of the episode.
        """
        if env_id in self._succeeded:
            return None
        fault = _fault_of(played)
        if fault is None:
            self._succeeded.add(env_id)
            self._failures.pop(env_id, None)
            return None
        if FaultKind(fault.kind) is not FaultKind.PERMANENT:
            return None  # an unavailable server may come back
        first_line = (fault.message.splitlines() or [""])[0][:_SHOWN]
        failures = self._failures.setdefault(env_id, Counter())
        failures[f"{fault.where}: {first_line}"] += 1
        what, count = failures.most_common(1)[0]
        if count < _ALIKE:
            return None
        return (
            f"the first {count} episodes of {env_id} failed in the same way, at {what}; "
            "there would be nothing to train on. Fix the environment or its settings"
        )


class Supervision:
    """Records every episode of a player, and watches for failures that they share."""

    def __init__(self, self_check: SelfCheck, breaker: Breaker, engine: str) -> None:
        """Start with no episode seen.

        Args:
            self_check: Judges the token comparisons of the episodes.
            breaker: Holds episodes back while too many fault.
            engine: Name for the records.
        """
        self._self_check, self._engine = self_check, engine
        self.breaker = breaker
        self._first = FirstEpisodes()

    @asynccontextmanager
    async def admitted(self, spec: EpisodeSpec, interrupt: Interrupt) -> AsyncGenerator[Admission]:
        """Wait until the episode may start; enclose `recorded` in this.

        Args:
            spec: The episode.
            interrupt: Ends the wait.

        Raises:
            RunFailedError: No further episode may start.
        """
        try:
            admission = await self.breaker.enter(interrupt)
        except RunFailedError as failure:
            raise RunFailedError(str(failure), (self.without_play(spec, None),)) from failure
        try:
            yield admission
        finally:
            self.breaker.leave(admission)

    async def recorded(
        self,
        spec: EpisodeSpec,
        playing: Awaitable[tuple[Trajectory, ...]],
        admission: Admission,
    ) -> tuple[Trajectory, ...]:
        """Play an episode in its own task; a failure ends only this episode.

        Args:
            spec: The episode.
            playing: Returns its records.
            admission: Of `admitted`.

        Raises:
            ConfigurationError: Playing raised it, and no episode of the environment has succeeded.
            RunFailedError: Further episodes are pointless.
        """
        try:
            # In a task of its own: an engine that cancels "the current task" ends only this
            # episode.
            played = await asyncio.ensure_future(playing)
        except asyncio.CancelledError as error:
            if is_own_cancellation(error):
                raise
            fault = EngineFault("the engine cancelled its own task")
            played = (self.without_play(spec, fault),)
        except RunFailedError:
            raise  # from a player in another process
        except ConfigurationError as error:
            # After a success, the configuration is right, and a reply may have caused the error.
            if not self._first.any_succeeded(spec.env_id):
                raise
            played = (self.without_play(spec, error),)
        except Exception as error:  # noqa: BLE001  # see above
            played = (self.without_play(spec, error),)
        failure = (
            self._self_check.note(played)
            or self._first.note(spec.env_id, played)
            or self._note(played, admission)
        )
        if failure is not None:
            raise RunFailedError(failure, played)
        return played

    def report(self, played: tuple[Trajectory, ...]) -> None:
        """Count an episode that was faulted after it had been played.

        Args:
            played: Its records.

        Raises:
            RunFailedError: Further episodes are pointless.
        """
        failure = self._note(played, Admission())
        if failure is not None:
            raise RunFailedError(failure, played)

    def _note(self, played: Sequence[Trajectory], admission: Admission) -> str | None:
        fault = _fault_of(played)
        if fault is None and any(one.stop_reason is StopReason.ABORTED for one in played):
            return None
        return self.breaker.note(fault, admission)

    def without_play(self, spec: EpisodeSpec, error: Exception | None) -> Trajectory:
        """Return the record of an episode that ended before it had one.

        Args:
            spec: The episode.
            error: The failure; None if the episode was aborted.
        """
        record = EpisodeRecord()
        record.task = dict(spec.task or {})
        reason = StopReason.ABORTED
        if error is not None:
            is_engine = isinstance(error, EngineFault)
            record.faulted(FaultPlace.GENERATE if is_engine else FaultPlace.RESET, error)
            reason = StopReason.ENGINE_FAULT if is_engine else StopReason.ENV_FAULT
        return record.trajectory(reason, spec, env_restarts=0, engine=self._engine)
