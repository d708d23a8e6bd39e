"""How many environments of a pool may be in use at once.

An environment may declare a limit, and the machine may have room for fewer: in a container with few
processes, threads or open files. Then an episode that found no room gives its place to the others
and goes on when one of them has ended.
"""

import asyncio
import logging
from collections import deque
from typing import Final, Protocol

from envkit.errors import SHORTAGES, EnvFault

_LOG: Final = logging.getLogger(__name__)
_GROWTH: Final = 2
"""Rounds of finished episodes until one more may run: a shortage may pass, and costs a retry if it
has not."""


def shortage_in(fault: EnvFault) -> str | None:
    """Return what the system said if it ran out of threads, processes or descriptors, else None.

    Args:
        fault: A fault; its causes count too.
    """
    error: BaseException | None = fault if fault.retryable else None
    while error is not None:
        text = str(error)
        found = next((words for words in SHORTAGES if words in text), None)
        if found is not None:
            return found
        error = error.__cause__
    return None


class IdleEnv(Protocol):
    """An environment that holds something of the machine."""

    async def close(self) -> None:
        """Give it back."""
        ...


class IdleEnvs(Protocol):
    """A list of them."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def pop(self) -> IdleEnv:
        """Take the last one."""
        ...


class Sessions:
    """The places of one pool of environments, for one event loop."""

    def __init__(self, idle: IdleEnvs) -> None:
        """Allow any number until told otherwise.

        Args:
            idle: The pool's list of environments that nobody uses; a shortage empties it.
        """
        self._idle = idle
        self.declared: int | None = None
        """The environment's own limit; None is unlimited."""
        self._room: int | None = None
        """Places that the machine has room for; None until it refused one."""
        self._used = 0
        self._ended = 0
        """Episodes that ended since the machine refused one or since `_room` grew."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_short(self) -> bool:
        """Whether the machine has refused room."""
        return self._room is not None

    async def enter(self, *, is_first: bool = False) -> None:
        """Take a place; wait until one is free.

        Args:
            is_first: Wait ahead of the others.
        """
        if self._is_free and not self._waiting:
            self._used += 1
            return
        place = asyncio.get_running_loop().create_future()
        if is_first:
            self._waiting.appendleft(place)
        else:
            self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()  # admitted at the same moment
            raise

    def leave(self) -> None:
        """Give a place back after an episode."""
        self._used -= 1
        if self._room is not None:
            self._ended += 1
            if self._ended >= _GROWTH * self._room:
                self._room, self._ended = self._room + 1, 0
        self._admit()

    async def step_aside(self, shortage: str) -> bool:
        """Give the place back because the machine has no room for it, and lower the limit.

        Args:
            shortage: What the system said.

        Returns:
            Whether others hold places, and so may make room. If not, the caller keeps its place.
        """
        while len(self._idle):
            await self._idle.pop().close()
        others = self._used - 1
        if others < 1:
            return False
        if self._room is None:
            _LOG.warning(
                "%s: the machine has no room for more environments, so episodes wait for others "
                "to end; raise the limits of processes and open files, or lower the concurrency",
                shortage,
            )
        self._room, self._ended, self._used = others, 0, others
        return True

    @property
    def _is_free(self) -> bool:
        limits = (self.declared, self._room)
        return all(limit is None or self._used < limit for limit in limits)

    def _admit(self) -> None:
        while self._waiting and self._is_free:
            place = self._waiting.popleft()
            if not place.done():
                self._used += 1
                place.set_result(None)
