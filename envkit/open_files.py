"""Opening of regular files, locks, and the rules for open files of each system.

Windows locks ranges of bytes, and nobody else may read them: the lock is of one byte far past the
end of the file. It refuses to replace or delete an open file, and cannot open a folder.
"""

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO, Final

BUSY: Final = (BlockingIOError, PermissionError)
"""What `lock` raises if another descriptor has the lock."""
OPENS_AS_BYTES: Final = getattr(os, "O_BINARY", 0)
"""Flag of `os.open` without which Windows changes line ends."""
NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open` that refuses a link; 0 on Windows, which has none."""
NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)
"""Flag of `os.open` that waits for nobody at the other end of a pipe; Windows has no such pipes."""
CAN_MOVE_OPEN: Final = sys.platform != "win32"
"""Whether an open file can be replaced and deleted, and a folder be opened."""


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a file for reading; a run folder from anywhere may hold pipes, devices and links.

    Args:
        path: The file.
        follow: Whether it may be a symbolic link.

    Raises:
        OSError: It cannot be read or is not a regular file.
    """
    if not follow and not NO_FOLLOW and path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    # Opening a pipe waits for a writer otherwise, before anybody could see what it is.
    flags = os.O_RDONLY | OPENS_AS_BYTES | NO_WAIT
    descriptor = os.open(path, flags if follow else flags | NO_FOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


if sys.platform == "win32":
    import msvcrt

    _FAR: Final = 1 << 40

    def lock(descriptor: int, *, waits: bool = False) -> None:
        """Lock a file until it is closed; `waits` has no use here."""
        _change(descriptor, msvcrt.LK_NBLCK)

    def close(descriptor: int) -> None:
        """Unlock and close a file; Windows itself may unlock a closed one late."""
        with contextlib.suppress(OSError):  # it was not locked
            _change(descriptor, msvcrt.LK_UNLCK)
        os.close(descriptor)

    def _change(descriptor: int, how: int) -> None:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, _FAR, os.SEEK_SET)  # the C library's range begins here
            msvcrt.locking(descriptor, how, 1)
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
else:
    import fcntl

    close = os.close

    def lock(descriptor: int, *, waits: bool = False) -> None:
        """Lock a file until it is closed.

        Args:
            descriptor: The file.
            waits: Wait until it is free, instead of raising `BUSY`.

        Raises:
            OSError: The file is locked (`BUSY`), or its file system has no locks.
        """
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
