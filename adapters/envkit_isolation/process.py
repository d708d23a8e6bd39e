"""The caller's side of worker processes: start, calls, crashes and shutdown.

Workers are forked by supervisors. The caller starts one supervisor for each set of imports.
"""

import atexit
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Final

from envkit.errors import ContractError, EnvFault, EnvkitError, FaultKind
from envkit_isolation.frames import Connection, Frame, FrameError
from envkit_isolation.supervisor import READY, SPAWN
from envkit_isolation.values import error_in

_CLOSE_S: Final = 3.0
"""Seconds that an environment may take to close."""
_END_S: Final = 5.0
"""Seconds that a killed process and its descendants may take to exit."""
_REPORT_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 4096
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envkit_isolation.supervisor import main; main()"
)
_SINGLE_THREAD: Final = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""A multi-threaded process cannot be forked safely, and workers share the cores."""
_HASH_SEED: Final = str(random.SystemRandom().randrange(1, 2**32))
"""The same for all workers: a replay in a new one iterates sets in the same order."""


class WorkerProcess:
    """One worker. Any thread may call `kill` and `close` at any time."""

    def __init__(self, key: str, hello: Frame, *, timeout_s: float | None) -> None:
        """Start a worker and have it build its environment.

        Args:
            key: What its supervisor imports, as JSON; workers with the same key share a supervisor.
            hello: What to build. The worker's answer replaces it in `hello`.
            timeout_s: Limit on starting and building, in seconds; None waits forever.

        Raises:
            EnvFault: The environment could not be built, or not in time.
            EnvkitError: What the environment's constructor raised.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._is_killed = False
        self._end_text: str | None = None
        self.pid: int | None = None
        self._channel, self._status = _spawn(key, deadline)
        self._connection = Connection(self._channel)
        try:
            self.hello = self._exchange(hello, deadline)
            pid = self.hello.data.get("pid")
            if type(pid) is int and pid > 1:  # never signal all processes
                self.pid = pid
        except BaseException:
            self.close()
            raise

    def call(self, frame: Frame, *, timeout_s: float | None = None) -> Frame:
        """Send a call and return the answer.

        Raises:
            EnvFault: The worker died, was closed, broke the protocol or did not answer in time,
                and is now unusable; or the environment raised one.
            EnvkitError: What the environment raised.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            return self._exchange(frame, deadline)

    def broken(self, error: Exception) -> EnvFault:
        """Kill the worker after a protocol error and return the fault to raise."""
        self.kill()
        return _crashed(f"the environment's process sent an invalid answer: {error}")

    def kill(self) -> None:
        """Kill the worker and its descendants; a running call fails."""
        self._is_killed = True
        # Shut down, not closed: another thread may wait on them, and a closed descriptor's number
        # may be reused under it. The status socket is still read for the worker's report.
        for end, how in ((self._status, socket.SHUT_WR), (self._channel, socket.SHUT_RDWR)):
            with suppress(OSError):
                end.shutdown(how)

    def close(self) -> None:
        """Close the environment if it is idle, kill the worker and wait for it to exit."""
        # An environment that is busy cannot be asked to close: it is killed.
        if self._lock.acquire(blocking=False):
            try:
                with suppress(EnvkitError):
                    self._exchange(Frame({"call": "close"}), time.monotonic() + _CLOSE_S)
            finally:
                self._lock.release()
        self.kill()
        with self._lock:
            # A second close finds it closed.
            if self._status.fileno() >= 0:
                self._end()
                self._channel.close()
                self._status.close()

    def _exchange(self, frame: Frame, deadline: float | None) -> Frame:
        if self._is_killed or self._end_text is not None or self._channel.fileno() < 0:
            raise _crashed("the environment's process has ended; build a fresh environment")
        try:
            # The worker is gone. Reading finds out how it ended.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._connection.send(frame)
            answer = self._connection.receive(lambda length: self._read(length, deadline))
        except FrameError as error:
            raise self.broken(error) from error
        except ContractError:
            raise  # nothing was sent
        except BaseException:
            self.kill()  # the rest of an answer must not be taken for the next one
            raise
        if "error" in answer.data:
            raise error_in(answer.data["error"])
        return answer

    def _read(self, length: int, deadline: float | None) -> bytes:
        ready = _wait([self._channel, self._status], deadline)
        if self._channel in ready:
            with suppress(ConnectionResetError):
                data = self._channel.recv(length)
                if data:
                    return data
        if not ready:
            self.kill()
            raise EnvFault(
                "the environment's process did not answer in time; it was killed",
                kind=FaultKind.TIMEOUT,
            )
        if self._is_killed:
            raise _crashed("the environment's process was closed during a call")
        raise _crashed(f"the environment's process {self._end()}")

    def _end(self) -> str:
        """Wait for the worker to exit and return how it ended."""
        if self._end_text is None:
            with suppress(OSError):
                self._status.shutdown(socket.SHUT_WR)
            report = self._report()
            if report is not None:
                reason = f" ({report['reason']})" if report["reason"] else ""
                self._end_text = _ending(report["exit_code"], reason, report["output"])
            else:
                # Its own process group is all that is left to know it by.
                self._end_text = "was lost with its supervisor"
                if self.pid is not None:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, signal.SIGKILL)
        return self._end_text

    def _report(self) -> dict[str, Any] | None:
        deadline, data = time.monotonic() + _END_S, b""
        with suppress(OSError):
            while len(data) < _REPORT_BYTES and _wait([self._status], deadline):
                part = self._status.recv(4096)
                if not part:
                    break
                data += part
        try:
            return json.loads(data)
        except ValueError:
            return None


class _SupervisorProcess:
    """A running supervisor; see `envkit_isolation.supervisor`."""

    def __init__(self, key: str, deadline: float | None) -> None:
        """Start it and wait until it has imported the environment.

        Raises:
            EnvFault: It exited first, or was not ready in time.
        """
        self._control, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the supervisor
        arguments = [json.dumps(sys.path), str(theirs.fileno()), key]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, *arguments],
                env={"PYTHONHASHSEED": _HASH_SEED, **os.environ, **_SINGLE_THREAD},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                # Ctrl-C in the terminal is for the caller, which ends the workers itself.
                start_new_session=True,
            )
        _sockets.add(self._control)
        try:
            if not _wait([self._control], deadline):
                raise EnvFault("importing the environment took too long", kind=FaultKind.TIMEOUT)
            with suppress(ConnectionError):
                if self._control.recv(1) == READY:
                    return
            code = self._process.wait(timeout=_END_S)
            raise _crashed(
                f"importing the environment failed: the process {_ending(code, '', self._tail())}"
            )
        except BaseException:
            self.kill()
            raise

    def spawn(self) -> tuple[socket.socket, socket.socket]:
        """Ask for a worker and return its channel and its status socket.

        Raises:
            OSError: The supervisor is gone.
        """
        channel, theirs = socket.socketpair()
        status, report = socket.socketpair()
        _sockets.update((channel, status))
        with theirs, report:
            try:
                socket.send_fds(self._control, [SPAWN], [theirs.fileno(), report.fileno()])
            except OSError:
                channel.close()
                status.close()
                raise
        return channel, status

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ask it to kill its workers and exit."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self.kill()

    def kill(self) -> None:
        """Kill it if it still runs; its workers die with it."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._output.close()

    def forget(self) -> None:
        """Forget it in a fork of the caller, which does not own it."""
        self._process.returncode = 0  # otherwise subprocess warns that it still runs
        self._output.close()

    def _tail(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _TAIL_BYTES))
        return self._output.read().decode("utf-8", "replace")


_supervisors: dict[str, _SupervisorProcess] = {}
_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()
"""File descriptors that a fork of the caller must close; else a worker outlives its caller."""
_locks: dict[str, threading.Lock] = {}


def close_supervisors() -> None:
    """Stop every supervisor of this process and its workers."""
    for key in list(_supervisors):
        with suppress(KeyError):
            _supervisors.pop(key).close()


def _forget() -> None:
    """In a forked child, leave the workers to the parent."""
    for running in _supervisors.values():
        running.forget()
    for end in list(_sockets):
        end.close()
    _supervisors.clear()
    _locks.clear()


atexit.register(close_supervisors)
os.register_at_fork(after_in_child=_forget)


def _spawn(key: str, deadline: float | None) -> tuple[socket.socket, socket.socket]:
    """Start a worker and return its channel and its status socket.

    Raises:
        EnvFault: Its supervisor did not start, or not in time.
    """
    # Per set of imports: one slow import must not hold up workers of other environments.
    with _locks.setdefault(key, threading.Lock()):
        running = _supervisors.get(key)
        if running is not None:
            if running.is_alive():
                with suppress(OSError):
                    return running.spawn()
            running.close()
        _supervisors[key] = running = _SupervisorProcess(key, deadline)
        try:
            return running.spawn()
        except OSError as error:
            raise _crashed(f"the environment's supervisor is gone: {error}") from error


def _wait(ends: list[socket.socket], deadline: float | None) -> list[socket.socket]:
    """Return the readable ones, or none after the deadline."""
    poller = select.poll()
    for end in ends:
        if end.fileno() >= 0:
            poller.register(end, select.POLLIN)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    ready = {descriptor for descriptor, _ in poller.poll(left)}
    return [end for end in ends if end.fileno() in ready]


def _crashed(message: str) -> EnvFault:
    return EnvFault(message, kind=FaultKind.CRASHED)


def _ending(code: int, reason: str, output: str) -> str:
    """Describe how a process ended, with its last output."""
    text = f"exited with code {code}"
    if code < 0:
        text = f"was killed by signal {-code}"
        with suppress(ValueError):
            text = f"was killed by {signal.Signals(-code).name}"
    printed = f"; its last output:\n{output.strip()}" if output.strip() else ""
    return text + reason + printed
