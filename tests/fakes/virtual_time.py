"""Clocks of event loops that tests move, for tests of deadlines and long waits."""

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fakes.waiting import until

T = TypeVar("T")


_MOST_AT_ONCE = 20_000
"""Iterations of the loop at one moment; more than that never end."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: what the loop would have waited is added to its clock."""

    now, at_once = 0.0, 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left to wait for: the test would hang")
        self.at_once = 0 if timeout > 0 else self.at_once + 1
        if self.at_once > _MOST_AT_ONCE:
            self.at_once = 0
            raise RuntimeError("the loop never rests: the test would hang")
        events = super().select(0)
        if not events:
            self.now += timeout
        return events


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _JumpingSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that uses no threads and no sockets; `loop.time` starts at 0."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)


def skip(seconds: float) -> None:
    """Move the clock of the running loop, any real one, forward; its timers are then due at once.

    A deadline that must pass can so be longer than every delay of a busy machine.
    """
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds


async def outlast(
    call: Coroutine[Any, Any, T], seconds: float, *, begun: Callable[[], object]
) -> T:
    """Await a call; once it has begun, move the clock of the running loop forward."""
    running = asyncio.create_task(call)
    await until(begun)
    skip(seconds)
    return await running


def skip_from_thread(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Do so from another thread, and wait until the timers that are due have run."""
    passed = threading.Event()

    def move() -> None:
        skip(seconds)
        loop.call_later(0, passed.set)

    loop.call_soon_threadsafe(move)
    assert passed.wait(120)


def block(seconds: float) -> None:
    """Let time pass on the running loop without a chance for its timers, as a slow call does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _VirtualLoop)
    loop.clock.now += seconds
