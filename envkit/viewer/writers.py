"""Whether another process has locked a file for writing.

It reads the list of locks, because trying to lock the file could make a starting writer fail.
"""

import os
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
"""Linux lists the locks of all processes on this machine here."""


def is_locked(found: os.stat_result) -> bool:
    """Return whether a writer holds the file's lock; False if the system does not list locks.

    Args:
        found: Status of the file.
    """
    try:
        lines = _LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    device = found.st_dev
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{found.st_ino}"
    return any({"FLOCK", "WRITE", place} <= set(line.split()) for line in lines)
