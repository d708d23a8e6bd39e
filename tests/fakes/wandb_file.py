"""Reads what W&B wrote offline: its own protobuf records in LevelDB's log format.

The frame is that of wandb/core/pkg/leveldb: a file header of 7 bytes, blocks of 32 KiB, and before
each piece of a record crc (4), length (2, little-endian) and kind (1: full, first, middle, last).
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_BLOCK: Final = 32 * 1024
_HEADER: Final = 7
_FULL, _LAST = 1, 4
_PATIENCE_S: Final = 60.0


class WandbFile:
    """A run that was written offline."""

    def __init__(self, folder: Path) -> None:
        """Read the one run in a folder that was given to W&B.

        Args:
            folder: Holds `wandb/offline-run-...`.
        """
        (run,) = (folder / "wandb").glob("offline-run-*")
        self.folder = run
        (file,) = run.glob("*.wandb")
        end = time.monotonic() + _PATIENCE_S
        self.records: list[Any] = []
        while not any(record.HasField("exit") for record in self.records):
            assert time.monotonic() < end, "W&B's own process did not finish the file"
            time.sleep(0.02)
            self.records = list(_records(file.read_bytes()))

    def history(self) -> list[dict[str, Any]]:
        """Return what was logged, a row a call."""
        rows = [record.history for record in self.records if record.HasField("history")]
        return [_items(row.item) for row in rows]

    def steps(self) -> list[int]:
        """Return W&B's own number of each row of the history."""
        return [row.history.step.num for row in self.records if row.HasField("history")]

    def run_id(self) -> str:
        """Return the run's id, under which W&B joins its folders."""
        (run,) = [record.run for record in self.records if record.HasField("run")]
        return run.run_id

    def config(self) -> dict[str, Any]:
        """Return the run's configuration."""
        (run,) = [record.run for record in self.records if record.HasField("run")]
        return _items(run.config.update)

    def over_step(self) -> dict[str, str]:
        """Return which metric each one is drawn over."""
        defined = [record.metric for record in self.records if record.HasField("metric")]
        return {one.name or one.glob_name: one.step_metric for one in defined}


def _items(items: Any) -> dict[str, Any]:  # a repeated field
    found: dict[str, Any] = {}
    for one in items:
        *above, name = one.nested_key or [one.key]
        place = found
        for key in above:
            place = place.setdefault(key, {})
        place[name] = json.loads(one.value_json)
    return found


def _records(data: bytes) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2  # takes most of a second

    messages: Any = wandb_internal_pb2  # picks its protobuf version when imported
    assert data[:4] == b":W&B"
    at, parts = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        at += _HEADER
        parts += data[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            yield messages.Record.FromString(parts)
            parts = b""
