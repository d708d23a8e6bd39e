"""Run a command, and kill everything it started when it ends.

Usage: `python -ISB supervise.py BYTES INPUT COMMAND...`. INPUT is the number of an open file, which
is the command's standard input. The supervisor adopts every descendant,
including those that left their process group. When the command ends, when standard input closes
(the parent is gone), on SIGTERM, or when the folder above the working directory holds more than
BYTES, it kills all of them. It imports nothing from envkit, so it starts quickly.

Other systems have no such adoption. There it kills the command's process group and what descends
from it at that moment; a process that left both before goes on.
"""

import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_LOOK_S = 1.0
"""The least time in seconds between two checks of the folder."""
_NOT_STARTED = 127


def main(argv: list[str]) -> int:
    """Run the command and return its exit status, or 128 plus the number of a signal.

    A command that wrote too much, to one file or many, gets the status of SIGXFSZ.
    """
    most, given, command = int(argv[0]), int(argv[1]), argv[2:]
    _prctl(_SET_CHILD_SUBREAPER, 1)
    stop_read, stop_write = os.pipe()
    os.set_blocking(stop_write, False)
    signal.set_wakeup_fd(stop_write)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    # A single file can fill the disk between two looks at the folder.
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        child = subprocess.Popen(
            command,
            stdin=given,
            start_new_session=True,
            preexec_fn=lambda: _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL),  # noqa: PLW1509
        )
    except OSError as error:
        print(f"cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return _NOT_STARTED
    os.close(given)
    try:
        return _wait(child, stop_read, most)
    finally:
        _kill_descendants()
        if sys.platform != "linux":
            with suppress(OSError):  # nothing is left of it
                os.killpg(child.pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wait(child: "subprocess.Popen[bytes]", stop: int, most: int) -> int:
    """Wait for the command, or for a reason to kill it."""
    due = time.monotonic() + _LOOK_S
    while child.poll() is None:
        ready, _, _ = select.select([stop, 0], [], [], max(0.0, due - time.monotonic()))
        started = time.monotonic()
        if started >= due:
            if _size("..") > most:
                return 128 + signal.SIGXFSZ
            took = time.monotonic() - started
            due = time.monotonic() + max(_LOOK_S, 20 * took)  # a large tree takes long
        if 0 in ready and not os.read(0, 1):
            return 128 + signal.SIGKILL
        if stop in ready and any(n != signal.SIGCHLD for n in os.read(stop, 64)):
            return 128 + signal.SIGKILL
    code = child.returncode
    return 128 - code if code < 0 else code


def _size(folder: str) -> int:
    """Return the bytes that a folder takes on the disk, however deeply it is nested."""
    total, todo = 0, [folder]
    while todo:
        try:
            for entry in os.scandir(todo.pop()):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
        except OSError:  # it is gone, or its path has become too long
            continue
    return total


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
    parents = _parents()
    found, todo = [], [os.getpid()]
    while todo:
        parent = todo.pop()
        children = [pid for pid, its_parent in parents.items() if its_parent == parent]
        found += children
        todo += children
    return found


def _parents() -> dict[int, int]:
    """Return the parent of each process."""
    if sys.platform != "linux":
        command = ["/bin/ps", "-A", "-o", "pid=,ppid="]
        listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
        return {int(pid): int(parent) for pid, parent in map(str.split, listed.splitlines())}
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    return parents


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
