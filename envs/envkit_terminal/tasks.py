"""A terminal task as JSON data: initial files, setup, checks and a solution."""

import base64
import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from envkit.errors import DatasetError
from envkit.seeds import derive_seed
from envkit_terminal.families import draw
from envkit_terminal.session import HOME, Entry

CHECKS: Final[dict[str, frozenset[str]]] = {
    "file": frozenset({"path", "text"}),
    "absent": frozenset({"path"}),
    "mode": frozenset({"path", "mode"}),
    "run": frozenset({"command", "output"}),
    "tests": frozenset({"command", "files"}),
}
"""Required fields of each type of check."""
_DAY: Final = 86_400
_TEST_OFFSET: Final = 1 << 32


class GeneratedTasks:
    """An endless source of tasks of all families and levels, drawn from a seed."""

    size = None

    def __init__(self, *, split: str, families: tuple[str, ...], levels: tuple[int, ...]) -> None:
        self._kinds = [(name, level) for name in families for level in levels]
        self._offset = _TEST_OFFSET if split == "test" else 0

    def task(self, index: int) -> dict[str, Any]:
        """Return the task of an index, the same on every machine."""
        name, level = self._kinds[index % len(self._kinds)]
        number = index // len(self._kinds) + self._offset
        return draw(name, level, derive_seed("terminal-v0", name, level, number))


def check_task(task: Mapping[str, Any]) -> None:
    """Check the fields of a task.

    Raises:
        DatasetError: A field is missing or has the wrong type.
    """
    if not isinstance(task.get("goal"), str) or not task["goal"].strip():
        raise DatasetError(f"a terminal task needs the text 'goal', got the keys {sorted(task)}")
    checks = task.get("checks")
    if not isinstance(checks, list) or not checks:
        raise DatasetError("a terminal task needs 'checks', a list that is not empty")
    for entry in cast(list[Any], checks):
        check = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
        kind = check.get("type")
        if kind not in CHECKS:
            raise DatasetError(f"a check's 'type' must be one of {sorted(CHECKS)}, got {kind!r}")
        if missing := CHECKS[kind] - check.keys():
            raise DatasetError(f"a check of type {kind!r} needs {sorted(missing)}")
        if "path" in CHECKS[kind] and not is_inside(absolute(check["path"]), task):
            raise DatasetError(
                f"a check's 'path' must be inside the home folder or one of 'folders', since the "
                f"policy can write nowhere else, got {check['path']!r:.80}"
            )
        check_seconds(check)
    for key in ("files", "environment"):
        if not isinstance(task.get(key, {}), dict):
            raise DatasetError(f"{key!r} of a terminal task must be an object")

    check_reward(task)


def check_seconds(check: Mapping[str, Any]) -> None:
    """Check the time that a check allows.

    Raises:
        DatasetError: `seconds` is not a number above 0 and at most a day.
    """
    given: object = check.get("seconds", 1.0)
    if not isinstance(given, int | float) or not 0 < given <= _DAY:
        raise DatasetError(
            f"a check's 'seconds' must be above 0 and at most {_DAY}, got {given!r:.60}"
        )


def check_reward(task: Mapping[str, Any]) -> None:
    """Check what a task says about its reward.

    Raises:
        DatasetError: `reward_key` or `reward_range` has the wrong type.
    """
    if not isinstance(task.get("reward_key", ""), str):
        raise DatasetError(f"'reward_key' must be a string, got {task['reward_key']!r:.60}")
    reward_range(task)


def reward_range(task: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the lowest and the highest reward that a task declares; None without a declaration.

    Raises:
        DatasetError: It is not a pair of numbers in order.
    """
    given: Any = task.get("reward_range")
    if given is None:
        return None
    if isinstance(given, list | tuple):
        pair = cast("list[Any]", given)
        is_pair = len(pair) == 2 and all(
            isinstance(one, int | float) and math.isfinite(one) for one in pair
        )
        if is_pair and pair[0] <= pair[1]:
            return float(pair[0]), float(pair[1])
    raise DatasetError(
        f"'reward_range' of a terminal task must be [lowest, highest], got {given!r:.60}"
    )


def is_inside(path: str, task: Mapping[str, Any]) -> bool:
    """Return whether an absolute path is inside a folder that a task's session can write."""
    folders: Sequence[str] = (HOME, *task.get("folders", ()))
    return any(path.startswith(f"{one.rstrip('/')}/") for one in folders)


def entries(files: Mapping[str, Any]) -> dict[str, Entry]:
    """Return the files of a task by absolute path; relative paths are below the home folder.

    Args:
        files: Path -> text, or `{"text" or "base64", "mode"}`, or None for a folder.

    Raises:
        DatasetError: A value has another form.
    """
    return {absolute(path): _entry(path, value) for path, value in files.items()}


def absolute(path: str) -> str:
    """Return a path in its shortest form; a relative one is below the home folder."""
    return posixpath.normpath(posixpath.join(HOME, path)).replace("//", "/")


def _entry(path: str, value: object) -> Entry:
    if value is None:
        return Entry(mode=0o755)
    if isinstance(value, str | dict):
        fields = {"text": value} if isinstance(value, str) else cast(dict[str, Any], value)
        try:
            path.encode("utf-8", "surrogateescape")
            data = (
                base64.b64decode(fields["base64"], validate=True)
                if "base64" in fields
                else str(fields["text"]).encode()
            )
            return Entry(data=data, mode=int(fields.get("mode", 0o644)))
        except (KeyError, TypeError, ValueError) as error:
            raise DatasetError(f"the file {path!r} of a terminal task is not valid") from error
    raise DatasetError(
        f"the file {path!r} must be text, {{'text' or 'base64'}} or None, got {value!r:.60}"
    )
