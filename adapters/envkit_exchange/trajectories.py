"""Export of a trajectory file as a dataset: filtered, split into rows, written atomically."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from envkit.errors import StorageError
from envkit.files import storage_errors
from envkit.trajectory import read_trajectories
from envkit.trajectory.identity import SeenEpisodes
from envkit.trajectory.storage import Source, trajectory_file
from envkit_exchange.tables import GROUP_BYTES, arrow, image_column, write_folder, write_table
from envkit_exchange.trajectory_rows import (
    Selection,
    chat_row,
    full_row,
    rows_of_trajectory,
    schema_of_rows,
)

_SPLIT: Final = "train"
_IMAGE_FIELD: Final = b'"images":["'
"""Start of a segment's images in a trajectory file."""


class TrajectoryFormat(StrEnum):
    """Output formats for trajectories."""

    SFT = "sft"
    """Chat rows with exact tokens, for supervised training. Faulted episodes are excluded."""
    PARQUET = "parquet"
    """All fields of a training row."""
    HF = "hf"
    """The same as a datasets-library folder."""


@dataclass(slots=True, kw_only=True)
class ExportTally:
    """The result of an export."""

    trajectories: int = 0
    """Number of exported trajectories."""
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of excluded trajectories by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Contents of a trajectory file, found without decoding it."""

    count: int
    """Trajectories."""
    has_images: bool


def contents_of(source: Source) -> Contents:
    """Scan a trajectory file.

    Raises:
        StorageError: It cannot be read.
    """
    file = trajectory_file(source)
    count, has_images = 0, False
    with storage_errors(f"cannot read {file}"), file.open("rb") as stream:
        for line in stream:
            count += bool(line.strip())
            has_images = has_images or _IMAGE_FIELD in line
    return Contents(count=count, has_images=has_images)


def export_trajectories(
    source: Source,
    target: Path,
    kind: TrajectoryFormat,
    selection: Selection,
    *,
    group_bytes: int = GROUP_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ExportTally:
    """Write a trajectory file as a dataset.

    Args:
        source: A trajectory file or a run directory.
        target: A .parquet or .jsonl file; for HF a folder.
        kind: The output format.
        selection: Which trajectories to export, and how to split them.
        group_bytes: Most bytes of a parquet file's row group, before compression; a larger row is a
            group of its own.
        progress: Called with the number of trajectories read so far and the total.

    Raises:
        StorageError: The source or target fails, or no trajectory is left to write.
        ConfigurationError: A trajectory cannot become one row; see `Selection`.
        DatasetError: As `chat_row` raises it.
    """
    contents = contents_of(source)
    tally = ExportTally()
    rows = _rows(source, kind, selection, contents, tally, progress or _silent)
    schema = _schema(target, kind, contents)
    if kind is TrajectoryFormat.HF:
        tally.rows = write_folder(rows, target, schema, split=_SPLIT, group_bytes=group_bytes)
    else:
        tally.rows = write_table(rows, target, schema, group_bytes=group_bytes)
    return tally


def _rows(
    source: Source,
    kind: TrajectoryFormat,
    selection: Selection,
    contents: Contents,
    tally: ExportTally,
    progress: Callable[[int, int], None],
) -> Iterator[Mapping[str, Any]]:
    build = chat_row if kind is TrajectoryFormat.SFT else full_row
    episodes = SeenEpisodes().first(read_trajectories(source), tally.left_out)
    for done, trajectory in enumerate(episodes, start=1):
        progress(done, contents.count)
        reason = selection.refusal(trajectory)
        rows = () if reason else rows_of_trajectory(trajectory, selection)
        if not rows:
            tally.left_out[reason or "without a reply"] += 1
            continue
        tally.trajectories += 1
        for number, row in enumerate(rows):
            yield build(trajectory, row, number, with_parts=contents.has_images)
    if not tally.trajectories:
        why = ", ".join(f"{count} {reason}" for reason, count in tally.left_out.items())
        raise StorageError(
            f"all {contents.count} trajectories of {str(source)!r} were excluded; nothing to export"
            + (f": {why}" if why else "")
        )


def _schema(target: Path, kind: TrajectoryFormat, contents: Contents) -> dict[str, Any] | None:
    if kind is not TrajectoryFormat.HF and target.suffix != ".parquet":
        return None
    return {**image_column(), **schema_of_rows(arrow(), with_parts=contents.has_images)}


def _silent(done: int, total: int) -> None:
    del done, total
