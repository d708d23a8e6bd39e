"""Help for tests of real desktops: rows of tasks, and what is left on the machine."""

import os
import time
from pathlib import Path
from typing import Any


def children() -> set[int]:
    """Return the processes that descend from this one, zombies included."""
    from envkit_sandbox.watchdog import processes

    return set(processes(os.getpid())) - {os.getpid()}


def folders(driver: int | None = None) -> list[Path]:
    """Return the session folders that remain; one exists briefly while a session starts.

    Args:
        driver: The process that started the sessions; None is this one.
    """
    pattern = f"envkit-desk-{driver or os.getpid()}-*"
    found = _folders(pattern)
    until = time.monotonic() + 120.0
    while found and time.monotonic() < until:
        time.sleep(0.1)
        found &= _folders(pattern)
    return sorted(found)


def _folders(pattern: str) -> set[Path]:
    return {one for place in ("/dev/shm", "/tmp") for one in Path(place).glob(pattern)}


def row(family: str, *, level: int = 1, draw: int = 0) -> dict[str, Any]:
    """Return a task."""
    return {"id": f"{family}/{level}/{draw}", "family": family, "level": level, "draw": draw}
