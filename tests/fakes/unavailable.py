"""An engine that becomes unavailable and recovers, and counts what reaches it meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any

from envkit.errors import EngineFault, FaultKind
from envkit.rollout import GenerateRequest, Generation, ScriptedEngine


def refused(**fields: Any) -> EngineFault:
    """Return the fault of an unavailable engine."""
    return EngineFault(
        "connection refused", kind=FaultKind.TRANSIENT, is_unavailable=True, **fields
    )


class UnavailableEngine(ScriptedEngine):
    """A scripted engine that refuses requests while it is down.

    Requests that run when it goes down are broken, as by a server that is killed.
    """

    def __init__(self, codec: Any, policy: Any, *, latency_s: float = 0.0) -> None:
        super().__init__(codec, policy)
        self.is_down = False
        self.refusals = 0
        """Requests that came while it was down."""
        self.answers = 0
        self.most_at_once = 0
        """Requests at the same time while it was down."""
        self.fault: Callable[[], Exception] = refused
        self.on_answer: Callable[[], None] = lambda: None
        self._latency_s = latency_s
        self._here = 0
        self._lives = 0

    def stop(self) -> None:
        """Go down."""
        self.is_down = True
        self._lives += 1

    def start(self) -> None:
        """Come back."""
        self.is_down = False

    async def generate(self, request: GenerateRequest) -> Generation:
        self._here += 1
        life = self._lives
        try:
            if self.is_down:
                self.refusals += 1
                self.most_at_once = max(self.most_at_once, self._here)
                await asyncio.sleep(0)
                raise self.fault()
            await asyncio.sleep(self._latency_s)
            if life != self._lives:
                raise EngineFault("connection broken", kind=FaultKind.CRASHED, is_unavailable=True)
            generation = await super().generate(request)
            self.answers += 1
            self.on_answer()
            return generation
        finally:
            self._here -= 1
