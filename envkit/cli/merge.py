"""`envkit merge`: join the shards of a run."""

from pathlib import Path
from typing import Annotated

import typer

from envkit.cli.options import AsJson, Overwrite
from envkit.errors import ConfigurationError


def merge(
    shards: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The run directories of the shards.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the whole run.")],
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="Accept missing episodes; `rollout --resume` on --out plays them."
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Join the shards of a run, played with `rollout --shard`, into one run directory.

    It checks that they belong to one run, that no episode is missing or there twice, and their
    tokens and images. The shards stay as they are. The result is a run like any other.
    """
    from envkit.cli.merging import merge as merge_shards
    from envkit.cli.run_plan import Output
    from envkit.cli.summary import summarise
    from envkit.metrics import aggregate
    from envkit.rollout.run_claim import RunClaim

    if out.resolve() in [folder.resolve() for folder in shards]:
        raise ConfigurationError(f"--out must be another folder than the shards, got {out}")
    with RunClaim(out) as claim:
        with merge_shards(shards, claim, partial=partial, overwrite=overwrite) as folder:
            metrics = aggregate(folder.finished())
        output = Output.JSON if as_json else Output.TABLE
        if not summarise(out, metrics, output=output):
            raise typer.Exit(1)
