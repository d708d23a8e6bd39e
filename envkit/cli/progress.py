"""How far a rollout is: a live bar on a terminal, plain lines elsewhere, nothing when quiet."""

import asyncio
import sys
import time
from collections import Counter
from types import TracebackType
from typing import Final, Protocol

from envkit.cli.console import note
from envkit.rollout import RolloutState
from envkit.trajectory import Trajectory

_REFRESH_S: Final = 0.2
_LINES: Final = 10
"""How many lines a whole rollout prints where no terminal shows a bar."""


class Progress(Protocol):
    """Shows a rollout while it runs; a context manager."""

    def __enter__(self) -> "Progress":
        """Start showing."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop showing."""
        ...

    def finished(self, trajectory: Trajectory) -> None:
        """Count a finished episode."""
        ...

    def tell(self, line: str) -> None:
        """Write a line above the bar."""
        ...


def progress_for(state: RolloutState, *, is_quiet: bool) -> Progress:
    """Return what suits standard error.

    Args:
        state: Updated by the rollout; read while it runs.
        is_quiet: Show only what `tell` is given.
    """
    if not is_quiet and sys.stderr.isatty():
        return LiveBar(state)
    return PlainLines(state, is_quiet=is_quiet)


class _Tally:
    """Running figures of the finished episodes."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._rewarded, self._reward = 0, 0.0
        self._turns, self._tokens = 0, 0
        self._endings = Counter[str]()

    def add(self, trajectory: Trajectory) -> None:
        if trajectory.reward is not None:
            self._rewarded += 1
            self._reward += trajectory.reward
        self._turns += len(trajectory.turns)
        self._tokens += sum(turn.response_tokens for turn in trajectory.turns)
        self._endings[trajectory.stop_reason.value] += 1

    def text(self, state: RolloutState) -> str:
        mean = f"{self._reward / self._rewarded:.3f}" if self._rewarded else "-"
        seconds = max(time.monotonic() - self._started, 1e-9)
        parts = [
            f"reward {mean}",
            f"{self._turns} turns",
            f"{self._tokens} tokens ({self._tokens / seconds:.0f}/s)",
            *(f"{count} {name}" for name, count in self._endings.most_common()),
        ]
        if state.retried:
            parts.append(f"{state.retried} played again")
        return ", ".join(parts)


class PlainLines:
    """A line each time another tenth is done."""

    def __init__(self, state: RolloutState, *, is_quiet: bool) -> None:
        self._state, self._is_quiet = state, is_quiet
        self._tally = _Tally()
        self._count = 0

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def finished(self, trajectory: Trajectory) -> None:
        """Write a line if this episode completes a tenth."""
        self._tally.add(trajectory)
        before, self._count = self._count, self._count + 1
        total = max(self._state.total, 1)
        if self._count * _LINES // total > before * _LINES // total and not self._is_quiet:
            note(f"{self._count}/{self._state.total} episodes: {self._tally.text(self._state)}")

    def tell(self, line: str) -> None:
        """Write a line."""
        note(line)


class LiveBar:
    """A bar and a line of figures, which also move while episodes run; needs an event loop."""

    def __init__(self, state: RolloutState) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._state = state
        self._tally = _Tally()
        self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
        self._bar = RichProgress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[running]} running"),
            TimeElapsedColumn(),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=None, running=0)
        self._refresher: asyncio.Task[None] | None = None

    def __enter__(self) -> "LiveBar":
        self._live.start()
        self._refresher = asyncio.get_running_loop().create_task(self._refresh())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._refresher is not None:
            self._refresher.cancel()
        self._live.stop()

    def finished(self, trajectory: Trajectory) -> None:
        """Count the episode; the next refresh shows it."""
        self._tally.add(trajectory)

    def tell(self, line: str) -> None:
        """Write a line above the bar."""
        self._live.console.print(line, soft_wrap=True, highlight=False, markup=False)

    async def _refresh(self) -> None:
        from rich.console import Group
        from rich.text import Text

        while True:
            state = self._state
            self._bar.update(
                self._task,
                total=state.total or None,
                completed=state.finished,
                running=state.in_flight,
            )
            self._live.update(Group(self._bar, Text(self._tally.text(state))), refresh=True)
            await asyncio.sleep(_REFRESH_S)
