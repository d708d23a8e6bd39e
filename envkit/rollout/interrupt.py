"""Stopping a running episode so that what it has so far stays valid.

Cancelling a task throws its work away. An `Interrupt` asks instead: the running request is aborted
at the engine, which answers with the tokens so far, and `play` returns a partial trajectory.
"""

import asyncio
from typing import Final

from envkit.errors import Fault
from envkit.rollout.engine import Engine
from envkit.trajectory.stop import StopReason

_REPEAT_S: Final = 0.5
"""An abort that overtakes its own request is ignored by a server, so it is sent again."""


class Interrupt:
    """A request to stop, shared by any number of episodes of one event loop."""

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        """None until somebody asked."""
        self._active: dict[str, Engine] = {}
        self._children: set[Interrupt] = set()
        self._aborting: asyncio.Task[None] | None = None

    def fire(self, reason: StopReason = StopReason.ABORTED) -> None:
        """Ask every episode to stop; running requests are aborted. The first reason stays."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._active:
            self._aborting = asyncio.get_running_loop().create_task(self._abort_all())
        for child in tuple(self._children):
            child.fire(reason)

    def child(self) -> "Interrupt":
        """Return an interrupt for one episode: it fires with this one, but not the reverse."""
        child = Interrupt()
        child.reason = self.reason
        self._children.add(child)
        return child

    def discard(self, child: "Interrupt") -> None:
        """Forget an episode that has ended."""
        self._children.discard(child)

    def enter(self, request_id: str, engine: Engine) -> None:
        """Note that a request runs."""
        self._active[request_id] = engine

    def leave(self, request_id: str) -> None:
        """Note that it has ended."""
        self._active.pop(request_id, None)

    async def close(self) -> None:
        """End the task that sends aborts."""
        if self._aborting is not None:
            self._aborting.cancel()
            await asyncio.gather(self._aborting, return_exceptions=True)
            self._aborting = None

    async def _abort_all(self) -> None:
        while self._active:
            for request_id, engine in tuple(self._active.items()):
                try:
                    await engine.abort(request_id)
                except Fault:
                    continue  # the request's own answer says what is wrong with the engine
            await asyncio.sleep(_REPEAT_S)
