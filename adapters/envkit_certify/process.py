"""Start workers, query them, and kill those that hang."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from envkit.closing import Closing
from envkit.errors import ContractError

_REPLAY_LIMIT_S: Final = 100.0
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from envkit_certify.worker import main; main()"
)
_TAIL: Final = 300
_JOIN_S: Final = 2.0

Script = list[dict[str, Any]]
"""Episodes to replay: `{"seed": n, "replies": [...]}`."""


class WorkerEnded(Exception):
    """A worker died or was killed; the argument says how."""


class Worker(Closing):
    """A process that answers requests in order."""

    def __init__(self, hash_seed: int, *, leads_group: bool = True) -> None:
        """Start a process.

        Args:
            hash_seed: The process's PYTHONHASHSEED.
            leads_group: Whether the process leads its own group. Ctrl-C then reaches only the
                caller, and closing the worker also kills its children. A worker's own worker stays
                in its parent's group.
        """
        self._leads_group = leads_group
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            start_new_session=leads_group,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._tail = ""
        self._readers = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._drain)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _drain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._tail = (self._tail + line)[-_TAIL:]

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def answer(self, limit_s: float) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            WorkerEnded: The worker died, or was killed after missing the time limit.
        """
        try:
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            raise WorkerEnded(
                f"no answer within {limit_s:g} seconds: it hangs, or needs a longer time limit or "
                "a smaller max_turns"
            ) from None
        if line is None:
            code = self._process.wait()
            self._readers[1].join(timeout=1)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            last = self._tail.strip().splitlines()[-1:]
            raise WorkerEnded(": ".join([f"the environment ended its process with {how}", *last]))
        return json.loads(line)

    def close(self) -> None:
        """Kill the process, and its children if it leads a group."""
        with suppress(ProcessLookupError, PermissionError):
            if self._leads_group and sys.platform != "win32":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=_JOIN_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()


class FreshProcess(Closing):
    """Replays scripts in a process with another hash seed, started on first use."""

    def __init__(self) -> None:
        """Prepare without starting a process."""
        self._worker: Worker | None = None

    def rows(self, target: str, kwargs: Mapping[str, Any], script: Script) -> list[list[str]]:
        """Return the rows of each episode of the script.

        Raises:
            ContractError: The environment failed there.
        """
        if self._worker is None:
            own = int(os.environ.get("PYTHONHASHSEED", "0").replace("random", "0"))
            self._worker = Worker(own + 1, leads_group=False)
        self._worker.ask({"rows": {"target": target, "kwargs": dict(kwargs), "script": script}})
        try:
            answer = self._worker.answer(_REPLAY_LIMIT_S)
        except WorkerEnded as error:
            self.close()
            raise ContractError(f"a replay in a fresh process failed: {error}") from error
        if "error" in answer:
            raise ContractError(f"a replay in a fresh process failed: {answer['error']}")
        return answer["rows"]

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
