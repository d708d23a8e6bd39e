"""Wait until the processes of sandboxes have nothing left to do.

A machine under load can leave a process that was sent something without a core for seconds. Such a
process is ready to run, and the kernel says so.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from envkit_sandbox.watchdog import processes

_POLL_SECONDS: Final = 0.01
_BUSY: Final = ("R", "D")
"""States of a thread that runs, or would if it had a core or its disk."""
_FIELDS: Final = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


def await_idle(firsts: Sequence[int], seconds: float) -> bool:
    """Wait until no process of the sandboxes has anything to run, for at least a moment.

    Nothing is then under way between them either: a process that is sent something can run.

    Args:
        firsts: Process 1 of each sandbox, as seen from the host.
        seconds: Maximum seconds to wait.

    Returns:
        Whether they became idle in time.
    """
    until = time.monotonic() + seconds
    before = _threads(firsts)
    while True:
        now = _threads(firsts)
        if now == before and all(state[0] not in _BUSY for state in now.values()):
            return True
        if time.monotonic() > until:
            return False
        before = now
        time.sleep(_POLL_SECONDS)


def _threads(firsts: Iterable[int]) -> Mapping[tuple[int, str], list[str]]:
    """Return the state of each thread and how often it has run so far."""
    found: dict[tuple[int, str], list[str]] = {}
    for process in (one for first in firsts for one in processes(first)):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{process}/task/{thread}/status").read_text()
                    rows = [row for row in text.splitlines() if row.startswith(_FIELDS)]
                    found[process, thread] = [row.split()[1] for row in rows]
    return found
