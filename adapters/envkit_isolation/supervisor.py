"""The supervisor: forks the workers of one environment and cleans up after them.

It imports the environment's modules once, stays single-threaded and runs no environment, so forking
it is safe and fast. A caller requests a worker by sending two sockets: the worker's channel and a
status socket. Closing the status socket kills the worker. When a worker exits for any reason, the
supervisor kills all of its descendants and reports on the status socket how it ended.

Orphans of a living worker become children of the worker, which is a subreaper. When the worker dies
they become children of the supervisor. A child of the supervisor that is not a worker is therefore
such an orphan.
"""

import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, Final

from envkit.registration import spec
from envkit_isolation.worker import CHANNEL_FD, become_subreaper, run_worker

MAX_PROCESSES: Final = 256
"""How many descendants of a worker may run at once."""
IDLE_S: Final = 60.0
"""A supervisor without workers exits after this many seconds."""
SPAWN: Final = b"s"
READY: Final = b"r"
_WATCH_S: Final = 0.2
_SWEEP_S: Final = 0.01
_SWEEP_PATIENCE_S: Final = 2.0
"""Seconds that a report waits for killed descendants to exit."""
_TAIL_BYTES: Final = 4096
_MAX_READS: Final = 16
_COLD_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envkit_isolation.worker import run_worker; run_worker(int(sys.argv[2]))"
)


@dataclass(slots=True, kw_only=True)
class _Worker:
    pid: int
    status: socket.socket
    output: int
    """File descriptor of the worker's standard output and error; -1 when closed."""
    tail: bytes = b""
    is_killed: bool = False
    reason: str = ""
    """Why the supervisor killed it, if it did."""
    exit_code: int | None = None
    """Negative for a signal; None while it lives."""
    ended_at: float = field(default=0.0)


def main() -> None:
    """Serve one caller until it goes away. Started by `envkit_isolation.process`."""
    # It ends when its caller closes the control socket, and never before its workers.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[2]))
    become_subreaper()
    _preload(json.loads(sys.argv[3]))
    gc.collect()
    gc.freeze()  # keeps pages shared with forks: later collections skip frozen objects
    with suppress(OSError):
        control.sendall(READY)
        _Supervisor(control).run()


def _preload(wanted: Mapping[str, Any]) -> None:
    """Import the environment. The worker imports it again and reports any error."""
    with suppress(BaseException):
        if wanted["env_id"] is not None:
            place = spec(wanted["env_id"]).entry_point
            if isinstance(place, str):
                resolve_name(place)
        for name in wanted["modules"]:
            import_module(name)


class _Supervisor:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, _Worker] = {}
        self._is_closing = False
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._has_orphans = False
        self._watched_at = 0.0

    def run(self) -> None:
        """Serve until no worker is left and the caller is gone or idle."""
        while True:
            if not self._workers and self._is_closing:
                return
            ready = self._poll()
            if not ready and not self._workers and not self._has_orphans:
                return
            for descriptor in ready:
                self._handle(descriptor)
            self._reap()
            self._watch()

    def _poll(self) -> list[int]:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        if not self._is_closing:
            poller.register(self._control, select.POLLIN)
        for worker in self._workers.values():
            if not worker.is_killed:
                poller.register(worker.status, select.POLLIN)
            if worker.output >= 0:
                poller.register(worker.output, select.POLLIN)
        wait = _WATCH_S if self._workers else IDLE_S
        if self._has_orphans:
            wait = _SWEEP_S
        return [descriptor for descriptor, _ in poller.poll(wait * 1000)]

    def _handle(self, descriptor: int) -> None:
        if descriptor == self._wake:
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
        elif descriptor == self._control.fileno():
            self._take_request()
        for worker in self._workers.values():
            if descriptor == worker.output:
                _read_output(worker)
            elif descriptor == worker.status.fileno() and not worker.is_killed:
                _kill(worker)

    def _take_request(self) -> None:
        data, received, _, _ = socket.recv_fds(self._control, 1, 2)
        if data == SPAWN and len(received) == 2:
            channel, status = received
            self._spawn(channel, socket.socket(fileno=status))
            return
        self._is_closing = True
        for worker in self._workers.values():
            _kill(worker)

    def _spawn(self, channel: int, status: socket.socket) -> None:
        output, written = os.pipe()
        os.set_blocking(output, False)
        supervisor = os.getpid()
        # A fork has only the thread that forked; locks of the others would stay locked in it.
        if _is_single_threaded():
            pid = os.fork()
            if pid == 0:
                try:
                    self._become_worker(channel, written)
                    run_worker(supervisor)
                finally:
                    # Never back into the supervisor's loop, which is the parent's.
                    os._exit(1)
        else:
            pid = _spawn_cold(channel, written, supervisor)
        os.close(channel)
        os.close(written)
        self._workers[pid] = _Worker(pid=pid, status=status, output=output)

    def _become_worker(self, channel: int, written: int) -> None:
        os.setsid()
        # Out of the way first: the channel may have one of the numbers that are overwritten.
        high = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, CHANNEL_FD + 1)
        for target in (1, 2):
            os.dup2(written, target)
        os.dup2(high, CHANNEL_FD, inheritable=False)
        # Otherwise the sockets of other workers stay open in this one, and their ends go unnoticed.
        os.closerange(CHANNEL_FD + 1, os.sysconf("SC_OPEN_MAX"))
        # The descriptors are closed already; the objects must not close their numbers again.
        self._control.detach()
        for worker in self._workers.values():
            worker.status.detach()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                worker = self._workers.get(pid)
                if worker is not None and worker.exit_code is None:
                    worker.exit_code = os.waitstatus_to_exitcode(status)
                    worker.ended_at = time.monotonic()
                    _kill_group(pid)
        self._has_orphans = self._sweep()
        for worker in [w for w in self._workers.values() if w.exit_code is not None]:
            # A leftover in an uninterruptible call cannot be killed now, and the caller waits for
            # the report.
            late = time.monotonic() - worker.ended_at > _SWEEP_PATIENCE_S
            if late or not self._has_orphans:
                self._report(worker)

    def _sweep(self) -> bool:
        """Kill leftovers of dead workers: every non-worker child. False if there was none."""
        found = False
        for pid in children_of(os.getpid()):
            if self._is_orphan(pid):
                found = True
                with suppress(ProcessLookupError):
                    group = os.getpgid(pid)
                    if group != os.getpgrp():
                        os.killpg(group, signal.SIGKILL)
                    os.kill(pid, signal.SIGKILL)
        return found

    def _is_orphan(self, pid: int) -> bool:
        worker = self._workers.get(pid)
        return worker is None or worker.exit_code is not None

    def _report(self, worker: _Worker) -> None:
        _read_output(worker)
        report = {
            "exit_code": worker.exit_code,
            "reason": worker.reason,
            "output": worker.tail.decode("utf-8", "replace"),
        }
        with suppress(OSError):
            worker.status.sendall(json.dumps(report).encode())
        worker.status.close()
        if worker.output >= 0:
            os.close(worker.output)
        del self._workers[worker.pid]

    def _watch(self) -> None:
        now = time.monotonic()
        if now - self._watched_at < _WATCH_S:
            return
        self._watched_at = now
        for worker in self._workers.values():
            if worker.exit_code is None and not worker.is_killed:
                count = sum(1 for _ in descendants(worker.pid, limit=MAX_PROCESSES + 1))
                if count > MAX_PROCESSES:
                    worker.reason = f"it had over {MAX_PROCESSES} processes running at once"
                    _kill(worker)


def _ignore(number: int, frame: object) -> None:
    """Do nothing: the signal takes effect through the wake-up pipe."""


def _spawn_cold(channel: int, written: int, supervisor: int) -> int:
    """Start a worker in a new interpreter because an import started threads."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-u", "-c", _COLD_START, json.dumps(sys.path), str(supervisor)],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, written, 1),
                (os.POSIX_SPAWN_DUP2, written, 2),
                (os.POSIX_SPAWN_DUP2, channel, CHANNEL_FD),
            ],
            setsid=True,
        )
    finally:
        os.close(nothing)


def _is_single_threaded() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _read_output(worker: _Worker) -> None:
    """Keep the tail of the worker's output."""
    if worker.output < 0:
        return
    try:
        for _ in range(_MAX_READS):
            data = os.read(worker.output, 65536)
            if not data:
                break
            worker.tail = (worker.tail + data)[-_TAIL_BYTES:]
        else:
            return  # the worker prints faster than one call can read
    except BlockingIOError:
        return
    except OSError:
        pass
    os.close(worker.output)
    worker.output = -1


def _kill(worker: _Worker) -> None:
    worker.is_killed = True
    if worker.exit_code is None:
        _kill_group(worker.pid)
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process; empty if /proc does not list them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    return found


def descendants(pid: int, *, limit: int) -> Iterator[int]:
    """Yield up to `limit` live descendants of a process."""
    waiting, count = children_of(pid), 0
    while waiting and count < limit:
        child = waiting.pop()
        count += 1
        yield child
        waiting += children_of(child)
