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

_HELP: Final = "Enter: next; p: previous; a number: that episode; q: leave"
_PLAIN_WIDTH: Final = 100


def view(
    run: Run,
    episode: Annotated[
        int | None, typer.Option("--episode", "-e", min=1, help="Only this one, from 1.")
    ] = None,
    images: Annotated[
        str, typer.Option(help="How images are shown: auto, blocks, sixel or none.")
    ] = "auto",
) -> None:
    """Browse a run's episodes in the terminal: messages, images, rewards, times.

    If output is not a terminal, print every episode, images as a line each unless --images says
    how. The exit code is 1 if no episode can be read.
    """
    from envkit.cli.pictures import ImageStyle, resolved
    from envkit.cli.rich_console import PrintableConsole

    if images not in list(ImageStyle):
        names = ", ".join(ImageStyle)
        raise ConfigurationError(f"--images must be one of {names}, got {images!r}")
    is_seen = sys.stdout.isatty()
    style = ImageStyle(images)
    if style is ImageStyle.AUTO:
        style = resolved(style) if is_seen else ImageStyle.NONE
    has_colours = is_seen or style is ImageStyle.BLOCKS
    console = PrintableConsole(
        width=None if is_seen else _PLAIN_WIDTH,
        force_terminal=has_colours,
        color_system="auto" if is_seen or not has_colours else "truecolor",
    )
    pages = _Pages(run, console, style)
    if episode is not None:
        if not pages.show(episode):
            raise ConfigurationError(f"{run} has {pages.count} episodes, got --episode {episode}")
    elif is_seen and sys.stdin.isatty():
        _page_through(pages)
    else:
        number = 1
        while pages.show(number):
            number += 1
        if pages.readable == 0:
            raise StorageError(f"{run} has no readable episode")


class _Pages:
    """The episodes of a file, read as far as somebody has looked."""

    def __init__(self, run: Path, console: "Console", style: "ImageStyle") -> None:
        from envkit.trajectory.storage import read_lines

        self._lines: Iterator[StoredLine] = read_lines(run)
        self._read: list[StoredLine] = []
        self._console, self._style = console, style

    @property
    def count(self) -> int:
        """How many were read."""
        return len(self._read)

    @property
    def readable(self) -> int:
        """How many of them are episodes."""
        return sum(line.trajectory is not None for line in self._read)

    def show(self, number: int) -> bool:
        """Print an episode, or why it cannot be read; False if there is none."""
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


def _page_through(pages: _Pages) -> None:
    number = 1
    if not pages.show(number):
        raise StorageError("the run holds no episode")
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
