"""Other processes: Python's output in one, and which live, for tests that must leave none."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_python(
    *arguments: object,
    typed: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600,
) -> str:
    """Run Python in its own process and return what it printed; it must not fail.

    Args:
        arguments: As on the command line, such as "-c" and code, or a script.
        typed: Standard input; None is empty.
        cwd: Where it runs; None is the current folder.
        env: Its variables; None is those of this process.
        timeout_s: Seconds until it is killed.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=typed or "",
        cwd=cwd,
        env=env,
        timeout=timeout_s,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pids: Sequence[int], seconds: float = 120.0) -> list[int]:
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
