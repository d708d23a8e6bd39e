"""`envkit import`: a trainer's debug dump as a run directory."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from envkit.cli.console import note, say


class ImportFormat(StrEnum):
    """The values of --from; those of `envkit.export.DumpFormat`, without importing it."""

    SLIME = "slime"
    MILES = "miles"
    VERL = "verl"
    SKYRL = "skyrl"
    TRL = "trl"


def import_dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The dump.")],
    kind: Annotated[ImportFormat, typer.Option("--from", help="Which trainer wrote it.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run directory to write.")],
    reward_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The reward, where a sample has more than one number."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME",
            help="Its tokenizer splits the text of a dump with ids into turns.",
        ),
    ] = None,
    without_logprobs: Annotated[
        bool,
        typer.Option("--without-logprobs", help="Take samples that have no log-probabilities."),
    ] = False,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Load objects of any class; runs code of whoever wrote the file."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")] = False,
) -> None:
    """Turn a debug dump into trajectories, and name the fields that it lacks.

    What is missing is named, and noted in each trajectory's metadata.
    """
    from envkit.errors import StorageError
    from envkit.export import DumpFormat, SlimeOptions, read_dump
    from envkit.trajectory import save
    from envkit.trajectory.storage import FILE_NAME

    if not file.exists():  # before what reads it asks for a package
        raise StorageError(f"there is no dump {str(file)!r}")
    target = out / FILE_NAME
    if target.is_file() and target.stat().st_size and not overwrite:
        raise StorageError(f"{out} holds a run already: name another --out, or add --overwrite")
    decode = None
    if model is not None:
        from envkit.tokens import load_codec

        decode = load_codec(model).decode
    dump = DumpFormat(kind.value)
    options = SlimeOptions(
        name=kind.value,
        reward_key=reward_key,
        decode=decode,
        without_logprobs=without_logprobs,
        allow_pickle=allow_pickle,
    )
    trajectories = list(read_dump(file, dump, options))
    if not trajectories:
        raise StorageError(f"{file} holds no sample")
    save(trajectories, target)
    missing = sorted({name for one in trajectories for name in one.metadata["missing"]})
    if missing:
        note(f"the dump does not hold {', '.join(missing)}")
    if not dump.has_ids:
        note("these trajectories can be read and reported, not trained on")
    say(f"{out}: {len(trajectories)} trajectories")
