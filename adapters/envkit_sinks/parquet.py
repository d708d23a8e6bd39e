"""Write a run as one parquet file, a row per trajectory, for pandas, DuckDB or `datasets`."""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from envkit.errors import StorageError
from envkit.files import storage_errors
from envkit.messages import Message, text_of
from envkit.metrics.facts import turn_terms
from envkit.rollout import role_of, rollout_id_of
from envkit.text import optional_utf8, utf8
from envkit.trajectory.plain import json_text
from envkit.trajectory.segment import SegmentKind
from envkit.trajectory.trajectory import Trajectory, TurnRecord
from envkit_exchange.tables import GROUP_BYTES, RowGroup, arrow

METRICS_KEY: Final = "envkit.metrics"
"""Key in the file's metadata of the last `write_metrics` argument, as JSON text."""
_TURN_TIMES: Final = ("queue_seconds", "generate_seconds", "env_seconds", "encode_seconds")
_TURN_COUNTS: Final = (
    "turn",
    "prompt_tokens",
    "cached_tokens",
    "response_tokens",
    "observation_tokens",
    "image_count",
    "engine_retries",
    "resamples",
)
_TURN_TEXTS: Final[Mapping[str, Callable[[TurnRecord], str | None]]] = {
    "response_text": lambda turn: utf8(turn.response_text),
    "finish_reason": lambda turn: utf8(turn.finish_reason),
    "weight_version": lambda turn: optional_utf8(turn.weight_version),
    "parse_error": lambda turn: optional_utf8(turn.parse_error),
    "tool_call": lambda turn: (
        None if turn.tool_call is None else json_text(turn.tool_call, "tool_call")
    ),
    "env_retries": lambda turn: json_text(turn.env_retries, "env_retries"),
    "reward_terms": lambda turn: json_text(turn_terms(turn), "reward_terms"),
}
_TEXTS: Final[Mapping[str, Callable[[Trajectory], str | None]]] = {
    "episode_id": lambda one: utf8(one.episode_id),
    "env_id": lambda one: utf8(one.env_id),
    "group_id": lambda one: optional_utf8(one.group_id),
    "rollout_id": lambda one: utf8(rollout_id_of(one)),
    "role": lambda one: optional_utf8(role_of(one)),
    "seed": lambda one: None if one.seed is None else str(one.seed),  # integers of any size
    "task": lambda one: json_text(one.task, "task"),
    "engine": lambda one: utf8(one.engine),
    "stop_reason": lambda one: one.stop_reason.value,
    "fault_where": lambda one: None if one.fault is None else one.fault.where.value,
    "fault_kind": lambda one: None if one.fault is None else one.fault.kind.value,
    "fault_message": lambda one: None if one.fault is None else utf8(one.fault.message),
    "metadata": lambda one: json_text(one.metadata, "metadata"),
}
_COUNTS: Final[Mapping[str, Callable[[Trajectory], int]]] = {
    "turn_count": lambda one: one.step_count,
    "prompt_tokens": lambda one: len(one.segments[0].train_ids) if one.segments else 0,
    "response_tokens": lambda one: one.sampled_token_count,
    "observation_tokens": lambda one: sum(
        segment.token_count
        for segment in one.own_segments
        if segment.kind is SegmentKind.OBSERVATION
    ),
    "trained_tokens": lambda one: one.trained_token_count,
    "image_count": lambda one: sum(len(segment.images) for segment in one.own_segments),
    "tool_calls": lambda one: sum(turn.tool_call is not None for turn in one.turns),
    "parse_errors": lambda one: sum(turn.parse_error is not None for turn in one.turns),
    "env_restarts": lambda one: one.env_restarts,
}


class ParquetSink:
    """One parquet file with the columns of `schema_of_rows`.

    Rows are written in groups during the run, to a temporary file next to the target, because a
    parquet file is unreadable without its footer. `close` writes the footer and renames the file,
    even after Ctrl-C. Without trajectories, no file is written.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        group_rows: int = 64,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        """Choose the file and create its folder if needed.

        Args:
            file: File for the rows.
            overwrite: Replace an existing file once the new one is complete.
            group_rows: Trajectories buffered in memory between writes.
            group_bytes: Bytes of rows buffered in memory, even if there are fewer rows.

        Raises:
            MissingDependencyError: pyarrow is not installed.
            StorageError: The file already exists, or its folder cannot be created.
        """
        self._arrow: Any = arrow()
        self.file: Final = Path(file)
        if self.file.is_dir():
            raise StorageError(f"a parquet file must not be a folder, got {str(self.file)!r}")
        if self.file.exists() and not overwrite:
            raise StorageError(f"{self.file} already exists: choose another, or overwrite it")
        with storage_errors(f"cannot write {self.file}"):
            self.file.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self.file.with_name(f".{self.file.name}.{secrets.token_hex(4)}.tmp")
        self._schema = schema_of_rows(self._arrow)
        self._waiting = RowGroup(rows=group_rows, group_bytes=group_bytes)
        self._writer: Any = None

    def write(self, trajectory: Trajectory) -> None:
        """Add a row.

        Raises:
            StorageError: The write failed, or free-form data cannot be written as JSON.
        """
        self._flush(self._waiting.add(row_of(trajectory)))

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep metrics in the file's metadata, replacing earlier ones.

        Raises:
            StorageError: The write failed.
        """
        row = dict(metrics) if step is None else {"step": step, **metrics}
        self._flush(self._waiting.take())
        if self._writer is not None:
            self._writer.add_key_value_metadata({METRICS_KEY: json.dumps(row)})

    def close(self) -> None:
        """Write remaining rows and the footer, then rename the file to its final name.

        Raises:
            StorageError: The write failed; no file is left.
        """
        try:
            self._flush(self._waiting.take())
            if self._writer is not None:
                self._end()
        finally:
            self._writer = None
            self._temporary.unlink(missing_ok=True)

    def _flush(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        with storage_errors(f"cannot write {self.file}"):
            if self._writer is None:
                self._writer = self._arrow.parquet.ParquetWriter(self._temporary, self._schema)
            table = self._arrow.Table.from_pylist(rows, schema=self._schema)
            self._writer.write_table(table)

    def _end(self) -> None:
        with storage_errors(f"cannot write {self.file}"):
            self._writer.close()
            self._temporary.replace(self.file)


def schema_of_rows(pa: Any) -> Any:  # noqa: ANN401  # pyarrow is untyped
    """Return the columns. Every row has them all; missing values are null.

    Args:
        pa: The pyarrow module.
    """
    turn = pa.struct(
        [
            *((name, pa.int64()) for name in _TURN_COUNTS),
            *((name, pa.float64()) for name in (*_TURN_TIMES, "reward")),
            *((name, pa.string()) for name in _TURN_TEXTS),
        ]
    )
    term = pa.struct([("turn", pa.int64()), ("name", pa.string()), ("value", pa.float64())])
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.schema(
        [
            *((name, pa.string()) for name in _TEXTS),
            ("reward", pa.float64()),
            ("duration_seconds", pa.float64()),
            ("is_faulted", pa.bool_()),
            *((name, pa.int64()) for name in _COUNTS),
            ("reward_terms", pa.list_(term)),
            ("turns", pa.list_(turn)),
            ("messages", pa.list_(message)),
            ("images", pa.list_(pa.string())),
        ]
    )


def row_of(trajectory: Trajectory) -> dict[str, Any]:
    """Return the row of a trajectory.

    Raises:
        StorageError: Free-form data cannot be written as JSON.
    """
    return {
        **{name: read(trajectory) for name, read in _TEXTS.items()},
        "reward": trajectory.reward,
        "duration_seconds": trajectory.duration_seconds,
        "is_faulted": trajectory.is_faulted,
        **{name: read(trajectory) for name, read in _COUNTS.items()},
        "reward_terms": [
            {"turn": turn.turn, "name": utf8(name), "value": value}
            for turn in trajectory.turns
            for name, value in turn_terms(turn).items()
        ],
        "turns": [_turn(turn) for turn in trajectory.turns],
        "messages": [_message(entry) for entry in trajectory.messages],
        "images": [image.sha256 for segment in trajectory.segments for image in segment.images],
    }


def _turn(turn: TurnRecord) -> dict[str, Any]:
    numbers = (*_TURN_COUNTS, *_TURN_TIMES, "reward")
    return {
        **{name: getattr(turn, name) for name in numbers},
        **{name: read(turn) for name, read in _TURN_TEXTS.items()},
    }


def _message(entry: Message) -> dict[str, str]:
    return {"role": entry["role"], "content": utf8(text_of(entry))}
