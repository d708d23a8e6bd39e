"""An episode's own folder: made from a template and the task's files, removed whatever it holds.

Servers and the calls of a policy write into it, so removing it must not depend on its shape:
folders nested a thousand deep, folders without permissions, links, names that are not UTF-8.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from envkit.closing import Closing
from envkit.errors import DatasetError, EnvFault, FaultKind

MARK: Final = "ENVKIT_MCP_EPISODE"
"""Variable of every process of a server: the episode's folder, and a part of the server's own."""
_PREFIX: Final = "envkit-mcp-"
_LOCK: Final = "lock"
_TRIES: Final = 5
_READ: Final = 1 << 20
_MACHINE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})
"""Errors of reading that say nothing about the file."""


class EpisodeFolder(Closing):
    """Folders of one episode: `files` for the servers, `home` and `tmp` for their variables."""

    def __init__(self, *, template: Path | None = None) -> None:
        """Make the folder.

        Args:
            template: Copied into `files`, links as links; None starts with an empty folder.

        Raises:
            EnvFault: The disk is full, or the template cannot be read.
        """
        self.root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = _locked(self.root / _LOCK)
        try:
            for name in ("home", "tmp"):
                (self.root / name).mkdir()
            if template is None:
                self.files.mkdir()
            else:
                shutil.copytree(template, self.files, symlinks=True)
        except (OSError, shutil.Error) as error:
            self.close()
            raise EnvFault(
                f"the episode's folder cannot be made: {error!s:.300}", kind=FaultKind.TRANSIENT
            ) from error

    @property
    def files(self) -> Path:
        """The working folder of the servers; a command's `{folder}`."""
        return self.root / "files"

    def fill(self, files: Mapping[str, str]) -> None:
        """Write a task's files.

        Args:
            files: Text by path, relative to `files`.

        Raises:
            DatasetError: A path leaves the folder, or cannot be written.
        """
        for name, text in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise DatasetError(
                    f"a file of a task must be a path inside the episode's folder, got {name!r}"
                )
            target = self.files / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
            except (OSError, ValueError) as error:
                raise DatasetError(f"the file {name!r} cannot be written: {error}") from error

    def read(self, name: str) -> str | None:
        """Return the text of a regular file; None if there is none.

        No part of the path may be a link, so a policy cannot pass off another file as its own. At
        most 1 MiB is read; bytes that are not UTF-8 become U+FFFD.

        Raises:
            EnvFault: The machine failed, such as by a lack of descriptors.
        """
        parts = PurePosixPath(name).parts
        opened: list[int] = []
        try:
            opened.append(os.open(self.files, os.O_RDONLY | os.O_DIRECTORY))
            for part in parts[:-1]:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                opened.append(os.open(part, flags, dir_fd=opened[-1]))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            opened.append(os.open(parts[-1], flags, dir_fd=opened[-1]))
            if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
                return None
            return os.read(opened[-1], _READ).decode(errors="replace")
        except (OSError, ValueError, IndexError) as error:
            if isinstance(error, OSError) and error.errno in _MACHINE:
                raise EnvFault(
                    f"a file of the episode cannot be read: {error!s:.200}",
                    kind=FaultKind.TRANSIENT,
                ) from error
            return None
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def lacks(self, name: str) -> bool:
        """Return whether nothing has that path: no file, and also no folder, link or pipe."""
        try:
            os.lstat(self.files / name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError):
            return False
        return False

    def close(self) -> None:
        """Remove the folder; processes that still write into it must be gone."""
        remove_tree(self.root)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _locked(path: Path) -> int | None:
    """Open and lock a file; the kernel unlocks it when this process ends. None if it is locked."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def abandoned() -> list[Path]:
    """Return the folders whose process was killed before it could remove them."""
    found: list[Path] = []
    for root in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # One without the file may be a second old and not locked yet.
        lock = _locked(root / _LOCK) if (root / _LOCK).is_file() else None
        if lock is not None:
            os.close(lock)
            found.append(root)
    return found


def remove_tree(root: Path) -> None:
    """Remove a folder of any depth; what cannot be removed stays.

    Each folder's subfolders are moved to the top before it is removed. No path becomes long and
    nothing recurses, so depth costs only time.
    """
    for _ in range(_TRIES):  # a process that ended late may have written once more
        try:
            top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            _flatten(top)
        finally:
            os.close(top)
        with contextlib.suppress(OSError):
            os.rmdir(root)
            return


def _flatten(top: int) -> None:
    waiting = _empty(top)
    moved = 0
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            os.chmod(name, 0o700, dir_fd=top)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
            try:
                for child in _empty(inner):
                    moved += 1
                    place = f"moved-{os.getpid()}-{moved}".encode()
                    with contextlib.suppress(OSError):
                        os.chmod(child, 0o700, dir_fd=inner)  # a move needs its own permission
                    os.rename(child, place, src_dir_fd=inner, dst_dir_fd=top)
                    waiting.append(place)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)


def _empty(folder: int) -> list[bytes]:
    """Unlink the files of an open folder and return the names of its subfolders."""
    folders: list[bytes] = []
    with os.scandir(folder) as entries:
        found = [
            (os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries
        ]
    for name, is_folder in found:
        if is_folder:
            folders.append(name)
        else:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
    return folders
