"""Which processes live, for tests that must leave none."""

import os
import time
from collections.abc import Sequence
from pathlib import Path


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pids: Sequence[int], seconds: float = 10.0) -> list[int]:
    """Return which are left."""
    end = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def children() -> list[int]:
    """Return the child processes of this one, whichever thread started them."""
    found: list[int] = []
    for listing in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        found += [int(child) for child in listing.read_text().split()]
    return found
