"""A pool that runs a rollout's blocking calls on as few threads as possible.

Waking a thread costs more than a quick call. So one thread takes the calls in order, and the pool
wakes another only after a call has waited for a few milliseconds. A slow call therefore does not
delay the calls queued after it.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from envkit.threads.workers import DeadlineError, Mailbox, deliver, outcome

T = TypeVar("T")

DEFAULT_MAX_THREADS: Final = 256
"""Far more than cores, because the threads mostly wait."""
FEW_THREADS: Final = max(2, min(4, os.cpu_count() or 2))
"""For CPU-bound calls: each may delay the event loop by a switch interval, 5 ms."""
_PATIENCE_S: Final = 0.002
"""Seconds a call may wait in the queue before another thread takes it."""
_ADMITTED_S: Final = 0.01
"""Seconds after which another caller of an `Admission` follows."""
_SHORTAGE_S: Final = 0.1
"""Seconds until the pool asks again for a thread that the system refused."""
_LOG: Final = logging.getLogger(__name__)
_numbers = itertools.count()


class Admission:
    """A queue for work that may compute or wait; the caller does not know which.

    Hundreds of threads that compute at the same time starve the event loop, so only a few are
    admitted together. If these only wait, another one follows every ten milliseconds.
    """

    def __init__(self, few: int, *, patience_s: float = _ADMITTED_S) -> None:
        """Open the queue.

        Args:
            few: Number of callers admitted together.
            patience_s: Seconds after which the first caller in the queue is admitted even if none
                of the admitted ones has left.
        """
        self._patience_s = patience_s
        self._free = asyncio.Semaphore(few)
        self._first = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait for admission and hold it for the block."""
        async with self._first:
            is_counted = await self._wait()
        try:
            yield
        finally:
            if is_counted:
                self._free.release()

    async def _wait(self) -> bool:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._free.acquire()
        except TimeoutError:
            return False


class _Call(Generic[T]):
    """One call and its future. Its fields change under the pool's lock."""

    __slots__ = ("abandoned", "finished", "function", "future", "started_at", "timer")

    def __init__(self, function: Callable[[], T], future: asyncio.Future[T]) -> None:
        self.function, self.future = function, future
        self.started_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.finished = False
        self.abandoned = False


class WorkerPool:
    """Runs calls of one event loop on up to `max_threads` daemon threads."""

    def __init__(self, max_threads: int = DEFAULT_MAX_THREADS) -> None:
        self.mailbox = Mailbox()
        self.starting = Admission(FEW_THREADS)
        """Called before the first call on a `Worker`."""
        self._loop = asyncio.get_running_loop()
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._calls: deque[_Call[Any]] = deque()
        self._idle: list[threading.Semaphore] = []
        self._dismissed = set[threading.Semaphore]()
        self._awake = 0
        self._stuck = 0
        """Threads whose call was abandoned. They exit when it returns; others replace them."""
        self._closed = False
        self._is_short = False
        """Whether the system has refused a thread, which is logged once."""
        self._check: asyncio.TimerHandle | None = None
        self._computing: WorkerPool | None = None

    @property
    def computing(self) -> "WorkerPool":
        """The few threads for CPU-bound calls, separate from the calls that wait."""
        if self._computing is None:
            self._computing = WorkerPool(FEW_THREADS)
        return self._computing

    async def run(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Run a function on a thread; a hung or abandoned call costs the pool nothing.

        Args:
            function: The blocking call.
            timeout_s: Maximum seconds, counted from its start; None waits forever.

        Raises:
            DeadlineError: It did not return in time.
        """
        call = _Call(function, self._loop.create_future())
        self._submit(call)
        if timeout_s is not None:
            call.timer = self._loop.call_later(timeout_s, self._ring, call, timeout_s)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        finally:
            if call.timer is not None:
                call.timer.cancel()

    def reserve(self) -> None:
        """Start the first threads before others take all that the system has."""
        # Environments with threads of their own could wait for this pool, and it for them.
        self._wake(1)
        self.computing._wake(1)

    def trim(self) -> None:
        """End idle threads except one, to leave room for others."""
        if self._computing is not None:
            self._computing.trim()
        with self._lock:
            idle = self._idle[1:]
            del self._idle[1:]
            self._dismissed.update(idle)
        for wake in idle:
            wake.release()

    def close(self) -> None:
        """Stop the threads once they are idle."""
        if self._computing is not None:
            self._computing.close()
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._check is not None:
            self._check.cancel()
        for wake in idle:
            wake.release()

    def _ring(self, call: "_Call[Any]", timeout_s: float) -> None:
        """End a call at its deadline, which is postponed while the call waits for a thread."""
        if call.future.done():
            return
        with self._lock:
            waited = 0.0 if call.started_at is None else self._loop.time() - call.started_at
        left = timeout_s - waited
        if left > 0:
            call.timer = self._loop.call_later(left, self._ring, call, timeout_s)
        elif self._abandon(call):
            call.future.set_exception(DeadlineError(timeout_s))

    def _abandon(self, call: "_Call[Any]") -> bool:
        """Stop waiting for a call. False if it has already finished."""
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
        pause_s = self._wake(needed)
        if self._check is None:
            self._check = self._loop.call_later(pause_s, self._grow)

    def _grow(self) -> None:
        """Add a thread for each waiting call, up to the limit."""
        self._check = None
        with self._lock:
            waiting = len(self._calls)
            # Stuck threads do not count: hung calls must not starve the others.
            room = self._max_threads + self._stuck - self._awake
        pause_s = self._wake(min(waiting, room))
        if waiting:
            self._check = self._loop.call_later(pause_s, self._grow)

    def _wake(self, count: int) -> float:
        """Wake idle threads or start new ones; return the seconds until more may be needed."""
        for _ in range(count):
            with self._lock:
                self._awake += 1
                wake = self._idle.pop() if self._idle else None
            if wake is not None:
                wake.release()
                continue
            name = f"envkit-pool-{next(_numbers)}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except RuntimeError as error:
                # The system has none left: the calls wait for the threads that there are.
                self._refused(error)
                return _SHORTAGE_S
        return _PATIENCE_S

    def _refused(self, error: RuntimeError) -> None:
        with self._lock:
            self._awake -= 1
            awake, is_new, self._is_short = self._awake, not self._is_short, True
        if is_new:
            _LOG.warning(
                "%s: calls wait for %d threads; raise the limit of processes or lower the "
                "concurrency",
                error,
                awake,
            )

    def _work(self) -> None:
        wake = threading.Semaphore(0)
        while True:
            call = self._take(wake)
            if call is None:
                wake.acquire()
                if self._closed or wake in self._dismissed:
                    self._dismissed.discard(wake)
                    return
                continue
            result, error = outcome(call.function)
            with self._lock:
                call.finished = True
                if call.abandoned:  # another thread has taken this one's place
                    self._stuck -= 1
                    self._awake -= 1
                    return
            self.mailbox.post(partial(deliver, call.future, result, error))

    def _take(self, wake: threading.Semaphore) -> "_Call[Any] | None":
        with self._lock:
            while self._calls:
                call = self._calls.popleft()
                if not call.abandoned:
                    call.started_at = self._loop.time()
                    return call
            self._awake -= 1
            if self._closed:
                wake.release()
            else:
                self._idle.append(wake)
            return None
