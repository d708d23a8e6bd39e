"""Task sources, which return the i-th task as plain JSON data.

A task source is a pure function of an index, so two processes agree on "task 17" without
communicating. `size` is None for an endless (procedural) source.
"""

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np

from envkit.errors import ConfigurationError, DatasetError

Task = dict[str, Any]
"""The task of one episode: a dataset row or a generated problem. JSON data only."""

ENDLESS_INDEX_LIMIT: Final = 2**48
"""Upper bound on drawn indices of an endless source, so they survive a float64 round trip."""


@runtime_checkable
class TaskSource(Protocol):
    """Returns tasks by index."""

    @property
    def size(self) -> int | None:
        """Number of tasks; None for an endless source."""
        ...

    def task(self, index: int) -> Task:
        """Return the task of this index, always the same for the same index."""
        ...


class ListSource:
    """A task source over rows in memory."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = [dict(row) for row in rows]
        if not self._rows:
            raise DatasetError("a task source needs at least one row, got none")

    @property
    def size(self) -> int | None:
        """Number of rows."""
        return len(self._rows)

    def task(self, index: int) -> Task:
        """Return a deep copy of the row, so episodes cannot change each other's tasks."""
        if not 0 <= index < len(self._rows):
            raise ConfigurationError(
                f"task index must be from 0 to {len(self._rows) - 1}, got {index}"
            )
        return copy.deepcopy(self._rows[index])


def read_tasks(path: str | os.PathLike[str]) -> ListSource:
    """Read tasks from a JSON lines file, one object per line; empty lines are skipped.

    Raises:
        DatasetError: The file cannot be read, has no tasks, or a line is not a JSON object.
    """
    rows: list[Task] = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read the tasks in {str(path)!r}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DatasetError(
                f"{str(path)!r}, line {number} is not valid JSON: {error}"
            ) from error
        if not isinstance(row, dict):
            raise DatasetError(
                f"{str(path)!r}, line {number} must be a task, a JSON object, got {line:.80}"
            )
        rows.append(cast(Task, row))
    if not rows:
        raise DatasetError(f"{str(path)!r} must have at least one task, got an empty file")
    return ListSource(rows)


def draw_index(source: TaskSource, rng: np.random.Generator) -> int:
    """Return the index of a task drawn uniformly with the given generator."""
    return int(rng.integers(ENDLESS_INDEX_LIMIT if source.size is None else source.size))
