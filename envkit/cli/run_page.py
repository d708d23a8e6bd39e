"""A run as text for a terminal, with the content and order of the browser's page."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from envkit.viewer.run import RunData
from envkit.viewer.run_text import Group, groups, heading, notes, sections

_INDENT: Final = (0, 2, 0, 0)
_LONGEST: Final = 100_000
"""Maximum length of a text on the page in characters; Rich wraps about a million per second."""


def print_run(run: RunData, console: Console, *, most: int | None = None) -> None:
    """Print the figures of a run, then its episodes by group and tree.

    Args:
        run: A run with at least one episode.
        console: The console to print to.
        most: Maximum number of episodes to list; None lists all.
    """
    title, facts = heading(run)
    console.print(Rule(Text(_bounded(title)), style="bold"))
    console.print(Text(_bounded(facts), style="dim"))
    for text in notes(run):
        console.print(Text(_bounded(text), style="red"))
    for section in sections(run):
        _print_heading(console, section.title, section.note)
        print_grid(console, section.rows)
    _print_heading(console, "Episodes", "")
    left = len(run.rows) if most is None else most
    for group in groups(run):
        if left > 0:
            _print_group(console, group)
        left -= len(group.members)
    if left < 0:
        console.print(Text(f"  … and {-left:,} more; type a number to open one", style="dim"))


def print_grid(
    console: Console, rows: Iterable[Sequence[str]], *, styles: Sequence[str] = ("", "bold", "dim")
) -> None:
    """Print rows of text in aligned columns; the last one wraps.

    Args:
        console: The console to print to.
        rows: Texts, the same number in each row.
        styles: Style of each column; the last one applies to all further columns.
    """
    grid = Table.grid(padding=_INDENT)
    grid.add_column(width=1)
    for number, row in enumerate(rows):
        if not number:
            for _ in row[:-1]:
                grid.add_column(overflow="fold")
            grid.add_column(overflow="fold", ratio=1)
        padded = [*styles, *[styles[-1]] * (len(row) - len(styles))]
        grid.add_row("", *map(Text, map(_bounded, row), padded))
    console.print(grid)


def _bounded(text: str) -> str:
    left = len(text) - _LONGEST
    return text if left <= 0 else f"{text[:_LONGEST]} … and {left:,} more characters"


def _print_group(console: Console, group: Group) -> None:
    is_alone = len(group.members) == 1
    if not is_alone:
        print_grid(console, [(group.task,)], styles=("cyan",))
        print_grid(console, [(group.facts,)], styles=("dim",))
    grid = Table.grid(padding=_INDENT)
    for width in (1, None, None):
        grid.add_column(no_wrap=True, width=width)
    grid.add_column(overflow="fold", ratio=1)
    for member in group.members:
        facts = Text(_bounded(member.facts), style="dim")
        if is_alone:
            facts.append(f" · {group.task}", style="cyan")
        name = Text(member.guide, style="dim").append(f"episode {member.number}", style="")
        grid.add_row("", name, Text(member.reward, style="bold"), facts)
    console.print(grid)


def _print_heading(console: Console, title: str, note: str) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    if note:
        print_grid(console, [(note,)], styles=("dim",))
