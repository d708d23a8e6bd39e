"""Contain failures in their episode, and stop runs that only fail.

A failure inside an episode ends only that episode. If all first episodes fail in the same way, the
run ends, because there would be nothing to train on.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Final

from envkit.errors import ConfigurationError, EngineFault, FaultKind, RunFailedError
from envkit.rollout.boundary import is_own_cancellation
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.self_check import SelfCheck
from envkit.rollout.setup import EpisodeSpec
from envkit.trajectory.stop import FaultPlace, StopReason
from envkit.trajectory.trajectory import Trajectory

_ALIKE: Final = 8
"""Number of first episodes that must fail in the same way. Fewer could be bad luck."""
_IN_A_ROW: Final = 32
_SHOWN: Final = 300


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
        fault = next((one.fault for one in played if one.fault is not None), None)
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

    def __init__(self, self_check: SelfCheck, engine: str) -> None:
        """Start with no episode seen.

        Args:
            self_check: Judges the token comparisons of the episodes.
            engine: Name for the records.
        """
        self._self_check, self._engine = self_check, engine
        self._first = FirstEpisodes()

    async def recorded(
        self, spec: EpisodeSpec, playing: Awaitable[tuple[Trajectory, ...]]
    ) -> tuple[Trajectory, ...]:
        """Play an episode in its own task; a failure ends only this episode.

        Args:
            spec: The episode.
            playing: Returns its records.

        Raises:
            ConfigurationError: Playing raised it, and no episode of the environment has succeeded.
            RunFailedError: Further episodes are pointless.
        """
        try:
            played = await asyncio.ensure_future(playing)
        except asyncio.CancelledError as error:
            if is_own_cancellation(error):
                raise
            fault = EngineFault("the engine cancelled its own task")
            played = (self.without_play(spec, fault),)
        except RunFailedError:
            raise  # from a player in another process
        except ConfigurationError as error:
            if not self._first.any_succeeded(spec.env_id):
                raise
            played = (self.without_play(spec, error),)
        except Exception as error:  # noqa: BLE001  # see above
            played = (self.without_play(spec, error),)
        failure = self._self_check.note(played) or self._first.note(spec.env_id, played)
        if failure is not None:
            raise RunFailedError(failure, played)
        return played

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


class FaultStreak:
    """Counts consecutive faulted episodes."""

    def __init__(self, concurrency: int) -> None:
        """Start at zero.

        Args:
            concurrency: Concurrent episodes; one cause may fault all of them.
        """
        self._limit = max(_IN_A_ROW, 2 * concurrency)
        self._count = 0

    def note(self, played: Sequence[Trajectory]) -> str | None:
        """Count an episode; return why the run should end, or None.

        Args:
            played: The records of the episode.
        """
        fault = next((one.fault for one in played if one.fault is not None), None)
        self._count = 0 if fault is None else self._count + 1
        if fault is None or self._count < self._limit:
            return None
        return (
            f"{self._count} episodes in a row faulted, the last at {fault.where}: {fault.message}"
        )
