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
    from envkit.cli.images import ImageStyle
    from envkit.cli.rich_console import PrintableConsole
    from envkit.viewer.episodes import ShownEpisode
    from envkit.viewer.run import RunData

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

    If output is not a terminal, print every episode as soon as it is read and the run's figures
    last, with one line per image unless --images is given. Turns that a fork shares with an earlier
    episode are printed once, unless --episode selects the fork. The exit code is 1 if no episode
    can be read.
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
    if is_terminal and sys.stdin.isatty():
        pages.show_run(most=_LISTED)
        _browse(pages)
    else:
        pages.show_all(most=_LISTED if is_terminal else None)


class _Pages(Closing):
    """The pages of a file; episodes are read on demand."""

    def __init__(self, run: Path, console: "PrintableConsole", style: "ImageStyle") -> None:
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
        from envkit.viewer.run import read_run

        found = read_run(self.run)
        self._numbers = {row.episode_id: row.number for row in found.rows}
        self._print_run(found, most)

    def show_all(self, *, most: int | None) -> None:
        """Print each episode as soon as it is read, then the page of the run.

        Stop when nobody reads the output any more.

        Args:
            most: As for `show_run`.

        Raises:
            StorageError: The run has no readable episode.
        """
        from envkit.viewer.episodes import episode
        from envkit.viewer.run import RunSource, unreadable

        run = RunSource(self.run).empty()
        number = 0
        while self._console.has_reader:
            number += 1
            stored = self._lines.read(number)
            if stored is None:
                self._print_run(run, most)
                return
            if stored.trajectory is None:
                note(f"episode {number} cannot be read: {stored.error}")
                run.notes.append(unreadable(stored))
                continue
            found = episode(stored.trajectory, stored.certificate, number=stored.line)
            self._print(found, is_whole=False)
            if run.add(stored.trajectory, found.row):
                self._numbers[found.row.episode_id] = found.row.number

    def show(self, number: int, *, is_whole: bool = False) -> bool:
        """Print an episode, or why it cannot be read; return False if there is none.

        Args:
            number: Its position in the file, from 1.
            is_whole: Whether to also print the turns that it shares with its parent.
        """
        from envkit.viewer.episodes import episode

        stored = self._lines.read(number)
        if stored is None:
            return False
        if stored.trajectory is None:
            note(f"episode {number} cannot be read: {stored.error}")
            return True
        found = episode(stored.trajectory, stored.certificate, number=stored.line)
        self._print(found, is_whole=is_whole)
        return True

    def _print(self, found: "ShownEpisode", *, is_whole: bool) -> None:
        from envkit.cli.episode_page import print_episode

        print_episode(
            found,
            self._console,
            style=self._style,
            parent=self._numbers.get(found.row.parent or ""),
            skip=not is_whole,
        )

    def _print_run(self, run: "RunData", most: int | None) -> None:
        from envkit.cli.run_page import print_run

        if not run.rows:
            reason = f": {run.notes[0]}" if run.notes else ""
            raise StorageError(f"{self.run} has no readable episode{reason}")
        print_run(run, self._console, most=most)


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
