"""Threads that share the blocking calls of a rollout: as few as the calls need.

Waking a thread costs more than a quick call. So one thread works through the calls as they come,
and another is woken only when a call has waited for a few milliseconds: a slow call then holds up
none behind it. One after the other is added until no call waits any longer, or until they keep the
event loop from its turn (`envkit.threads.crowding`): then most of them go to sleep again.
"""

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from envkit.threads.crowding import Crowding
from envkit.threads.workers import DeadlineError, Mailbox, deliver, outcome

T = TypeVar("T")

DEFAULT_MAX_THREADS: Final = 256
"""They mostly wait, so there are far more than cores."""
_PATIENCE_S: Final = 0.002
"""How long a call may wait behind another before a further thread takes it."""
_PACE_S: Final = 0.01
"""How often a thread is added while calls wait."""
FEW: Final = min(4, max(2, os.cpu_count() or 2))
"""Threads that stay awake when the loop suffers. Each can keep it waiting for Python's switch
interval, 5 ms."""
_STARVED_S: Final = 1.0
"""When no call has begun for so long, all threads wait, and another is added in any case."""
_numbers = itertools.count()


class _Call(Generic[T]):
    """One call and where its result goes. Its fields change under the pool's lock."""

    __slots__ = ("abandoned", "finished", "function", "future", "started_at")

    def __init__(self, function: Callable[[], T], future: asyncio.Future[T]) -> None:
        self.function, self.future = function, future
        self.started_at: float | None = None
        self.finished = False
        self.abandoned = False


class WorkerPool:
    """Runs calls of one event loop on up to `max_threads` daemon threads."""

    def __init__(self, max_threads: int = DEFAULT_MAX_THREADS) -> None:
        self.mailbox = Mailbox()
        self.free: dict[int, object] = {}
        """Factories by their id whose products may be used, and so made, on any thread."""
        self._loop = asyncio.get_running_loop()
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._calls: deque[_Call[Any]] = deque()
        self._idle: list[threading.Semaphore] = []
        self._crowding = Crowding()
        self._due = 0.0
        self._begun_at = 0.0
        """When a thread last took a call."""
        self._awake = 0
        self._stuck = 0
        """Threads whose call was abandoned; they end when it returns, and others replace them."""
        self._closed = False
        self._check: asyncio.TimerHandle | None = None

    async def run(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run a function on a thread; one that hangs or is given up on costs the pool nothing.

        Args:
            function: The blocking call.
            timeout_s: Seconds it may take, counted from its start; None waits for ever.

        Raises:
            DeadlineError: It did not return in time.
        """
        call = _Call(function, self._loop.create_future())
        self._submit(call)
        timer = None
        if timeout_s is not None:
            timer = _Timer(self, call, timeout_s)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """End the threads when they are idle."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._check is not None:
            self._check.cancel()
        for wake in idle:
            wake.release()

    def expire(self, call: "_Call[Any]", timeout_s: float) -> float:
        """Give up on a call whose time is over; return the seconds it still has, if any."""
        with self._lock:
            if call.started_at is None:
                return timeout_s
            left = call.started_at + timeout_s - time.monotonic()
        if left <= 0 and self._abandon(call):
            call.future.set_exception(DeadlineError(timeout_s))
        return left

    def _abandon(self, call: "_Call[Any]") -> bool:
        """Stop waiting for a call. False when it has finished already."""
        with self._lock:
            if call.finished:
                return False
            call.abandoned = True
            if call.started_at is not None:
                self._stuck += 1
        return True

    def _submit(self, call: "_Call[Any]") -> None:
        with self._lock:
            self._calls.append(call)
            needed = 1 if self._awake == self._stuck else 0
        self._wake(needed)
        if self._check is None:
            self._check_in(_PATIENCE_S)

    def _check_in(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._check = self._loop.call_at(self._due, self._grow)

    def _grow(self) -> None:
        """Add threads when calls have waited, as far as there may be and the loop bears it."""
        self._check = None
        self._crowding.note(self._loop.time() - self._due)
        with self._lock:
            waiting = len(self._calls)
            room = self._max_threads + self._stuck - self._awake
            live = self._awake - self._stuck
        is_starved = time.monotonic() - self._begun_at >= _STARVED_S
        is_bearable = is_starved or not self._crowding.is_crowded
        most = max(FEW - live, int(is_bearable))
        self._wake(min(waiting, room, most))
        if waiting:
            self._check_in(_PACE_S)

    def _wake(self, count: int) -> None:
        for _ in range(count):
            with self._lock:
                self._awake += 1
                wake = self._idle.pop() if self._idle else None
            if wake is not None:
                wake.release()
                continue
            name = f"envkit-pool-{next(_numbers)}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        wake, is_fresh = threading.Semaphore(0), True
        while True:
            call = self._take(wake, is_fresh=is_fresh)
            is_fresh = call is None
            if call is None:
                wake.acquire()
                if self._closed:
                    return
                continue
            result, error = outcome(call.function)
            with self._lock:
                call.finished = True
                if call.abandoned:  # another thread has taken this one's place
                    self._stuck -= 1
                    self._awake -= 1
                    return
            self.mailbox.post(_Delivery(call.future, result, error))

    def _take(self, wake: threading.Semaphore, *, is_fresh: bool) -> "_Call[Any] | None":
        """Take a call; None where there is none, or the thread is better asleep.

        One that was woken just now takes a call in any case.
        """
        with self._lock:
            live = self._awake - self._stuck
            too_many = self._crowding.is_crowded and live > FEW and not is_fresh
            while self._calls and not too_many:
                call = self._calls.popleft()
                if not call.abandoned:
                    call.started_at = self._begun_at = time.monotonic()
                    return call
            self._awake -= 1
            if self._closed:
                wake.release()
            else:
                self._idle.append(wake)
            return None


class _Delivery:
    """A result on its way to the event loop."""

    __slots__ = ("_error", "_future", "_result")

    def __init__(
        self, future: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        self._future, self._result, self._error = future, result, error

    def __call__(self) -> None:
        deliver(self._future, self._result, self._error)


class _Timer:
    """Ends a call at its deadline, which moves while the call waits for a thread."""

    __slots__ = ("_call", "_handle", "_pool", "_timeout_s")

    def __init__(self, pool: WorkerPool, call: "_Call[Any]", timeout_s: float) -> None:
        self._pool, self._call, self._timeout_s = pool, call, timeout_s
        self._handle = asyncio.get_running_loop().call_later(timeout_s, self._ring)

    def cancel(self) -> None:
        self._handle.cancel()

    def _ring(self) -> None:
        if self._call.future.done():
            return
        left = self._pool.expire(self._call, self._timeout_s)
        if left > 0:
            self._handle = asyncio.get_running_loop().call_later(left, self._ring)
