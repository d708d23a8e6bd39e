"""Export of a trajectory file as a dataset: filtered, split into rows, written atomically.

A row has exact tokens, mask, log-probabilities and the chat. `input_ids` are the ids a trainer
forwards, with image placeholders expanded, from the first prompt token to the row's last sampled
one. The messages of a row end with the same reply and match the ids. A trainer that uses the ids
never retokenizes the messages.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError, DatasetError, StorageError
from envkit.files import storage_errors
from envkit.messages import Message, images_of, text_of
from envkit.rollout.multi_agent import rollout_id_of
from envkit.text import optional_utf8, utf8
from envkit.trajectory import RewardPlacement, Row, StopReason, Trajectory, read_trajectories
from envkit.trajectory.identity import SeenEpisodes
from envkit.trajectory.plain import json_text
from envkit.trajectory.storage import Source, trajectory_file
from envkit.trajectory.trajectory import TAIL, role_of
from envkit_exchange.tables import GROUP_BYTES, arrow, image_column, write_folder, write_table
from envkit_exchange.task_rows import image_struct

IGNORED: Final = -100
"""Label of untrained tokens, which PyTorch's losses ignore."""
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
class Selection:
    """Which trajectories become rows, and how they are split."""

    min_reward: float | None = None
    """Excludes trajectories with a lower reward or none."""
    only_terminated: bool = False
    """Excludes trajectories that the environment did not end."""
    only_trained: bool = False
    """Excludes trajectories without a trained token: faults and episodes without a reply."""
    steps: bool = False
    """One row per turn, with everything before it as the prompt."""
    merge: bool = False
    """One row per run of turns whose prompts extend each other exactly."""

    def refusal(self, trajectory: Trajectory) -> str | None:
        """Return why a trajectory is excluded; None if it is kept."""
        if TAIL in trajectory.metadata:
            return "cut by the tail of their batch"
        if self.only_trained and trajectory.is_faulted:
            return "faulted"
        if self.only_terminated and trajectory.stop_reason is not StopReason.TERMINATED:
            return "not terminated"
        if self.min_reward is not None and trajectory.reward is None:
            return "without a reward"
        if self.min_reward is not None and (trajectory.reward or 0.0) < self.min_reward:
            return "below the minimum reward"
        return None

    def of(
        self, source: Source, tally: ExportTally, progress: Callable[[int], None]
    ) -> Iterator[Trajectory]:
        """Yield the trajectories of a run or a file that are kept, each episode once.

        Args:
            source: The run or file.
            tally: Counts those that are excluded.
            progress: Called with the number of trajectories read so far.

        Raises:
            StorageError: The source cannot be read.
        """
        episodes = SeenEpisodes().first(read_trajectories(source), tally.left_out)
        for done, trajectory in enumerate(episodes, start=1):
            progress(done)
            reason = self.refusal(trajectory)
            if reason is None:
                yield trajectory
            else:
                tally.left_out[reason] += 1


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
    progress: Callable[[int, int], None] = lambda done, total: None,
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
    rows = _rows(source, kind, selection, contents, tally, progress)
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
    total = contents.count
    for trajectory in selection.of(source, tally, lambda done: progress(done, total)):
        rows = rows_of_trajectory(trajectory, selection)
        if not rows:
            tally.left_out["without a reply"] += 1
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


def rows_of_trajectory(trajectory: Trajectory, selection: Selection) -> tuple[Row, ...]:
    """Return the training rows of a trajectory; none if the model sampled nothing.

    Raises:
        ConfigurationError: The history was rewritten or branched, so it is not one row.
    """
    rows = trajectory.steps(merge=selection.merge or not selection.steps)
    if len(rows) > 1 and not (selection.steps or selection.merge):
        raise ConfigurationError(
            f"episode {trajectory.episode_id!r} is more than one row, because its history was "
            "rewritten or branched; add --merge, or --steps for one row per turn"
        )
    if selection.only_trained:
        rows = tuple(row for row in rows if any(row.loss_mask))
    return rows


def chat_row(trajectory: Trajectory, row: Row, number: int, *, with_parts: bool) -> dict[str, Any]:
    """Return a row for supervised training on exact tokens.

    Args:
        trajectory: The source of the row.
        row: One of its training rows.
        number: Its position among them.
        with_parts: Whether messages contain lists of parts, which a file with images requires, or
            plain text.

    Raises:
        DatasetError: The messages and the ids have different images, because the template omitted
            some from a rewritten history.
    """
    messages = trajectory.seen_at(row.turns[-1])
    if images_of(messages) != row.images:
        raise DatasetError(
            f"row {number} of episode {trajectory.episode_id!r} has {len(row.images)} images in "
            f"its ids and {len(images_of(messages))} in its messages, because the template "
            "rewrote the history; use --format parquet, which stores ids and messages separately"
        )
    return {
        **_ids(row),
        "messages": chat_messages(messages, with_parts=with_parts),
        **_common(trajectory, row, number),
    }


def full_row(trajectory: Trajectory, row: Row, number: int, *, with_parts: bool) -> dict[str, Any]:
    """Return all fields of a training row.

    Args:
        trajectory: As for `chat_row`.
        row: As for `chat_row`.
        number: As for `chat_row`.
        with_parts: As for `chat_row`. If the template rewrote the history, the messages may show
            more images than `images`, which are those of the ids.
    """
    return {
        **_ids(row),
        "prompt_length": len(row.prompt_ids),
        "token_rewards": row.token_rewards(RewardPlacement.TURNS),
        "messages": chat_messages(trajectory.seen_at(row.turns[-1]), with_parts=with_parts),
        **_common(trajectory, row, number),
        "turns": list(row.turns),
        "weight_versions": list(row.weight_versions),
        "env_id": trajectory.env_id,
        "seed": None if trajectory.seed is None else str(trajectory.seed),
        "task": json_text(trajectory.task, "task"),
        "metadata": json_text(trajectory.metadata, "metadata"),
    }


def schema_of_rows(pa: Any, *, with_parts: bool) -> dict[str, Any]:  # noqa: ANN401  # untyped
    """Return the arrow types of columns that are often empty or null in the first rows."""
    part = pa.struct([("type", pa.string()), ("text", pa.string())])
    content = pa.list_(part) if with_parts else pa.string()
    return {
        "input_ids": pa.list_(pa.int64()),
        "labels": pa.list_(pa.int64()),
        "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float64()),
        "token_rewards": pa.list_(pa.float64()),
        "turns": pa.list_(pa.int64()),
        "weight_versions": pa.list_(pa.string()),
        "messages": pa.list_(pa.struct([("role", pa.string()), ("content", content)])),
        "reward": pa.float64(),
        "group_id": pa.string(),
        "role": pa.string(),
        "seed": pa.string(),
    }


def _ids(row: Row) -> dict[str, Any]:
    ids = [*row.prompt_ids, *row.response_ids]
    mask = [0] * len(row.prompt_ids) + list(row.loss_mask)
    pairs: Iterator[tuple[int, int]] = zip(ids, mask, strict=True)
    return {
        "input_ids": ids,
        "labels": [token if trained else IGNORED for token, trained in pairs],
        "loss_mask": mask,
        "logprobs": [0.0] * len(row.prompt_ids) + list(row.logprobs),
    }


def _common(trajectory: Trajectory, row: Row, number: int) -> dict[str, Any]:
    return {
        "images": [image_struct(image) for image in row.images],
        "reward": trajectory.reward,
        "episode_id": utf8(trajectory.episode_id),
        "group_id": optional_utf8(trajectory.group_id),
        "role": role_of(trajectory),
        "rollout_id": utf8(rollout_id_of(trajectory)),
        "row": number,
        "is_last": row.is_last,
        "stop_reason": trajectory.stop_reason.value,
    }


def chat_messages(messages: Sequence[Message], *, with_parts: bool) -> list[dict[str, Any]]:
    """Return messages as rows hold them; `with_parts` is as for `chat_row`."""
    return [
        {"role": entry["role"], "content": _parts(entry) if with_parts else utf8(text_of(entry))}
        for entry in messages
    ]


def _parts(entry: Message) -> list[dict[str, str | None]]:
    content = entry["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": utf8(content)}]
    return [
        {"type": "text", "text": utf8(part["text"])}
        if part["type"] == "text"
        else {"type": "image", "text": None}
        for part in content
    ]
