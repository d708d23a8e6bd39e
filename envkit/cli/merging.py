"""Merge the shards of a run into one run folder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from envkit.cli.run_plan import SHARD, WHERE, shard_of
from envkit.errors import ConfigurationError, StorageError
from envkit.files import replace_file, storage_errors
from envkit.image_files import read_image_file
from envkit.rollout.plan import Shard
from envkit.rollout.run_claim import RunClaim
from envkit.rollout.run_folder import FAULTED_FILE, RunFolder, read_finished
from envkit.rollout.run_settings import changed_settings, command_settings
from envkit.rollout.vocabulary_file import VOCABULARY_FILE, merge_vocabularies
from envkit.text import counted
from envkit.trajectory import verify_file
from envkit.trajectory.image_folder import IMAGE_FOLDER, ImageFolder
from envkit.trajectory.storage import FILE_NAME, StoredEpisode

_CHECKED: Final = (FILE_NAME, FAULTED_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The folder of one shard."""

    path: Path
    settings: dict[str, Any]
    shard: Shard
    finished: dict[int, list[StoredEpisode]]
    """Records by episode."""
    missing: int
    """Number of episodes that have not finished."""

    @classmethod
    def read(cls, path: Path) -> "_Part":
        """Read what a shard has finished.

        Raises:
            StorageError: The folder is not a run, or holds an episode twice or of another shard.
            ConfigurationError: Another version of envkit created it, or it was changed.
        """
        settings = command_settings(path)
        shard, size = shard_of(settings), settings["group_size"]
        finished, _ = read_finished(path, size)
        groups = shard.groups(settings["episodes"] // size)
        for index in sorted(finished):
            if index // size not in groups:
                raise StorageError(
                    f"{path} is shard {shard}, but holds group {index // size}, which that shard "
                    "does not play"
                )
        missing = shard.share(settings["episodes"], size) - len(finished)
        return cls(path=path, settings=settings, shard=shard, finished=finished, missing=missing)


def merge(folders: Sequence[Path], claim: RunClaim, *, partial: bool, overwrite: bool) -> RunFolder:
    """Write the run that shards are the parts of, and return its open folder.

    Args:
        folders: The shards, in any order.
        claim: The claim of the new run's folder.
        partial: Whether episodes may be missing.
        overwrite: Whether to replace a run in that folder.

    Raises:
        ConfigurationError: The shards are not parts of one run.
        StorageError: Episodes are missing, a shard is damaged, or a file cannot be written.
    """
    parts = sorted(map(_Part.read, folders), key=lambda part: part.shard.index)
    _check_alike(parts)
    if not partial:
        _check_complete(parts)
    for part in parts:
        _verify(part)
    whole = {name: value for name, value in parts[0].settings.items() if name != SHARD}
    folder = claim.create(whole, overwrite=overwrite)
    try:
        _copy(parts, folder)
    except BaseException:
        folder.close()
        raise
    return folder


def _check_alike(parts: Sequence[_Part]) -> None:
    first, known = parts[0], dict[int, Path]()
    for part in parts:
        changed = changed_settings(first.settings, part.settings, besides=(*WHERE, SHARD))
        if part.shard.count != first.shard.count:
            changed.append(f"it is shard {part.shard}, not one of {first.shard.count}")
        if changed:
            raise ConfigurationError(
                f"{first.path} and {part.path} are not shards of the same run: {'; '.join(changed)}"
            )
        earlier = known.setdefault(part.shard.index, part.path)
        if earlier is not part.path:
            raise ConfigurationError(
                f"{earlier} and {part.path} are both shard {part.shard}: name only one"
            )


def _check_complete(parts: Sequence[_Part]) -> None:
    count = parts[0].shard.count
    absent = set(range(count)) - {part.shard.index for part in parts}
    problems = [
        f"{part.path} lacks {counted(part.missing, 'episode')}: complete it with envkit rollout "
        f"--resume {part.path}"
        for part in parts
        if part.missing
    ]
    if absent:
        names = ", ".join(str(Shard(index, count)) for index in sorted(absent))
        problems.append(f"not given: {names}; each is played by the run's command with --shard")
    if problems:
        raise StorageError(
            f"the run is not complete: {'; '.join(problems)}. To merge what there is, add --partial"
        )


def _verify(part: _Part) -> None:
    for name in _CHECKED:
        if (part.path / name).is_file():
            problems = verify_file(part.path / name).problems
            if problems:
                raise StorageError(
                    f"{part.path / name} is damaged, {problems[0]}: see envkit verify {part.path}"
                )


def _copy(parts: Sequence[_Part], folder: RunFolder) -> None:
    """Copy images, attempts that faulted, token texts, then episodes in the order of the plan."""
    for part in parts:
        with storage_errors(f"cannot copy the images of {part.path}"):
            for image in ImageFolder(part.path / IMAGE_FOLDER).files():
                target = folder.path / IMAGE_FOLDER / image.name
                target.parent.mkdir(exist_ok=True)
                replace_file(target, read_image_file(image))
    with storage_errors("cannot read the faulted episodes of the shards"):
        faulted = [part.path / FAULTED_FILE for part in parts]
        lines = [file.read_bytes() for file in faulted if file.is_file()]
    if lines:
        replace_file(folder.path / FAULTED_FILE, lines)
    vocabularies = [part.path / VOCABULARY_FILE for part in parts]
    merge_vocabularies(vocabularies, folder.path / VOCABULARY_FILE)
    for line in _episodes(parts):
        folder.copy_line(line)


def _episodes(parts: Sequence[_Part]) -> Iterator[bytes]:
    """Yield the lines of all shards in the order of the plan."""
    places: dict[int, tuple[Path, list[tuple[int, int]]]] = {}
    for part in parts:
        file = part.path / FILE_NAME
        with storage_errors(f"cannot read {file}"), file.open("rb") as stream:
            ends = [*accumulate(map(len, stream), initial=0)]
        for index, records in part.finished.items():
            places[index] = (file, [(ends[one.line - 1], ends[one.line]) for one in records])
    for index in sorted(places):
        file, spans = places[index]
        with storage_errors(f"cannot read {file}"), file.open("rb") as stream:
            for start, end in spans:
                stream.seek(start)
                yield stream.read(end - start).rstrip(b"\n") + b"\n"
