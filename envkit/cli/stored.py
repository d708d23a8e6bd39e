"""`envkit report` and `envkit verify`: report and check stored runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envkit.cli.console import say, say_json
from envkit.cli.options import AsJson

if TYPE_CHECKING:
    from envkit.viewer.document import Decode

Run = Annotated[
    Path, typer.Argument(metavar="FILE_OR_DIR", help="A trajectory file or a run directory.")
]
TokenModel = Annotated[
    str | None,
    typer.Option(
        metavar="DIR_OR_NAME", help="Also show tokens as text, with this model's tokenizer."
    ),
]


def report(
    run: Run,
    diff: Annotated[
        Path | None,
        typer.Option(
            metavar="OTHER", help="Compare with another run on the same seeds: what changed."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The HTML file (default: report.html or diff.html in the run directory).",
        ),
    ] = None,
    model: TokenModel = None,
    max_episodes: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Maximum number of episodes to list; the figures count all."
        ),
    ] = 10_000,
) -> None:
    """Write a run, or what changed from one run to another, as one self-contained HTML file."""
    from envkit.trajectory.storage import trajectory_file
    from envkit.viewer import write_diff, write_report

    source = trajectory_file(run)
    target = out or source.with_name("report.html" if diff is None else "diff.html")
    decode = decoder(model)
    if diff is None:
        write_report(source, target, decode=decode, max_episodes=max_episodes)
    else:
        other = trajectory_file(diff)
        write_diff(source, other, target, decode=decode, max_episodes=max_episodes)
    say(str(target))


def decoder(model: str | None) -> "Decode | None":
    """Return a function that turns token ids into text; None without a model."""
    if model is None:
        return None
    from envkit.tokens import load_codec

    return load_codec(model).decode_all


def verify(run: Run, as_json: AsJson = False) -> None:
    """Check a run's tokens, masks, images and certificates without a model."""
    from envkit.trajectory import verify_file

    checked = verify_file(run)
    if as_json:
        problems = [str(problem) for problem in checked.problems]
        say_json({**asdict(checked), "is_sound": checked.is_sound, "problems": problems})
    else:
        say(str(checked))
    if not checked.is_sound:
        raise typer.Exit(1)
