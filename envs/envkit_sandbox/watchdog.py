"""Limit the memory of sandboxes, even without a delegated control group.

One thread checks every watched sandbox. If one exceeds its limit, it kills the process that uses
the most memory, as the kernel does when memory runs out.
"""

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SECONDS: Final = 0.25
_MIB: Final = 1 << 20
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, kw_only=True)
class Memory:
    """A watched sandbox."""

    first: int
    """Its process 1, as seen from the host."""
    limit_mib: int
    kills: int = 0
    """Processes killed so far."""


class _Watchdog:
    """Checks the watched sandboxes from one thread, which starts with the first."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Watch nothing."""
        self._lock = threading.Lock()
        self._watched: list[Memory] = []
        self._thread: threading.Thread | None = None

    def add(self, memory: Memory) -> None:
        with self._lock:
            self._watched.append(memory)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="envkit-memory", daemon=True
                )
                self._thread.start()

    def _look(self) -> None:
        wake = threading.Event()
        while True:
            wake.wait(_SECONDS)
            with self._lock:
                self._watched = [one for one in self._watched if _is_alive(one.first)]
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched)
            for one in watched:
                _bound(one)


def watch(first: int, *, limit_mib: int) -> Memory:
    """Limit the memory of a sandbox until it ends.

    Args:
        first: Its process 1, as seen from the host.
        limit_mib: Maximum memory of all its processes, with shared pages counted once.
    """
    memory = Memory(first=first, limit_mib=limit_mib)
    _watchdog.add(memory)
    return memory


def processes(first: int) -> list[int]:
    """Return a process and all its descendants; for process 1, the whole sandbox."""
    found = [first]
    for process in found:
        with contextlib.suppress(OSError, ValueError):
            for task in os.listdir(f"/proc/{process}/task"):
                children = Path(f"/proc/{process}/task/{task}/children").read_text()
                found.extend(map(int, children.split()))
    return found


def proportional_mib(process: int) -> float:
    """Return the memory of a process, with shared pages divided among their users.

    Root without SYS_PTRACE cannot read that of another user's process; then shared memory counts in
    full, and files do not count.
    """
    for name, fields in (("smaps_rollup", ("Pss:",)), ("status", ("RssAnon:", "RssShmem:"))):
        with contextlib.suppress(OSError, ValueError, IndexError):
            rows = Path(f"/proc/{process}/{name}").read_text().splitlines()
            found = [int(row.split()[1]) for row in rows if row.startswith(fields)]
            if found:
                return sum(found) / 1024
    return 0.0


def _resident_mib(process: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE / _MIB
    return 0.0


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _bound(memory: Memory) -> None:
    listed = processes(memory.first)
    # Resident pages are cheap to read and never below the proportional size.
    if sum(map(_resident_mib, listed)) <= memory.limit_mib:
        return
    sizes = {process: proportional_mib(process) for process in listed}
    if sum(sizes.values()) <= memory.limit_mib or len(sizes) < 2:
        return
    largest = max((process for process in sizes if process != memory.first), key=sizes.__getitem__)
    with contextlib.suppress(ProcessLookupError):
        os.kill(largest, signal.SIGKILL)
        memory.kills += 1


_watchdog: Final = _Watchdog()
os.register_at_fork(after_in_child=_watchdog.reset)
