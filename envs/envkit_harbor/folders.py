"""Read task folders in Harbor's format, as far as the driver needs them.

The format is that of `harbor/models/task/config.py` and `paths.py` in Harbor 0.26. The worker lets
Harbor itself read a folder again before it plays it.
"""

import base64
import hashlib
import io
import os
import re
import shlex
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from envkit.errors import ConfigurationError, DatasetError
from envkit.tasks import Task

_CANARY: Final = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
_SECONDS: Final = 600.0
"""Harbor's default of `build_timeout_sec` and of the verifier's `timeout_sec`."""
_MOST_SOLUTION: Final = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A task folder that can be played."""

    path: Path
    goal: str
    """The instruction, without the canary lines at its start, as Harbor shows it."""
    start_seconds: float
    """The most that its container may take to start."""
    verifier_seconds: float
    is_separate: bool
    """Whether the verifier has its own container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Task folders, split into playable and refused ones."""

    folders: Mapping[str, Folder]
    """By name: the path below the searched folder."""
    refused: Mapping[str, str]
    """The reason for each refused folder, by name."""


class FolderTasks:
    """The playable tasks of a folder, in the order of their names."""

    def __init__(self, root: Path) -> None:
        """Search a folder.

        Args:
            root: One task folder, or a folder with task folders at any depth.

        Raises:
            ConfigurationError: It holds no task that can be played.
        """
        found = find_tasks(root)
        if not found.folders:
            reasons = "; ".join(f"{name}: {why}" for name, why in list(found.refused.items())[:5])
            raise ConfigurationError(
                f"tasks must be a folder with a task.toml that can be played, got {str(root)!r}: "
                f"{reasons or 'there is no task.toml in it'}"
            )
        self.refused = found.refused
        """The reason for each folder that cannot be played, by name."""
        self._folders = found.folders
        self._names = list(found.folders)
        self._digests: dict[str, str] = {}
        self.size = len(self._names)

    def task(self, index: int) -> Task:
        """Return a task: its name, its goal and a digest of its folder.

        Raises:
            DatasetError: There is no such task.
        """
        if not 0 <= index < self.size:
            raise DatasetError(f"the tasks are 0 to {self.size - 1}, got {index}")
        name = self._names[index]
        return {"name": name, "goal": self._folders[name].goal, "digest": self._digest(name)}

    def folder_of(self, task: Mapping[str, Any]) -> Folder:
        """Return the folder of a task.

        Raises:
            DatasetError: There is none of this name, or its content is another.
        """
        name: object = task.get("name")
        if not isinstance(name, str) or name not in self._folders:
            raise DatasetError(
                f"a task's 'name' must be one of the {self.size} task folders, got {name!r:.80}"
            )
        if task.get("digest", self._digest(name)) != self._digest(name):
            raise DatasetError(
                f"the folder of the task {name!r} has another content than when the task was "
                "drawn; use the same folder, or drop 'digest' from the task"
            )
        return self._folders[name]

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = digest_of(self._folders[name].path)
        return self._digests[name]


def find_tasks(root: str | Path) -> Found:
    """Read every task folder in a folder.

    Args:
        root: As for `FolderTasks`.
    """
    root = Path(root).resolve()
    folders: dict[str, Folder] = {}
    refused: dict[str, str] = {}
    for path in sorted(root.rglob("task.toml")):
        name = path.parent.relative_to(root).as_posix() if path.parent != root else root.name
        try:
            folders[name] = read_folder(path.parent)
        except DatasetError as error:
            refused[name] = str(error)
    return Found(folders=folders, refused=refused)


def read_folder(path: Path) -> Folder:
    """Read one task folder.

    Raises:
        DatasetError: It is not valid, or needs what this environment lacks.
    """
    try:
        config = tomllib.loads((path / "task.toml").read_text(encoding="utf-8"))
        if config.get("steps") or (path / "steps").is_dir():
            raise DatasetError("a task of several steps is not supported")
        goal = _without_canary((path / "instruction.md").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DatasetError(
            f"a file that cannot be read: {type(error).__name__}: {error}"
        ) from error
    environment, verifier = _table(config, "environment"), _table(config, "verifier")
    if environment.get("os", "linux") != "linux":
        raise DatasetError(f"it needs the system {environment['os']!r:.40}, got Linux")
    if not goal.strip():
        raise DatasetError("its instruction.md is empty")
    is_separate = verifier.get("environment_mode") == "separate" or (
        "environment_mode" not in verifier and "environment" in verifier
    )
    if not is_separate and not (path / "tests/test.sh").is_file():
        raise DatasetError("it has no tests/test.sh")
    return Folder(
        path=path,
        goal=goal.strip(),
        start_seconds=_seconds(environment, "build_timeout_sec"),
        verifier_seconds=_seconds(verifier, "timeout_sec"),
        is_separate=is_separate,
    )


def _seconds(table: Mapping[str, Any], name: str) -> float:
    given: object = table.get(name, _SECONDS)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e6:
        raise DatasetError(f"its {name} must be a number of seconds above 0, got {given!r:.40}")
    return float(given)


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value: object = config.get(key, {})
    if not isinstance(value, dict):
        raise DatasetError(f"its {key!r} must be a table, got {value!r:.40}")
    return cast(dict[str, Any], value)


def _without_canary(text: str) -> str:
    """Drop marker lines at the start, which keep benchmarks out of training data."""
    lines = text.split("\n")
    while lines and (_CANARY.match(lines[0].strip()) or not lines[0].strip()):
        del lines[0]
    return "\n".join(lines)


def digest_of(path: Path) -> str:
    """Return a digest of a folder's file names and contents; links count by their target."""
    digest = hashlib.sha256()
    for one in sorted(path.rglob("*")):
        data = os.readlink(one).encode() if one.is_symlink() else b""
        if one.is_file() and not one.is_symlink():
            data = one.read_bytes()
        for part in (one.relative_to(path).as_posix().encode("utf-8", "surrogateescape"), data):
            digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()[:32]


def solution_of(path: Path) -> str:
    """Return the command that unpacks a task's solution into /solution and runs it.

    Harbor's oracle uploads the folder and runs `solve.sh` with the variables of `[solution.env]`.

    Raises:
        DatasetError: The task has no solution, or one too large for a command.
    """
    if not (path / "solution/solve.sh").is_file():
        raise DatasetError(f"the task {path.name!r} has no solution/solve.sh for an oracle")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(path / "solution", arcname=".", filter=_as_root)
    data = base64.b64encode(packed.getvalue()).decode()
    if len(data) > _MOST_SOLUTION:
        raise DatasetError(
            f"the solution of {path.name!r} must be at most {_MOST_SOLUTION} bytes in a command, "
            f"got {len(data)}"
        )
    config = tomllib.loads((path / "task.toml").read_text(encoding="utf-8"))
    given = _table(_table(config, "solution"), "env")
    named = {"DEBIAN_FRONTEND": "noninteractive", **{key: str(one) for key, one in given.items()}}
    exports = " ".join(f"{key}={shlex.quote(value)}" for key, value in named.items())
    return (
        f"mkdir -p /solution && echo {data} | base64 -d | tar -xz --no-same-owner -C /solution\n"
        f"chmod +x /solution/solve.sh && env {exports} /solution/solve.sh"
    )


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mtime = 0
    return entry
