"""An event loop whose clock jumps to the next timer, for tests of long waits."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

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


def block(seconds: float) -> None:
    """Let time pass on the running loop without a chance for its timers, as a slow call does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _VirtualLoop)
    loop.clock.now += seconds
