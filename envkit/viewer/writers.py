"""Whether another process has a file locked for writing.

Trying the lock would answer too, but a writer that starts at that moment would be refused.
"""

import os
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
"""Linux lists every lock that this machine's processes have."""


def is_locked(found: os.stat_result) -> bool:
    """Return whether a writer has the file's lock; False if the system does not tell.

    Args:
        found: Of the file.
    """
    try:
        lines = _LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    device = found.st_dev
    place = f"{os.major(device):02x}:{os.minor(device):02x}:{found.st_ino}"
    return any({"FLOCK", "WRITE", place} <= set(line.split()) for line in lines)
