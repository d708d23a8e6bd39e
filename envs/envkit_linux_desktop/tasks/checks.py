"""Checks of the final bytes in a home folder, each with the edit that satisfies it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
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


class Check(Protocol):
    """One condition on the final files."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Files whose final state this check decides."""
        ...

    def holds(self, home: Home) -> bool:
        """Return whether the condition is met."""
        ...

    def apply(self, files: dict[str, bytes]) -> None:
        """Edit the files so that the condition is met."""
        ...


def read_text(home: Home, path: str) -> str | None:
    """Return a file as text; None if it is absent or not UTF-8."""
    data = home.read(path, limit=MAX_BYTES)
    try:
        return None if data is None else data.decode("utf-8-sig")  # Writer adds a byte order mark
    except UnicodeDecodeError:
        return None


def parent_and_name(path: str) -> tuple[str, str]:
    """Split a path into its folder ("" for the home folder) and its name."""
    parent, _, name = path.rpartition("/")
    return parent, name


@dataclass(frozen=True, kw_only=True)
class PathCheck:
    """What checks of a single path share."""

    path: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The path."""
        return (self.path,)


@dataclass(frozen=True, kw_only=True)
class Text(PathCheck):
    """A file has exactly this text; newlines at its end are ignored."""

    text: str

    def holds(self, home: Home) -> bool:
        """Compare the text."""
        text = read_text(home, self.path)
        return text is not None and text.rstrip("\n") == self.text.rstrip("\n")

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the text."""
        files[self.path] = (self.text.rstrip("\n") + "\n").encode()


@dataclass(frozen=True, kw_only=True)
class Number(PathCheck):
    """A file has one number and nothing else."""

    value: float

    def holds(self, home: Home) -> bool:
        """Compare the number; "12.50" equals 12.5."""
        text = (read_text(home, self.path) or "").strip()
        is_number = re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", text) is not None
        return is_number and abs(float(text) - self.value) < 1e-9

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the number."""
        files[self.path] = f"{self.value:.10g}\n".encode()


@dataclass(frozen=True, kw_only=True)
class Kept(PathCheck):
    """A file has exactly these bytes."""

    data: bytes

    def holds(self, home: Home) -> bool:
        """Compare the bytes."""
        return home.read(self.path, limit=len(self.data) + 1) == self.data

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the bytes."""
        files[self.path] = self.data


@dataclass(frozen=True, kw_only=True)
class Gone(PathCheck):
    """Neither a file nor a folder has this path."""

    def holds(self, home: Home) -> bool:
        """Look for anything; what cannot be looked at is not gone."""
        return not home.exists(self.path)

    def apply(self, files: dict[str, bytes]) -> None:
        """Delete the file or folder."""
        for path in [p for p in files if p == self.path or p.startswith(f"{self.path}/")]:
            del files[path]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A folder has these names and no others; hidden names are ignored."""

    folder: str
    expected: frozenset[str]

    @property
    def paths(self) -> tuple[str, ...]:
        """None: the folder's files have checks of their own."""
        return ()

    def holds(self, home: Home) -> bool:
        """Compare the names."""
        names = home.names(self.folder)
        if names is None:
            return False
        return frozenset(name for name in names if not name.startswith(".")) == self.expected

    def apply(self, files: dict[str, bytes]) -> None:
        """Nothing: the checks of the files make the listing."""


def moved(old: str, new: str, data: bytes) -> tuple[Kept, Gone]:
    """Return the checks that a file has moved with its bytes."""
    return Kept(path=new, data=data), Gone(path=old)


def is_hidden(path: str) -> bool:
    """Return whether any part of the path starts with a dot."""
    return any(part.startswith(".") for part in PurePosixPath(path).parts)
