"""`envkit golden`: record an environment's meaning, and see whether it changed."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from envkit.cli.console import note, say, say_json
from envkit.cli.counting import CountingBar
from envkit.cli.options import AsJson, EnvKwargs, parse_env_kwargs
from envkit.errors import ConfigurationError, StorageError

_SHOWN: Final = 20


def golden(
    env_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="An environment to record.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the recording goes.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replay this recording instead.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds that each policy plays.")] = 6,
    env_kwargs: EnvKwargs = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Record golden trajectories, or replay them with --check and say what changed.

    The exit code of --check is 1 when anything changed: then the environment needs a new version,
    or the change was a mistake.
    """
    if check is not None:
        if env_id is not None or out is not None or env_kwargs:
            raise ConfigurationError("--check FILE knows its environment: leave the rest out")
        raise typer.Exit(_check(check, is_quiet=quiet, as_json=as_json))
    if env_id is None or out is None:
        raise ConfigurationError("name what to do: `golden ID --out FILE` or `golden --check FILE`")
    if out.exists() and not overwrite:
        raise StorageError(f"{out} exists: name another --out, or add --overwrite")
    _record(env_id, out, seeds, parse_env_kwargs(env_kwargs), is_quiet=quiet)


def _record(
    env_id: str, out: Path, seeds: int, arguments: dict[str, Any], *, is_quiet: bool
) -> None:
    from envkit.certify.golden import record, save

    with CountingBar(f"recording {env_id}", is_quiet=is_quiet) as bar:
        content = record(env_id, arguments, seeds=range(seeds), progress=bar.show)
    save(content, out)
    size = out.stat().st_size
    say(f"{out}: {len(content['episodes'])} episodes, {size} bytes")


def _check(path: Path, *, is_quiet: bool, as_json: bool) -> int:
    from envkit.certify.golden import changes, load

    content = load(path)
    with CountingBar(f"replaying {path.name}", is_quiet=is_quiet) as bar:
        found = changes(content, progress=bar.show)
    if as_json:
        rows = [{"where": c.where, "before": c.before, "after": c.after} for c in found]
        say_json({"env_id": content["env_id"], "changes": rows})
    else:
        count = len(content["episodes"])
        say(f"{content['env_id']}: {count} episodes replayed, {len(found)} changes")
        for change in found[:_SHOWN]:
            say(f"  {change}")
        if len(found) > _SHOWN:
            say(f"  and {len(found) - _SHOWN} more; --json has them all")
    if found:
        _tell_versions(content)
    return 1 if found else 0


def _tell_versions(content: dict[str, Any]) -> None:
    from importlib.metadata import version

    for name, was in content.get("made_with", {}).items():
        if version(name) != was:
            note(f"recorded with {name} {was}, replayed with {version(name)}")
