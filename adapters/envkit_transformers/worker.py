"""The engine's thread, the only one that uses the model and the scheduler.

Callers post commands; the thread runs them between two forwards. However the thread ends, every
request gets an answer.
"""

import threading
from collections import deque
from typing import Final

import torch

from envkit.errors import EngineFault, FaultKind
from envkit_transformers.scheduler import Command, Scheduler

_CLOSED: Final = "the embedded engine was closed; create a new one"


class Worker:
    """Runs a scheduler on a thread that starts with the first command."""

    def __init__(self, scheduler: Scheduler, *, threads: int | None) -> None:
        self._scheduler = scheduler
        self._threads = threads
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._end: tuple[str, FaultKind] | None = None
        """Set permanently when the thread stops."""

    def post(self, command: Command) -> None:
        """Post a command to the thread.

        Raises:
            EngineFault: The engine is closed, or its thread has died.
        """
        with self._wake:
            if self._end is None and self._thread is not None and not self._thread.is_alive():
                # A fork copies the engine without its thread.
                self._end = ("the embedded engine's thread is gone", FaultKind.CRASHED)
            if self._end is not None:
                raise EngineFault(self._end[0], kind=self._end[1])
            self._commands.append(command)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._live, name="envkit-transformers", daemon=True
                )
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """Stop the thread after the current forward; safe to call twice."""
        with self._wake:
            if self._end is None:
                self._end = (_CLOSED, FaultKind.PERMANENT)
            self._wake.notify()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _live(self) -> None:
        try:
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            while self._next_commands():
                if self._scheduler.has_work:
                    self._scheduler.step()
        except BaseException as error:  # noqa: BLE001  # nothing may end the thread silently
            message = f"the embedded engine crashed: {type(error).__name__}: {error}"
            with self._wake:
                self._end = (message, FaultKind.CRASHED)
        finally:
            self._answer_everybody()

    def _next_commands(self) -> bool:
        """Run posted commands, waiting when idle; False to stop."""
        with self._wake:
            while not (self._commands or self._end or self._scheduler.has_work):
                self._wake.wait()
            if self._end is not None:
                return False
        while self._commands:
            command = self._commands.popleft()
            try:
                command.run()
            except BaseException as error:
                command.fail(
                    EngineFault(f"{type(error).__name__}: {error}", kind=FaultKind.CRASHED)
                )
                raise
        return True

    def _answer_everybody(self) -> None:
        with self._wake:
            message, kind = self._end or (_CLOSED, FaultKind.PERMANENT)
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command.fail(EngineFault(message, kind=kind))
        self._scheduler.fail_all(message, kind)
