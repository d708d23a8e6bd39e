"""`envkit report` and `envkit verify`: report and check stored runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envkit.cli.console import say, say_json
from envkit.cli.options import AsJson

if TYPE_CHECKING:
    from envkit.rollout.vocabulary_file import TokenText

Run = Annotated[
    Path, typer.Argument(metavar="FILE_OR_DIR", help="A trajectory file or a run directory.")
]
TokenModel = Annotated[
    str | None,
    typer.Option(
        metavar="DIR_OR_NAME",
        help="Show tokens as text with this model's tokenizer, not with the texts in the run.",
    ),
]


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="FILE_OR_DIR", help="A trajectory file, a run directory or an evaluation."
        ),
    ],
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER]", help="Another run of the same seeds, to see what changed in it."
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
    """Write a run, an evaluation, or what changed between two runs, as one HTML file.

    The file is self-contained: it needs no network and no other file.
    """
    from envkit.trajectory.storage import trajectory_file
    from envkit.viewer import write_diff, write_evaluation, write_report
    from envkit.viewer.evaluation_file import is_evaluation

    if other is None and is_evaluation(run):
        target = out or run / "report.html"
        write_evaluation(run, target, token_text=tokenizer(model), max_episodes=max_episodes)
        say(str(target))
        return
    source = trajectory_file(run)
    target = out or source.with_name("report.html" if other is None else "diff.html")
    token_text = tokenizer(model)
    if other is None:
        write_report(source, target, token_text=token_text, max_episodes=max_episodes)
    else:
        second = trajectory_file(other)
        write_diff(source, second, target, token_text=token_text, max_episodes=max_episodes)
    say(str(target))


def tokenizer(model: str | None) -> "TokenText | None":
    """Return a function that returns the text of a token id; None without a model."""
    if model is None:
        return None
    from envkit.builtin_models import model_source
    from envkit.tokens import load_codec

    return load_codec(model_source(model), lazy_features=True).token_text


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
