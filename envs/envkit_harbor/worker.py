"""The worker process that drives Harbor, as the driver sees it.

Harbor needs Python 3.12 and brings hundreds of megabytes, so it runs in a process whose
interpreter may be that of another virtual environment. One worker serves all environments of a
process that name the same interpreter. It ends with its driver, however that ends, and its
sandboxes end with it.
"""

import atexit
import itertools
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit_harbor.faults import fault_of
from envkit_harbor.leftovers import PODMAN, TEMPORARY, claim, remove, sweep

_PROGRAM: Final = Path(__file__).with_name("harbor_worker")
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 20.0
_KEPT_LINES: Final = 20
_PASSED: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "USER", "XDG_RUNTIME_DIR"),
    *("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "DOCKER_HOST", "DOCKER_CONFIG"),
)
"""Variables of the driver that the worker gets. A task's file may read the worker's variables, so
it gets no others unless they are named."""


class Worker:
    """A started worker; safe to use from several threads."""

    def __init__(self, python: str, variables: Sequence[str]) -> None:
        """Start it.

        Args:
            python: Its interpreter.
            variables: Names of the driver's variables that it gets in addition.

        Raises:
            ConfigurationError: The interpreter cannot be started, or a variable is not set.
            MissingDependencyError: It lacks Harbor.
            EnvFault: It did not answer.
        """
        sweep()
        self._claim = claim()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._is_over = False
        ready = self._expect(0)
        try:
            self._process = subprocess.Popen(
                [
                    *(python, "-I", str(_PROGRAM), "--folder", str(self._claim.folder)),
                    *("--driver", str(os.getpid())),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(python, self._claim.folder, variables),
                pass_fds=(self._claim.lock,),
                start_new_session=True,  # an interrupt at the terminal is the driver's to handle
            )
        except OSError as error:
            remove(self._claim)
            raise ConfigurationError(
                f"python must be an interpreter of Python 3.12 or newer that has the package "
                f"'harbor', got {python!r}: {error.strerror}"
            ) from error
        for target in (self._read_replies, self._read_errors):
            threading.Thread(target=target, name="envkit-harbor", daemon=True).start()
        try:
            self.version: str = self._result(ready, _START_SECONDS, "the worker did not start")[
                "harbor"
            ]
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it can take requests."""
        return not self._is_over and self._process.poll() is None

    @property
    def process(self) -> int:
        """Its process id."""
        return self._process.pid

    def note_containers(self) -> None:
        """Let whoever sweeps the worker's folder look for its containers too."""
        (self._claim.folder / PODMAN).touch()

    def ask(self, order: Mapping[str, Any], seconds: float, what: str) -> dict[str, Any]:
        """Send a request and return its result.

        Args:
            order: `do` and its arguments.
            seconds: The most that it may take; a worker that is later is ended.
            what: What a failure is called.

        Raises:
            EnvFault: It failed, or the worker is gone.
            MissingDependencyError: Something is not installed.
        """
        number = next(self._ids)
        answer = self._expect(number)
        line = json.dumps({"id": number, **order}).encode() + b"\n"
        try:
            with self._lock:
                assert self._process.stdin is not None
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: closed
            raise self._lost() from error
        if self._is_over:  # nobody reads replies any more
            raise self._lost()
        return self._result(answer, seconds, what)

    def close(self) -> None:
        """End the worker, its sessions and its folder."""
        self._is_over = True
        with suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        remove(self._claim)

    def _expect(self, number: int) -> "Future[dict[str, Any]]":
        answer: Future[dict[str, Any]] = Future()
        self._waiting[number] = answer
        return answer

    def _result(
        self, answer: "Future[dict[str, Any]]", seconds: float, what: str
    ) -> dict[str, Any]:
        try:
            reply = answer.result(seconds)
        except TimeoutError:
            self._is_over = True
            self._process.kill()
            raise EnvFault(
                f"{what}: Harbor's worker gave no answer within {seconds:g} s",
                kind=FaultKind.TIMEOUT,
            ) from None
        if "error" in reply:
            raise fault_of(reply["error"], what)
        return reply["ok"]

    def _read_replies(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as replies:
            for line in replies:
                reply: dict[str, Any] = json.loads(line)
                self._waiting.pop(reply["id"]).set_result(reply)
        self._is_over = True
        for number in list(self._waiting):
            self._waiting.pop(number).set_exception(self._lost())

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line.decode("utf-8", "replace").rstrip())

    def _lost(self) -> EnvFault:
        said = " ".join(self._said)[-400:]
        return EnvFault(
            f"Harbor's worker is gone{': ' + said if said else ''}", kind=FaultKind.CRASHED
        )


def _environment(python: str, folder: Path, variables: Sequence[str]) -> dict[str, str]:
    """Return the worker's variables. Programs beside its interpreter come first.

    Raises:
        ConfigurationError: A named one is not set.
    """
    if missing := [name for name in variables if name not in os.environ]:
        raise ConfigurationError(f"variables must name variables that are set, got {missing}")
    given = {name: os.environ[name] for name in (*_PASSED, *variables) if name in os.environ}
    return {
        **given,
        "PATH": os.pathsep.join([os.path.dirname(python), given.get("PATH", os.defpath)]),
        "TMPDIR": str(folder / TEMPORARY),
        "HARBOR_TELEMETRY": "off",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class _Workers:
    """The workers of this process, by interpreter and variables."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Know none: those of a forked process are its parent's."""
        self._lock = threading.Lock()
        self._known: dict[tuple[str, tuple[str, ...]], Worker] = {}

    def get(self, python: str | None, variables: Sequence[str]) -> Worker:
        """Return a worker that runs, starting one if needed."""
        key = python or sys.executable, tuple(variables)
        with self._lock:
            found = self._known.get(key)
            if found is not None and found.is_alive:
                return found
            if found is not None:
                found.close()
            self._known[key] = Worker(*key)
            return self._known[key]

    def close(self) -> None:
        """End all."""
        with self._lock:
            known, self._known = self._known, {}
        for worker in known.values():
            worker.close()


_workers: Final = _Workers()
worker_for: Final = _workers.get
"""Return this process's worker of an interpreter (None: this one) and variables."""
close_workers: Final = _workers.close
"""End this process's workers; the next session starts another one."""
os.register_at_fork(after_in_child=_workers.forget)
atexit.register(close_workers)
