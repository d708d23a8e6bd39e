"""Signals during a rollout: the first drains it, later ones stop it sooner."""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from envkit.cli.console import discard
from envkit.rollout.interrupt import Interrupt

_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Windows lacks the last three. Slurm announces the end of a job with the signal that `--signal`
names, by custom USR1 or USR2."""


class StopSignals:
    """Counts the signals that ask the rollout to stop."""

    def __init__(self) -> None:
        self.interrupt = Interrupt()
        """Fired by the first signal."""
        self.count = 0
        self.exit_code = 0
        """128 plus the number of the first signal; 0 without one."""

    @property
    def was_stopped(self) -> bool:
        """Whether a signal stopped the rollout."""
        return self.count > 0

    @contextmanager
    def installed(self, tell: Callable[[str], None]) -> Generator[None]:
        """Handle the signals inside the block; needs a running event loop.

        The first signal drains the run: running episodes end early and are stored. The second
        cancels their running calls. The third drops unfinished episodes; finished ones are always
        stored. A fourth has its usual effect. Outside the main thread this does nothing.

        Args:
            tell: Called with a line that says what happens.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        taken = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
        restore = contextlib.ExitStack()
        stop = partial(self._stop, tell, asyncio.current_task(), restore)

        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(stop, number)

        # Use signal.signal, since Windows lacks the loop's own handlers.
        with restore:
            for number in taken:
                restore.callback(signal.signal, number, signal.signal(number, handle))
            yield

    def _stop(
        self,
        tell: Callable[[str], None],
        task: "asyncio.Task[Any] | None",
        restore: contextlib.ExitStack,
        number: int,
    ) -> None:
        self.count += 1
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        if self.count == 1:
            self.exit_code = 128 + number
            tell(
                "stopping: running episodes are stored unfinished; a second signal "
                "cancels their calls"
            )
            self.interrupt.fire()
        elif self.count == 2:
            tell("stopping now: a third signal drops unfinished episodes")
            self.interrupt.hurry()
        elif self.count == 3 and task is not None:
            restore.close()
            task.cancel()


def _leave_terminal() -> None:
    """Discard output from now on: the terminal is gone, and writes would fail."""
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            discard(stream)
