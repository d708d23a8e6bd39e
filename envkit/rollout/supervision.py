"""Keep a failure inside its episode, and tell a wrong setting from bad luck.

Whatever fails inside an episode ends that episode alone. Episodes that all fail in the same way end
the run: nothing would be trained.
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
"""Episodes that must fail alike before any succeeds. Fewer could be bad luck."""
_IN_A_ROW: Final = 32
_SHOWN: Final = 300


class FirstEpisodes:
    """Watches the first episodes of each environment, until one ends without a fault."""

    def __init__(self) -> None:
        self._succeeded: set[str] = set()
        self._failures: dict[str, Counter[str]] = {}

    def any_succeeded(self, env_id: str) -> bool:
        """Return whether an episode of the environment has ended without a fault."""
        return env_id in self._succeeded

    def note(self, env_id: str, played: Sequence[Trajectory]) -> str | None:
        """Count an episode; return why more of them are pointless, or None.

        Args:
            env_id: Whose episode it is.
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
            return None  # a server that is away may come back
        first_line = (fault.message.splitlines() or [""])[0][:_SHOWN]
        failures = self._failures.setdefault(env_id, Counter())
        failures[f"{fault.where}: {first_line}"] += 1
        what, count = failures.most_common(1)[0]
        if count < _ALIKE:
            return None
        return (
            f"the first {count} episodes of {env_id} failed in the same way, at {what}; "
            "nothing would be trained. Fix the environment or its settings"
        )


class Supervision:
    """Makes a record of every episode of a player, and watches what they have in common."""

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
        """Play an episode in its own task; whatever fails ends this episode alone.

        Args:
            spec: Which episode.
            playing: Returns its records.

        Raises:
            ConfigurationError: Raised before any episode of the environment succeeded.
            RunFailedError: More episodes are pointless.
        """
        try:
            played = await asyncio.ensure_future(playing)
        except asyncio.CancelledError as error:
            if is_own_cancellation(error):
                raise
            fault = EngineFault("the engine cancelled its own task")
            played = (self.without_play(spec, fault),)
        except RunFailedError:
            raise  # of a player that plays elsewhere
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
            spec: Which episode.
            error: What failed; None for an episode that was aborted.
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
    """Counts episodes that fault one after another."""

    def __init__(self, concurrency: int) -> None:
        """Start at zero.

        Args:
            concurrency: Episodes at once; that many may fail together by one cause.
        """
        self._most = max(_IN_A_ROW, 2 * concurrency)
        self._count = 0

    def note(self, played: Sequence[Trajectory]) -> str | None:
        """Count an episode; return why the run should end, or None.

        Args:
            played: The records of the episode.
        """
        fault = next((one.fault for one in played if one.fault is not None), None)
        self._count = 0 if fault is None else self._count + 1
        if fault is None or self._count < self._most:
            return None
        return (
            f"{self._count} episodes in a row faulted, the last at {fault.where}: {fault.message}"
        )
