"""The driver's channel to one worker: sends orders, receives answers, batched per call."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from envkit_ray.messages import Answer, Parcel, Sent

_GATHER_S: Final = 0.02
"""Seconds that an order waits for others. The driver receives and replaces episodes in batches."""


class WorkerLostError(Exception):
    """The worker of a call is gone; whether the call took effect is unknown."""


class WorkerChannel:
    """Carries orders and answers of one worker incarnation."""

    def __init__(
        self,
        exchange: Callable[[tuple[Sent, ...]], Awaitable[tuple[Parcel, ...]]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Start with no orders.

        Args:
            exchange: Calls `Worker.exchange`.
            spawn: Runs a coroutine as a task that its owner cancels at the end.
        """
        self._exchange, self._spawn = exchange, spawn
        self._outbox: dict[str, bytes] = {}
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._calls = 0
        """Pending calls; a new one ends the wait of the previous one."""
        self._lost: WorkerLostError | None = None

    async def ask(self, name: str, order: bytes) -> Answer:
        """Send an order and wait for its answer.

        Raises:
            WorkerLostError: The worker is gone.
        """
        if self._lost is not None:
            raise self._lost
        waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._outbox[name] = order
        self._schedule()
        try:
            return await waiting
        finally:  # an answer without a waiter is dropped
            self._waiting.pop(name, None)
            self._outbox.pop(name, None)

    def end(self, error: BaseException) -> None:
        """Fail all pending orders."""
        waiting, self._waiting = self._waiting, {}
        self._outbox.clear()
        for one in waiting.values():
            if not one.done():
                one.set_exception(error)

    def lose(self, error: WorkerLostError) -> None:
        """Fail all pending and future orders."""
        self._lost = error
        self.end(error)

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._send)

    def _send(self) -> None:
        self._timer = None
        if self._outbox or (self._waiting and not self._calls):
            orders, self._outbox = tuple(self._outbox.items()), {}
            self._calls += 1
            self._spawn(self._call(orders))

    async def _call(self, orders: tuple[Sent, ...]) -> None:
        """Make one call and pass its answers on."""
        try:
            parcels = await self._exchange(orders)
        except WorkerLostError as error:
            self.lose(error)
        except Exception as error:  # noqa: BLE001  # whoever waits reports it
            self.end(error)
        else:
            for name, data, buffers in parcels:
                self._receive(name, data, buffers)
        finally:
            self._calls -= 1
        if self._waiting:
            self._schedule()

    def _receive(self, name: str, data: bytes, buffers: list[Any]) -> None:
        waiting = self._waiting.get(name)
        if waiting is None or waiting.done():
            return
        try:
            waiting.set_result(pickle.loads(data, buffers=buffers))
        except Exception as error:  # noqa: BLE001  # a class of the worker's that is not here
            waiting.set_exception(error)
