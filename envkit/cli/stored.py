"""`envkit report` and `envkit verify`: stored runs."""

from pathlib import Path
from typing import Annotated

import typer

from envkit.cli.console import say, say_json
from envkit.cli.options import AsJson

Run = Annotated[
    Path, typer.Argument(metavar="FILE_OR_DIR", help="A trajectory file or a run directory.")
]


def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The HTML file (default: report.html beside the run)."),
    ] = None,
) -> None:
    """Write a run as one self-contained HTML file."""
    from envkit.report import write_report
    from envkit.trajectory.storage import trajectory_file

    source = trajectory_file(run)
    target = out or source.with_name("report.html")
    write_report(source, target)
    say(str(target))


def verify(run: Run, as_json: AsJson = False) -> None:
    """Check a run's tokens, masks, images and certificates without a model."""
    from envkit.trajectory import verify_file

    checked = verify_file(run)
    if as_json:
        say_json(
            {
                "path": str(checked.path),
                "is_sound": checked.is_sound,
                "trajectories": checked.trajectories,
                "tokens": checked.tokens,
                "trained_tokens": checked.trained_tokens,
                "images": checked.images,
                "problems": [str(problem) for problem in checked.problems],
            }
        )
    else:
        say(str(checked))
    if not checked.is_sound:
        raise typer.Exit(1)
