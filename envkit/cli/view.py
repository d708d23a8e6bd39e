"""`envkit view`: browse the episodes of a run in the terminal."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envkit.cli.console import note
from envkit.cli.stored import Run
from envkit.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from rich.console import Console

    from envkit.cli.pictures import ImageStyle
    from envkit.trajectory.storage import StoredLine

_HELP: Final = "Enter: next; p: previous; a number: that episode; q: quit"
_PLAIN_WIDTH: Final = 100


def view(
    run: Run,
    episode: Annotated[
        int | None, typer.Option("--episode", "-e", min=1, help="Show only this one, from 1.")
    ] = None,
    images: Annotated[
        str, typer.Option(help="How to show images: auto, blocks, sixel or none.")
    ] = "auto",
) -> None:
    """Browse a run's episodes in the terminal: messages, images, rewards, times.

    If output is not a terminal, print every episode, with one line per image unless --images is
    given. The exit code is 1 if no episode can be read.
    """
    from envkit.cli.pictures import ImageStyle, resolved
    from envkit.cli.rich_console import PrintableConsole

    if images not in list(ImageStyle):
        names = ", ".join(ImageStyle)
        raise ConfigurationError(f"--images must be one of {names}, got {images!r}")
    is_terminal = sys.stdout.isatty()
    style = ImageStyle(images)
    if style is ImageStyle.AUTO:
        style = resolved(style) if is_terminal else ImageStyle.NONE
    has_colours = is_terminal or style is ImageStyle.BLOCKS
    console = PrintableConsole(
        width=None if is_terminal else _PLAIN_WIDTH,
        force_terminal=has_colours,
        color_system="auto" if is_terminal or not has_colours else "truecolor",
    )
    pages = _Pages(run, console, style)
    if episode is not None:
        if not pages.show(episode):
            raise ConfigurationError(f"{run} has {pages.count} episodes, got --episode {episode}")
    elif is_terminal and sys.stdin.isatty():
        _browse(pages)
    else:
        number = 1
        while pages.show(number):
            number += 1
        if pages.readable == 0:
            raise StorageError(f"{run} has no readable episode")


class _Pages:
    """The episodes of a file, read on demand."""

    def __init__(self, run: Path, console: "Console", style: "ImageStyle") -> None:
        from envkit.trajectory.storage import read_lines

        self._lines: Iterator[StoredLine] = read_lines(run)
        self._read: list[StoredLine] = []
        self._console, self._style = console, style

    @property
    def count(self) -> int:
        """Number of lines read so far."""
        return len(self._read)

    @property
    def readable(self) -> int:
        """Number of them that are readable episodes."""
        return sum(line.trajectory is not None for line in self._read)

    def show(self, number: int) -> bool:
        """Print an episode, or why it cannot be read; return False if there is none."""
        from envkit.cli.episode_page import print_episode

        while len(self._read) < number:
            line = next(self._lines, None)
            if line is None:
                return False
            self._read.append(line)
        stored = self._read[number - 1]
        if stored.trajectory is None:
            note(f"episode {number} cannot be read: {stored.error}")
            return True
        print_episode(
            stored.trajectory, self._console, title=f"episode {number}", style=self._style
        )
        return True


def _browse(pages: _Pages) -> None:
    number = 1
    if not pages.show(number):
        raise StorageError("the run has no episodes")
    while True:
        try:
            asked = input(f"[{number}] {_HELP} > ").strip().lower()
        except EOFError:
            return
        if asked in ("q", ":q", "quit"):
            return
        wanted = number + 1 if asked in ("", "n") else number - 1 if asked == "p" else number
        if asked.isdecimal():
            wanted = int(asked)
        if wanted < 1 or not pages.show(wanted):
            note(f"there is no episode {wanted}; the last is {pages.count}")
            continue
        number = wanted
