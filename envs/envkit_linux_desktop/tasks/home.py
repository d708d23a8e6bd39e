"""What checks may see of a session: names and bytes in its home folder."""

from collections.abc import Mapping
from typing import Final, Protocol

MOST_BYTES: Final = 8 << 20
"""Longest file that a check reads."""


MOST_NAMES: Final = 2_000
"""A folder with as many names counts as flooded: a listing may be cut."""


class Home(Protocol):
    """A home folder that can be read without following links."""

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a regular file, or None if there is none."""
        ...

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names in a folder; none if it does not exist."""
        ...


class FilesHome:
    """A home folder held in memory; every parent of a file is a folder."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def read(self, path: str, *, limit: int) -> bytes | None:
        """Return the first bytes of a file, or None if there is none."""
        data = self._files.get(path)
        return None if data is None else data[:limit]

    def names(self, folder: str = "") -> tuple[str, ...]:
        """Return the names in a folder."""
        start = f"{folder}/" if folder else ""
        inside = (path[len(start) :] for path in self._files if path.startswith(start))
        return tuple(sorted({path.partition("/")[0] for path in inside} - {""}))
