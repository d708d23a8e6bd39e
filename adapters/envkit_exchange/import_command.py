"""`envkit import`: a trainer's debug dump as a run directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import note, say
from envkit.cli.examples import with_examples
from envkit.errors import StorageError
from envkit.files import storage_errors
from envkit.folder_claim import FolderClaim
from envkit.rollout.vocabulary_file import VOCABULARY_FILE, VocabularyWriter
from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer.episodes import used_ids
from envkit_exchange.dump_slime import SlimeOptions
from envkit_exchange.dumps import DumpFormat, read_dump


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions(CommandOptions):
    """The options of `envkit import`."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="The dump.")]
    kind: Annotated[DumpFormat, typer.Option("--from", help="Which trainer wrote it.")]
    out: Annotated[Path, typer.Option(metavar="DIR", help="Run directory to write.")]
    reward_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Key of the reward, if a sample has several numbers."),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR_OR_NAME",
            help="The model whose tokenizer splits a dump's ids into turns.",
        ),
    ] = None
    without_logprobs: Annotated[
        bool,
        typer.Option("--without-logprobs", help="Accept samples without log-probabilities."),
    ] = False
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Load objects of any class; this runs code from the file."
        ),
    ] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")] = False


@with_examples(
    "import dump.pt --from slime --model DIR --out runs/slime --allow-pickle",
    "import rollouts.jsonl --from verl --out runs/verl",
    group="Train",
)
@takes(ImportOptions)
def import_dump(given: ImportOptions) -> None:
    """Convert a trainer's debug dump to trajectories.

    Missing fields are reported, and recorded in each trajectory's metadata.
    """
    file, out = given.file, given.out
    if not file.is_file():  # before a reader asks for a package
        raise StorageError(f"there is no dump {str(file)!r}")
    target = out / FILE_NAME
    if target.is_file() and target.stat().st_size and not given.overwrite:
        raise StorageError(f"{out} already holds a run: name another --out, or add --overwrite")
    vocabulary = VocabularyWriter(out / VOCABULARY_FILE, is_new=True)
    decode = None
    if given.model is not None:
        from envkit.tokens import load_codec

        codec = load_codec(given.model)
        decode, vocabulary.token_text = codec.decode, codec.token_text
    options = SlimeOptions(
        name=given.kind.value,
        reward_key=given.reward_key,
        decode=decode,
        without_logprobs=given.without_logprobs,
        allow_pickle=given.allow_pickle,
    )
    trajectories = list(read_dump(file, given.kind, options))
    if not trajectories:
        raise StorageError(f"{file} has no samples")
    with FolderClaim(out, FILE_NAME):  # no other process may write the run meanwhile
        save(trajectories, target)
        with storage_errors(f"cannot replace {out / VOCABULARY_FILE}"):
            (out / VOCABULARY_FILE).unlink(missing_ok=True)
        vocabulary.add(token_id for one in trajectories for token_id in used_ids(one))
        vocabulary.write()
    missing = sorted({name for one in trajectories for name in one.metadata["missing"]})
    if missing:
        note(f"the dump does not hold {', '.join(missing)}")
    if not given.kind.has_ids:
        note("these trajectories can be read and reported, but not trained on")
    say(f"{out}: {len(trajectories)} trajectories")
