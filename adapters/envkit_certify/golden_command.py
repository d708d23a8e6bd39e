"""`envkit golden`: record golden trajectories for `envkit certify` to replay."""

from pathlib import Path
from typing import Annotated

import typer

from envkit.cli.console import say
from envkit.cli.counting import CountingBar
from envkit.cli.examples import with_examples
from envkit.cli.options import EnvId, EnvKwargs, parse_env_kwargs
from envkit.errors import StorageError


@with_examples(
    "golden canary-v0 --out tests/golden/canary-v0.json",
    "golden geo3k-v0 --seeds 3 --out tests/golden/geo3k-v0.json",
    group="Write an environment",
)
def golden(
    env_id: EnvId,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write the recording to.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per policy.")] = 6,
    env_kwargs: EnvKwargs = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Record golden trajectories.

    `envkit certify` replays tests/golden/ID.json, or the --golden files, and reports changes. A
    change is either a mistake or needs a new version of the environment.
    """
    from envkit_certify.golden import record, save

    if out.exists() and not overwrite:
        raise StorageError(f"{out} exists: choose another --out, or add --overwrite")
    arguments = parse_env_kwargs(env_kwargs)
    with CountingBar(f"recording {env_id}", is_quiet=quiet) as bar:
        content = record(env_id, arguments, seeds=range(seeds), progress=bar.show)
    save(content, out)
    size = out.stat().st_size
    say(f"{out}: {len(content['episodes'])} episodes, {size} bytes")
