"""Tell a wrong setting from bad luck: episodes that all fail in the same way."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from envkit.errors import FaultKind
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
