"""Progress of a rollout: a live bar on a terminal, plain lines elsewhere, nothing when quiet."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Self

from envkit.cli.console import note
from envkit.closing import Closing
from envkit.rollout.plan import Played, RolloutState

_REFRESH_S: Final = 0.25
_SHARE: Final = 0.01
"""Maximum fraction of the process's CPU time for drawing, above one frame per second."""
_BAR_WIDTH: Final = 40
_LINES: Final = 10
"""Progress lines per rollout without a terminal."""


class Progress:
    """Counts the finished episodes of a rollout while it runs, and shows nothing of them."""

    def __init__(self, state: RolloutState) -> None:
        """Start without an episode.

        Args:
            state: Progress of the rollout, which updates it.
        """
        self._state = state
        self._started = time.monotonic()
        self._rewarded, self._reward = 0, 0.0
        self._turns, self._tokens = 0, 0
        self._endings = Counter[str]()

    def finished(self, episode: Played) -> None:
        """Count a finished episode, given its records: one for each role."""
        for record in episode:
            if record.reward is not None:
                self._rewarded += 1
                self._reward += record.reward
            self._turns += len(record.own_turns)
            self._tokens += sum(turn.response_tokens for turn in record.own_turns)
        self._endings.update({record.stop_reason.value for record in episode})

    def tell(self, line: str) -> None:
        """Write a line above the bar, if there is one."""
        note(line)

    def figures(self) -> str:
        """Return the figures of the finished episodes in a line."""
        state = self._state
        mean = f"{self._reward / self._rewarded:.3f}" if self._rewarded else "-"
        seconds = max(time.monotonic() - self._started, 1e-9)
        parts = [
            f"reward {mean}",
            f"{self._turns} turns",
            f"{self._tokens} tokens ({self._tokens / seconds:.0f}/s)",
            *(f"{count} {name}" for name, count in self._endings.most_common()),
        ]
        if state.retried:
            parts.append(f"{state.retried} retried")
        outage = None if state.availability is None else state.availability.outage
        if outage is not None:
            parts.append(str(outage))
        return ", ".join(parts)


class PlainLines(Progress):
    """Prints a line per tenth of the rollout."""

    def __init__(self, state: RolloutState, *, done: int) -> None:
        """Start with the episodes that an interrupted run has stored."""
        super().__init__(state)
        self._count = done

    def finished(self, episode: Played) -> None:
        """Write a line if this episode completes a tenth."""
        super().finished(episode)
        before, self._count = self._count, self._count + 1
        total = max(self._state.total, 1)
        if self._count * _LINES // total > before * _LINES // total:
            note(f"{self._count}/{self._state.total} episodes: {self.figures()}")


class LiveBar(Progress, Closing):
    """A bar and a line of figures, updated while episodes run; needs an event loop.

    Drawing is cheap: a frame is two lines of text, at a third of the CPU time of rich's columns.
    The next frame waits until the process has used a hundred times that time, or for a second.
    """

    def __init__(self, state: RolloutState) -> None:
        from rich.live import Live

        from envkit.cli.rich_console import PrintableConsole

        super().__init__(state)
        self._live = Live(console=PrintableConsole(stderr=True), transient=True, auto_refresh=False)
        self._shown: tuple[int, ...] = ()
        self._refresher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._live.start()
        self._refresher = asyncio.get_running_loop().create_task(self._refresh())
        return self

    def close(self) -> None:
        """Remove the bar."""
        if self._refresher is not None:
            self._refresher.cancel()
        self._live.stop()

    def tell(self, line: str) -> None:
        """Write a line above the bar."""
        self._live.console.print(line, soft_wrap=True)

    def draw(self) -> None:
        """Draw a frame, unless it equals the last one."""
        from rich.text import Text

        state, seconds = self._state, int(time.monotonic() - self._started)
        now = (state.total, state.finished, state.in_flight, state.retried, seconds)
        if now == self._shown:
            return
        self._shown = now
        done = _BAR_WIDTH * state.finished // max(state.total, 1)
        frame = Text.assemble(
            ("━" * done, "green"),
            ("━" * (_BAR_WIDTH - done), "bright_black"),
            f" {state.finished}/{state.total} episodes, {state.in_flight} running, "
            f"{seconds // 60}:{seconds % 60:02}\n",
            self.figures(),
        )
        self._live.update(frame, refresh=True)

    async def _refresh(self) -> None:
        while True:
            started, busy = time.monotonic(), time.thread_time()
            self.draw()
            cost = time.thread_time() - busy
            used = time.process_time()
            await asyncio.sleep(_REFRESH_S)
            while time.process_time() - used < cost / _SHARE and time.monotonic() - started < 1.0:
                await asyncio.sleep(_REFRESH_S)


@contextmanager
def progress_for(state: RolloutState, *, done: int, is_quiet: bool) -> Generator[Progress]:
    """Show progress on standard error until the block ends: a bar, or lines if not a terminal.

    Args:
        state: Progress of the rollout, which updates it.
        done: Episodes that an interrupted run has already stored.
        is_quiet: Show only lines from `tell`.
    """
    if is_quiet:
        yield Progress(state)
    elif not sys.stderr.isatty():
        yield PlainLines(state, done=done)
    else:
        with LiveBar(state) as bar:
            yield bar
