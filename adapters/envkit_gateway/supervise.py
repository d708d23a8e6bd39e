"""Run a command so that nothing it starts outlives it: `python -ISB supervise.py COMMAND...`.

The supervisor adopts every descendant, also those that left their process group. When the command
ends, when standard input closes (the parent is gone) or on SIGTERM, it kills all of them. Linux
only. It imports nothing of envkit, so that it starts quickly.
"""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time

_SET_CHILD_SUBREAPER = 36
_MAX_FILE = 1 << 30
"""Bytes of the largest file that the command may write."""
_NOT_STARTED = 127


def main(argv: list[str]) -> int:
    """Run the command and return its exit status, 128 plus the number for a signal."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop_read, stop_write = os.pipe()
    os.set_blocking(stop_write, False)
    signal.set_wakeup_fd(stop_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE, _MAX_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"cannot start {argv[0]!r}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return _NOT_STARTED
    status = _wait(child, stop_read)
    _kill_descendants()
    return status


def _wait(child: "subprocess.Popen[bytes]", stop: int) -> int:
    """Wait for the command, or for a reason to kill it."""
    while child.poll() is None:
        ready, _, _ = select.select([stop, 0], [], [])
        if 0 in ready and not os.read(0, 1):
            return 128 + signal.SIGKILL
        if stop in ready and any(n != signal.SIGCHLD for n in os.read(stop, 64)):
            return 128 + signal.SIGKILL
    code = child.returncode
    return 128 - code if code < 0 else code


def _kill_descendants() -> None:
    """Kill every process that descends from this one, however fast it forks."""
    for _ in range(200):
        found = _descendants()
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found, todo = [], [os.getpid()]
    while todo:
        parent = todo.pop()
        children = [pid for pid, its_parent in parents.items() if its_parent == parent]
        found += children
        todo += children
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
