"""What the commands write: results on standard output, everything else on standard error.

Lines are written plainly, so that a path can be copied and a pipe gets whole lines; only the
progress bar of a rollout is drawn.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import typer


def say(line: str = "") -> None:
    """Write a line of the result."""
    typer.echo(line)


def note(line: str = "") -> None:
    """Write a line beside the result."""
    typer.echo(line, err=True)


def say_json(data: Any) -> None:  # noqa: ANN401  # any JSON data
    """Write the result as one JSON document."""
    typer.echo(json.dumps(data, indent=2, sort_keys=True, default=str))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table with aligned columns; without a heading where the names are empty."""
    cells = [[str(cell) for cell in row] for row in rows]
    lines = [list(columns), *cells] if any(columns) else cells
    widths = [max((len(line[n]) for line in lines), default=0) for n in range(len(columns))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())


def one_line(error: BaseException) -> str:
    """Return an error's message and its notes on one line."""
    parts = [str(error) or type(error).__name__, *getattr(error, "__notes__", ())]
    return " ".join("; ".join(parts).split())
