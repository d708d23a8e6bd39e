"""How far a command is that counts: a bar on a terminal, nothing elsewhere."""

import sys
from types import TracebackType
from typing import Any, Final

_REFRESH_EVERY: Final = 8


class CountingBar:
    """A progress bar on standard error; a context manager."""

    def __init__(self, label: str, *, is_quiet: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        if is_quiet or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> "CountingBar":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._bar is not None and (done % _REFRESH_EVERY == 0 or done == total):
            self._bar.update(self._task, completed=done, total=total)
