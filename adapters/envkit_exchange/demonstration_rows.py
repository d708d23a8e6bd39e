"""Demonstrations as the rows that supervised trainers read: one builder per format.

Every trainer except TRL on rows of one turn trains each assistant message of a row. Such formats
therefore refuse noise. No row of messages carries definitions of tools, so only the ledger does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError
from envkit.fast_json import dumps
from envkit.files import replace_file, storage_errors
from envkit.images import Image
from envkit.messages import images_of
from envkit.trajectory import Trajectory, read_trajectories, success_of
from envkit.trajectory.plain import json_text
from envkit_exchange.demonstrations import NOISY_TURNS, DemoTally
from envkit_exchange.tables import arrow, image_column, write_table
from envkit_exchange.task_rows import image_struct, marked_text
from envkit_exchange.trajectories import chat_messages, schema_of_rows

IMAGES: Final = "images"
INFO_FILE: Final = "dataset_info.json"
"""LLaMA-Factory's list of the datasets in a folder."""


class DemoFormat(StrEnum):
    """What reads the demonstrations."""

    TRL = "trl"
    """TRL's SFTTrainer."""
    LLAMA_FACTORY = "llama-factory"
    """LLaMA-Factory, as a sharegpt dataset."""
    VERL = "verl"
    """verl's MultiTurnSFTDataset."""
    LEDGER = "ledger"
    """Runs with exact tokens, which `envkit export --format sft` reads."""

    @property
    def is_exact(self) -> bool:
        """Whether tokens and their mask are written, and not only messages."""
        return self is DemoFormat.LEDGER


def check_format(kind: DemoFormat, *, noise: float, steps: bool) -> None:
    """Check that no trainer would train on noisy replies.

    Raises:
        ConfigurationError: One would, or the format has no rows of one turn.
    """
    if steps and kind is not DemoFormat.TRL:
        fix = "envkit export --steps writes them" if kind.is_exact else "drop --steps"
        raise ConfigurationError(
            f"--steps is for --format trl, whose trainer masks the prompt of a row, got {kind}; "
            f"{fix}"
        )
    if not noise or kind.is_exact or steps:
        return
    fix = "add --steps for one row per turn" if kind is DemoFormat.TRL else "use --format ledger"
    raise ConfigurationError(
        f"--format {kind} cannot leave out noisy replies, because its trainer trains every "
        f"assistant message of a row, got --noise {noise:g}; {fix}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTable:
    """Writes the demonstrations of a folder as tables of one format."""

    kind: DemoFormat
    name: str
    """Name of the dataset; LLaMA-Factory adds the split."""
    steps: bool
    """One row per turn, instead of one per demonstration."""
    threshold: float | None
    """As for `success_of`."""

    def write(self, source: Path, target: Path, tally: DemoTally) -> None:
        """Write a table for each split, and count its rows.

        Args:
            source: Has a folder of trajectories for each split.
            target: The folder of the tables.
            tally: What the source holds.

        Raises:
            StorageError: A file cannot be read or written.
        """
        is_json = self.kind is DemoFormat.LLAMA_FACTORY
        schema = None if is_json else self._schema(with_images=tally.has_images)
        for split, counts in tally.splits.items():
            file = target / f"{split}.{'jsonl' if is_json else 'parquet'}"
            counts.rows = write_table(self._rows(source / split, target, tally), file, schema)
        if is_json:
            replace_file(target / INFO_FILE, dumps(self._info(tally)))

    def _rows(self, source: Path, target: Path, tally: DemoTally) -> Iterator[dict[str, Any]]:
        for trajectory in read_trajectories(source):
            about = {
                "task": json_text(trajectory.task, "task"),
                "seed": trajectory.seed,
                "reward": trajectory.reward,
                "success": success_of(trajectory, threshold=self.threshold),
            }
            if self.kind is not DemoFormat.TRL:
                yield {**self._marked_row(trajectory, target, tally), **about}
            elif self.steps:
                yield from ({**row, **about} for row in _turn_rows(trajectory, tally.has_images))
            else:
                yield {**_whole_row(trajectory, tally.has_images), **about}

    def _marked_row(self, trajectory: Trajectory, target: Path, tally: DemoTally) -> dict[str, Any]:
        """Return a row whose images are `<image>` in the text, as a path or as bytes."""
        messages = trajectory.seen_at(len(trajectory.turns) - 1)
        chat = [{"role": one["role"], "content": marked_text(one)} for one in messages]
        if not tally.has_images:
            return {"messages": chat}
        if self.kind is DemoFormat.VERL:
            return {"messages": chat, IMAGES: [image_struct(one) for one in images_of(messages)]}
        return {"messages": chat, IMAGES: [_file(one, target) for one in images_of(messages)]}

    def _schema(self, *, with_images: bool) -> dict[str, Any]:
        pa = arrow()
        has_parts = with_images and self.kind is DemoFormat.TRL
        chat = schema_of_rows(pa, with_parts=has_parts)["messages"]
        known = {"messages": chat, "prompt": chat, "completion": chat, "success": pa.bool_()}
        return {**known, **(image_column() if with_images else {})}

    def _info(self, tally: DemoTally) -> Mapping[str, Any]:
        """Return the entries of LLaMA-Factory's list (llamafactory/data/parser.py)."""
        columns = {"messages": "messages", **({IMAGES: IMAGES} if tally.has_images else {})}
        tags = {f"{role}_tag": role for role in ("user", "assistant", "system")}
        tags |= {"role_tag": "role", "content_tag": "content", "observation_tag": "tool"}
        entry = {"formatting": "sharegpt", "columns": columns, "tags": tags}
        return {
            f"{self.name}-{split}": {"file_name": f"{split}.jsonl", **entry}
            for split in tally.splits
        }


def _file(image: Image, folder: Path) -> str:
    """Write an image once, and return its path in the folder."""
    path = f"{IMAGES}/{image.sha256}.png"
    if not (folder / path).exists():
        with storage_errors(f"cannot write {folder / path}"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(image.png_bytes())
    return path


def _whole_row(trajectory: Trajectory, with_images: bool) -> dict[str, Any]:
    """Return a row of TRL's language modeling type."""
    messages = trajectory.seen_at(len(trajectory.turns) - 1)
    row: dict[str, Any] = {"messages": chat_messages(messages, with_parts=with_images)}
    if with_images:
        row[IMAGES] = [image_struct(image) for image in images_of(messages)]
    return row


def _turn_rows(trajectory: Trajectory, with_images: bool) -> Iterator[dict[str, Any]]:
    """Yield a row of TRL's prompt-completion type for each reply of the oracle."""
    noisy: list[int] = trajectory.metadata.get(NOISY_TURNS, [])
    for turn in range(len(trajectory.turns)):
        if turn in noisy:
            continue
        *seen, reply = trajectory.seen_at(turn)
        row: dict[str, Any] = {
            "prompt": chat_messages(seen, with_parts=with_images),
            "completion": chat_messages([reply], with_parts=with_images),
        }
        if with_images:
            row[IMAGES] = [image_struct(image) for image in images_of(seen)]
        yield {**row, "turn": turn}
