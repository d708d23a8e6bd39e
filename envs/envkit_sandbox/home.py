"""Read a folder that a policy has written, without following links out of it.

The kernel resolves each path with `openat2` beneath the folder and without symbolic links. A FIFO,
a device or a socket has no content, and opening one never blocks. What cannot be read need not be
absent: `exists` says what is.
"""

import ctypes
import errno
import os
import stat
import struct
from typing import Final

from envkit.closing import Closing
from envkit.errors import EnvFault, FaultKind

MAX_BYTES: Final = 16 << 20
"""Maximum bytes read from a file by default."""
MAX_NAMES: Final = 10_000
"""Maximum number of names listed for a folder."""
_OPENAT2: Final = 437
"""The number of the system call on every architecture."""
_BENEATH: Final = 0x08 | 0x04
"""RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS."""
_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_UNREADABLE: Final = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.EXDEV,
        errno.EACCES,
        errno.EAGAIN,  # a process of the policy holds a lease on the file
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.ENXIO,
        errno.ENODEV,
        errno.EINVAL,
        errno.EISDIR,
    }
)
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Home(Closing):
    """A folder held open; it can be read until `close`, even if its name changes."""

    def __init__(self, folder: int) -> None:
        """Take a folder.

        Args:
            folder: Its open descriptor, which `close` closes.
        """
        self._folder = folder

    def read(self, path: str, *, limit: int = MAX_BYTES) -> bytes | None:
        """Return the first bytes of a regular file; None if there is none that can be read.

        Args:
            path: Relative to the folder.
            limit: Maximum bytes to return.

        Raises:
            EnvFault: The file system fails.
        """
        found = self._open(path, os.O_RDONLY)
        if found is None:
            return None
        if not stat.S_ISREG(os.fstat(found).st_mode):  # `open` raises on a folder
            os.close(found)
            return None
        with open(found, "rb", buffering=0) as file:
            parts: list[bytes] = []
            while limit > 0 and (part := file.read(min(limit, 1 << 20))):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)

    def exists(self, path: str) -> bool:
        """Return whether anything may be at a path; False only if it is certain that nothing is.

        Raises:
            EnvFault: The file system fails.
        """
        number = self._descriptor(path, os.O_PATH | os.O_NOFOLLOW)
        if number >= 0:
            os.close(number)
            return True
        return -number not in _NOTHING_THERE

    def names(self, folder: str = "") -> tuple[str, ...] | None:
        """Return the sorted names in a folder, at most `MAX_NAMES`; None if it cannot be listed.

        Raises:
            EnvFault: The file system fails.
        """
        found = self._open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        if found is None:
            return None
        try:
            with os.scandir(found) as entries:
                return tuple(
                    sorted(entry.name for entry, _ in zip(entries, range(MAX_NAMES), strict=False))
                )
        finally:
            os.close(found)

    def close(self) -> None:
        """Close the folder."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _open(self, path: str, flags: int) -> int | None:
        found = self._descriptor(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
        return None if found < 0 else found

    def _descriptor(self, path: str, flags: int) -> int:
        """Open a path; a failure that the policy can cause is returned, with a minus sign."""
        try:
            name = os.fsencode(path)
        except UnicodeEncodeError:
            return -errno.ENOENT
        if b"\0" in name:
            return -errno.ENOENT
        how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, _BENEATH)
        found = _libc.syscall(_OPENAT2, self._folder, name, how, len(how))
        if found >= 0:
            return int(found)
        number = ctypes.get_errno()
        if number in _UNREADABLE:
            return -number
        raise EnvFault(
            f"the file {path!r} of the session cannot be read: {os.strerror(number)}",
            kind=FaultKind.CRASHED,
        )
