"""Batch concurrent queries into few requests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from envkit import ranges
from envkit.errors import EnvFault, FaultKind
from envkit_search.document import Hit

Outcome = list[Hit] | EnvFault
Send = Callable[[list[str], int], Awaitable[Sequence[Outcome]]]
"""Answers queries with `topk` hits each, or a fault for each."""

_Loop = asyncio.AbstractEventLoop
_Found = TypeVar("_Found")
_Waiting = tuple[str, "asyncio.Future[list[Hit]]"]


async def gathered(waits: Iterable[Awaitable[_Found]]) -> list[_Found]:
    """Wait for all, so that no later exception is left unretrieved; then raise the first failure.

    Raises:
        EnvFault: A search failed, or was cancelled because its backend was closed.
    """
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, asyncio.CancelledError):
            raise EnvFault("the search backend was closed meanwhile", kind=FaultKind.TRANSIENT)
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


class Batcher:
    """Collects queries that arrive within a short time and sends them as one request.

    Queries with different `topk` go separately. A batch is cancelled if all its callers are.
    """

    def __init__(self, send: Send, *, max_batch: int = 64, window_s: float = 0.002) -> None:
        """Set up an empty batch.

        Args:
            send: Makes one request.
            max_batch: Maximum queries per request; a full batch is sent at once.
            window_s: Seconds that the first query of a batch waits for others.

        Raises:
            ConfigurationError: `max_batch` is below 1 or `window_s` negative.
        """
        ranges.at_least(1, max_batch=max_batch)
        ranges.at_least(0, window_s=window_s)
        self._send: Final = send
        self._max_batch, self._window_s = max_batch, window_s
        self._waiting: dict[tuple[_Loop, int], list[_Waiting]] = {}
        self._timers: dict[tuple[_Loop, int], asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0
        """Batches sent so far."""

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Return the hits of each query, best first.

        Raises:
            EnvFault: The request failed, or the batcher was closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        futures = [self._add(loop, query, topk) for query in queries]
        try:
            return await gathered(futures)
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise

    async def aclose(self) -> None:
        """Cancel pending requests on the running loop."""
        loop = asyncio.get_running_loop()
        for key in [key for key in self._timers if key[0] is loop or key[0].is_closed()]:
            self._timers.pop(key).cancel()
            for _, future in self._waiting.pop(key, []):
                if key[0] is loop:
                    future.cancel()
        mine = [task for task in self._tasks if task.get_loop() is loop]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    def _add(self, loop: _Loop, query: str, topk: int) -> "asyncio.Future[list[Hit]]":
        key = loop, topk
        waiting = self._waiting.setdefault(key, [])
        future: asyncio.Future[list[Hit]] = loop.create_future()
        waiting.append((query, future))
        if len(waiting) >= self._max_batch:
            self._flush(key)
        elif key not in self._timers:
            self._timers[key] = loop.call_later(self._window_s, self._flush, key)
        return future

    def _flush(self, key: tuple[_Loop, int]) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        wanted = [entry for entry in self._waiting.pop(key, []) if not entry[1].done()]
        if not wanted:
            return
        loop, topk = key
        task = loop.create_task(self._run(wanted, topk))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel_if_unused(_: object) -> None:
            if all(future.cancelled() for _, future in wanted):
                task.cancel()

        for _, future in wanted:
            future.add_done_callback(cancel_if_unused)

    async def _run(self, wanted: list[_Waiting], topk: int) -> None:
        self.requests += 1
        try:
            answered = await self._send([query for query, _ in wanted], topk)
        except asyncio.CancelledError:
            for _, future in wanted:
                future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # handed to the callers, who wait for it
            for _, future in wanted:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), outcome in zip(wanted, answered, strict=True):
            if future.done():
                continue
            if isinstance(outcome, EnvFault):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
