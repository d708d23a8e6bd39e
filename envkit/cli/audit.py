"""`envkit audit`: is a model's chat template exact, and for which roles."""

from typing import Annotated

import typer

from envkit.cli.console import say, say_json
from envkit.cli.options import AsJson


def audit(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder or hub name; only its tokenizer is read."),
    ],
    as_json: AsJson = False,
) -> None:
    """Say for which messages token deltas equal the template's full render.

    The exit code is 1 when the template cannot be made exact.
    """
    from envkit.tokens import load_codec

    verdict = load_codec(model).audit()
    if as_json:
        say_json(verdict.to_json())
    else:
        for line in verdict.lines():
            say(line)
    if not verdict.is_exact:
        raise typer.Exit(1)
