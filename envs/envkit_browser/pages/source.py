"""Tasks on pages: rows of JSON, each played with its own seed."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import DatasetError
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import ListSource, Task, read_tasks

VERSION: Final = "computer-use-page-v0"
"""Part of every seed: a new version draws different seeds."""
DEMOS: Final = Path(str(files("envkit_browser.pages").joinpath("demos")))
"""Folder of the bundled pages."""
_TEXTS: Final = ("html", "path", "goal", "setup", "check", "oracle", "name")


class PageTasks:
    """Cycle through rows, each time with a new seed."""

    size: int | None = None
    """None: the source is endless."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], *, seed: int = 0) -> None:
        """Store the rows.

        Args:
            rows: Tasks that `check_task` accepts.
            seed: Determines the seeds of the pages.

        Raises:
            DatasetError: There are no rows, or a row lacks a field.
        """
        self._rows = ListSource(rows)
        self._count, self._seed = len(rows), checked_seed(seed)
        for row in rows:
            check_task(dict(row))

    def task(self, index: int) -> Task:
        """Return the task at this index; a row that has a seed keeps it."""
        row = self._rows.task(index % self._count)
        name = row.get("name", str(index % self._count))
        return {
            "id": f"{VERSION}/{self._seed}/{index}",
            "name": name,
            "seed": derive_seed(VERSION, self._seed, index),
            **row,
        }


def read_rows(tasks: str | Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """Return the given rows, those of a JSON lines file, or the bundled demos.

    Raises:
        DatasetError: The file cannot be read or holds no task.
    """
    if tasks is None:
        return json.loads((DEMOS / "tasks.json").read_text(encoding="utf-8"))
    if isinstance(tasks, str):
        source = read_tasks(tasks)
        return [source.task(index) for index in range(source.size or 0)]
    return list(tasks)


def check_task(task: Task) -> None:
    """Check that a task can be played.

    Raises:
        DatasetError: It lacks a field, or one has the wrong type.
    """
    for name in _TEXTS:
        if not isinstance(task.get(name, ""), str):
            raise DatasetError(f"{name!r} of a page task must be a string, got {task[name]!r:.80}")
    if ("html" in task) == ("path" in task):
        raise DatasetError(
            "a page task needs either 'html', a page's text, or 'path', a file of the folder, got "
            f"{sorted(task)}"
        )
    if not task.get("check"):
        raise DatasetError(
            f"a page task needs 'check', a JavaScript expression, got {sorted(task)}"
        )
    if not task.get("goal") and not task.get("setup"):
        raise DatasetError(
            f"a page task needs 'goal', or a 'setup' whose value is the goal, got {sorted(task)}"
        )
    seed = task.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise DatasetError(f"'seed' of a page task must be 0 to 2**31 - 1, got {seed!r:.80}")
    assets = task.get("assets", {})
    if not isinstance(assets, dict) or not all(
        isinstance(part, str) for pair in cast(dict[Any, Any], assets).items() for part in pair
    ):
        raise DatasetError(f"'assets' of a page task must map paths to texts, got {assets!r:.80}")
