"""Ctrl-C during a rollout: first ask the episodes to stop, then stop them."""

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from envkit.rollout import Interrupt


class StopKeys:
    """Counts how often somebody pressed Ctrl-C."""

    def __init__(self) -> None:
        self.interrupt = Interrupt()
        """Fired by the first Ctrl-C."""
        self.pressed = 0

    @property
    def was_pressed(self) -> bool:
        """Whether the rollout was stopped by hand."""
        return self.pressed > 0

    @contextmanager
    def installed(self, tell: Callable[[str], None]) -> Generator[None]:
        """Take Ctrl-C inside the block; needs a running event loop.

        On a thread other than the main one Ctrl-C cannot be taken, and nothing is installed.

        Args:
            tell: Gets a line that says what happens.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()

        def press() -> None:
            self.pressed += 1
            if self.pressed == 1:
                tell("stopping: running episodes are kept as far as they are; Ctrl-C drops them")
                self.interrupt.fire()
            elif self.pressed == 2 and task is not None:
                task.cancel()

        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(press)

        # signal.signal and not the loop's own handler, which Windows lacks.
        previous: Any = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)
