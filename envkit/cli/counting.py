"""Progress of a counting command: a bar on a terminal, nothing elsewhere."""

import sys
from typing import Any, Final, Self

from envkit.closing import Closing

_REFRESH_EVERY: Final = 8


class CountingBar(Closing):
    """A progress bar on standard error, for the duration of a block."""

    def __init__(self, label: str, *, is_quiet: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        if is_quiet or not sys.stderr.isatty():
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        from envkit.cli.rich_console import PrintableConsole

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=PrintableConsole(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Update the bar."""
        if self._bar is not None and (done % _REFRESH_EVERY == 0 or done == total):
            self._bar.update(self._task, completed=done, total=total)
