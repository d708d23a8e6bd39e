"""A thread that runs blocking calls for the event loop and can abandon hung calls.

`concurrent.futures` cannot abandon a hung call, because it joins its threads at exit. A worker here
is a daemon thread. When a call misses its deadline, the caller abandons the worker, which runs a
clean-up if the call ever returns.
"""

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

_numbers = itertools.count()


class DeadlineError(Exception):
    """A call did not return in time, as opposed to a TimeoutError that it raised itself."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"it took longer than its {timeout_s:g} s")
        self.timeout_s = timeout_s


class Mailbox:
    """Delivers results from threads to one event loop, batched into few wake-ups.

    Waking a loop costs a system call on each side. Under load, results that arrive before the loop
    handles the first one share its wake-up.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._posts: list[Callable[[], None]] = []

    def post(self, message: Callable[[], None]) -> None:
        """Schedule a function on the loop, from any thread."""
        with self._lock:
            self._posts.append(message)
            if len(self._posts) > 1:
                return  # a wake-up is already pending
        with contextlib.suppress(
            RuntimeError
        ):  # the loop is closed, so nothing waits for the result
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        with self._lock:
            posts, self._posts = self._posts, []
        for message in posts:
            message()


class Worker:
    """One daemon thread that runs calls in order of arrival."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name=f"envkit-worker-{next(_numbers)}", daemon=True
        )
        self._thread.start()

    async def call(self, function: Callable[[], T], *, timeout_s: float | None) -> T:
        """Run the function on the thread and return its result.

        Raises:
            DeadlineError: It did not return in time. The worker is then unusable: call
                `abandon`.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            result, error = outcome(function)
            self._mailbox.post(lambda: deliver(future, result, error))

        self._calls.put(run)
        if timeout_s is None:
            return await future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            # The timeout and the result came in the same iteration of the loop.
            if future.done() and not future.cancelled():
                return future.result()  # just in time, or its own TimeoutError
            raise DeadlineError(timeout_s) from None

    def abandon(self, clean_up: Callable[[], None]) -> asyncio.Future[None]:
        """Abandon a hung call; `clean_up` runs on the thread if the call ever returns.

        Returns:
            A future that is done once the clean-up has run or failed. It need not be awaited.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def last() -> None:
            outcome(clean_up)  # nothing is left to report an error to
            self._mailbox.post(lambda: deliver(future, None, None))

        self._calls.put(last)
        self._calls.put(None)
        return future

    def stop(self) -> None:
        """Stop the thread after the queued calls."""
        self._calls.put(None)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is still running."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


async def gather_or_cancel(work: Sequence[Coroutine[Any, Any, T]]) -> tuple[T, ...]:
    """Return all results in order; the first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return tuple(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def outcome(function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Call a function and return its result or what it raised."""
    try:
        return function(), None
    except StopIteration as error:  # a future cannot carry it
        return None, RuntimeError(f"StopIteration: {error}")
    except BaseException as error:  # noqa: BLE001  # re-raised in the awaiting task
        return None, error


def deliver(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Settle a future on the event loop, unless it was abandoned."""
    if future.done():
        return  # abandoned in the meantime
    if error is None:
        future.set_result(result)  # type: ignore[arg-type]  # here None is a value of T
    else:
        future.set_exception(error)
