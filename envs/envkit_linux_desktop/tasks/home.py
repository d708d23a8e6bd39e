"""What checks may see of a session: names and bytes in its home folder."""

from collections.abc import Mapping
from typing import Final, Protocol

MAX_BYTES: Final = 8 << 20
"""Longest file that a check reads."""


class Home(Protocol):
    """A home folder that can be read without following links."""

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a regular file; None if there is no such file."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether anything may be at a path; False only if it is certain that nothing is."""
        ...

    def names(self, folder: str = "") -> tuple[str, ...] | None:
        """Return the names in a folder; None if it cannot be listed."""
        ...


class FilesHome:
    """A home folder held in memory, such as the initial files; every parent is a folder."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Hold the files by their paths."""
        self._files = files

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a file, or None if there is none."""
        data = self._files.get(path)
        return None if data is None else data[:limit]

    def exists(self, path: str) -> bool:
        """Return whether a file or a folder has the path."""
        return any(one == path or one.startswith(f"{path}/") for one in self._files)

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names in a folder."""
        start = f"{folder}/" if folder else ""
        inside = (path[len(start) :] for path in self._files if path.startswith(start))
        return tuple(sorted({path.partition("/")[0] for path in inside} - {""}))
