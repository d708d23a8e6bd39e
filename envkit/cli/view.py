"""`envkit view`: browse the episodes of a run in the terminal."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envkit.cli.console import note
from envkit.cli.stored import Run
from envkit.closing import Closing
from envkit.errors import ConfigurationError, StorageError
from envkit.ranges import one_of

if TYPE_CHECKING:
    from rich.console import Console

    from envkit.cli.images import ImageStyle

_HELP: Final = "Enter: next; p: previous; a number: that episode; r: the run; q: quit"
_PLAIN_WIDTH: Final = 100
_LISTED: Final = 40
"""Maximum number of episodes on the page of a run in interactive use."""


def view(
    run: Run,
    episode: Annotated[
        int | None,
        typer.Option("--episode", "-e", min=1, help="Show only this episode, counted from 1."),
    ] = None,
    images: Annotated[
        str, typer.Option(help="How to show images: auto, blocks, sixel or none.")
    ] = "auto",
) -> None:
    """Browse a run in the terminal: its figures, its trees, then each episode turn by turn.

    If output is not a terminal, print everything, with one line per image unless --images is given.
    Turns that a fork shares with its parent are printed once, unless --episode selects the fork.
    The exit code is 1 if no episode can be read.
    """
    from envkit.cli.images import ImageStyle, resolved
    from envkit.cli.rich_console import PrintableConsole

    is_terminal = sys.stdout.isatty()
    style = ImageStyle(one_of("--images", images, list(ImageStyle)))
    if style is ImageStyle.AUTO:
        style = resolved(style) if is_terminal else ImageStyle.NONE
    has_colours = is_terminal or style is ImageStyle.BLOCKS
    console = PrintableConsole(
        width=None if is_terminal else _PLAIN_WIDTH,
        force_terminal=has_colours,
        color_system="auto" if is_terminal or not has_colours else "truecolor",
    )
    with _Pages(run, console, style) as pages:
        _show(pages, episode, is_terminal=is_terminal)


def _show(pages: "_Pages", episode: int | None, *, is_terminal: bool) -> None:
    if episode is not None:
        if not pages.show(episode, is_whole=True):
            raise ConfigurationError(
                f"{pages.run} has {pages.count} episodes, got --episode {episode}"
            )
        return
    pages.show_run(most=_LISTED if is_terminal else None)
    if is_terminal and sys.stdin.isatty():
        _browse(pages)
    else:
        number = 1
        while pages.show(number):
            number += 1


class _Pages(Closing):
    """The pages of a file; episodes are read on demand."""

    def __init__(self, run: Path, console: "Console", style: "ImageStyle") -> None:
        from envkit.trajectory.storage import LineReader

        self.run, self._lines = run, LineReader(run)
        self._numbers: dict[str, int] = {}
        """Episode numbers by id."""
        self._console, self._style = console, style

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    @property
    def count(self) -> int:
        """Number of lines found so far."""
        return len(self._lines)

    def show_run(self, *, most: int | None) -> None:
        """Print the page of the run.

        Args:
            most: Maximum number of episodes to list; None lists all.

        Raises:
            StorageError: The run has no readable episode.
        """
        from envkit.cli.run_page import print_run
        from envkit.viewer.run import read_run

        found = read_run(self.run)
        if not found.rows:
            reason = f": {found.notes[0]}" if found.notes else ""
            raise StorageError(f"{self.run} has no readable episode{reason}")
        self._numbers = {row.episode_id: row.number for row in found.rows}
        print_run(found, self._console, most=most)

    def show(self, number: int, *, is_whole: bool = False) -> bool:
        """Print an episode, or why it cannot be read; return False if there is none.

        Args:
            number: Its position in the file, from 1.
            is_whole: Whether to also print the turns that it shares with its parent.
        """
        from envkit.cli.episode_page import print_episode
        from envkit.viewer.episodes import episode

        stored = self._lines.read(number)
        if stored is None:
            return False
        if stored.trajectory is None:
            note(f"episode {number} cannot be read: {stored.error}")
            return True
        found = episode(stored.trajectory, stored.certificate, number=stored.line)
        print_episode(
            found,
            self._console,
            style=self._style,
            parent=self._numbers.get(found.row.parent or ""),
            skip=not is_whole,
        )
        return True


def _browse(pages: _Pages) -> None:
    number = 0
    while True:
        try:
            asked = input(f"[{number or 'run'}] {_HELP} > ").strip().lower()
        except EOFError:
            return
        if asked in ("q", ":q", "quit"):
            return
        if asked == "r":
            pages.show_run(most=_LISTED)
            number = 0
            continue
        wanted = number + 1 if asked in ("", "n") else number - 1 if asked == "p" else number
        if asked.isdecimal():
            wanted = int(asked)
        if wanted < 1 or not pages.show(wanted):
            note(f"there is no episode {wanted}; the last is {pages.count}")
            continue
        number = wanted
