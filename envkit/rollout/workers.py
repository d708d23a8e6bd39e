"""Threads that run blocking calls for the event loop and may be given up on.

`concurrent.futures` cannot forget a hung call: its threads are joined at exit. A worker here is a
daemon thread; when a call outlives its deadline the worker is abandoned, and a clean-up runs on it
if the call ever returns.
"""

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from envkit.errors import EnvFault, FaultKind

T = TypeVar("T")

DEFAULT_MAX_WORKERS: Final = 256
"""Threads of a pool. They mostly wait, so there are far more than cores."""
_numbers = itertools.count()


class Worker:
    """One daemon thread that runs calls in the order they come."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name=f"envkit-worker-{next(_numbers)}", daemon=True
        )
        self._thread.start()

    async def call(self, function: Callable[[], T], *, timeout_s: float | None) -> T:
        """Run the function on the thread and return its result.

        Raises:
            EnvFault: TIMEOUT when it did not return in time. The worker is then of no use any more:
                call `abandon`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]  # None is T's value then
            else:
                future.set_exception(error)

        def run() -> None:
            result, failure = None, None
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001  # re-raised in the awaiting task
                failure = error
            if isinstance(failure, StopIteration):  # a future cannot carry it
                failure = RuntimeError(f"StopIteration: {failure}")
            try:
                loop.call_soon_threadsafe(deliver, result, failure)
            except RuntimeError:
                return  # the loop is closed: nobody waits for this any more

        self._calls.put(run)
        if timeout_s is None:
            return await future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            if future.cancelled() or not future.done():
                raise EnvFault(
                    f"a call took longer than its {timeout_s:g} s", kind=FaultKind.TIMEOUT
                ) from None
            raise  # the function's own TimeoutError

    def abandon(self, clean_up: Callable[[], None]) -> None:
        """Give up on a hung call; `clean_up` runs on the thread if the call ever returns."""

        def last() -> None:
            try:
                clean_up()
            except Exception:  # noqa: BLE001  # nobody is left to tell
                return

        self._calls.put(last)
        self._calls.put(None)

    def stop(self) -> None:
        """End the thread after the calls that are queued."""
        self._calls.put(None)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class WorkerPool:
    """Workers that calls of thread-safe environments share."""

    def __init__(self, max_workers: int = DEFAULT_MAX_WORKERS) -> None:
        self._free: list[Worker] = []
        self._slots = asyncio.Semaphore(max_workers)

    async def acquire(self) -> Worker:
        """Return a worker, waiting while all are busy."""
        await self._slots.acquire()
        return self._free.pop() if self._free else Worker()

    def release(self, worker: Worker) -> None:
        """Give a worker back."""
        self._free.append(worker)
        self._slots.release()

    def forget(self) -> None:
        """Account for an abandoned worker: another may be started in its place."""
        self._slots.release()

    def close(self) -> None:
        """End the idle threads."""
        while self._free:
            self._free.pop().stop()
