"""Stops running episodes early without losing their records.

Cancelling a task discards its work. An `Interrupt` requests a stop instead: it aborts engine
requests, which return their tokens so far, and cuts environment calls after a grace period. The
episode then ends as a valid partial trajectory (ABORTED) or as a fault (EPISODE_TIMEOUT).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Collection
from typing import Final, Protocol, TypeVar

from envkit.rollout.boundary import is_own_cancellation
from envkit.trajectory.stop import StopReason

T = TypeVar("T")

_RELEASED_AT_ONCE: Final = 16
"""Held episodes that resume in one iteration of the event loop: about 5 ms of work."""
_REPEAT_S: Final = 0.5
"""Seconds between aborts: a server ignores an abort that overtakes its own request."""
GRACE_S: Final = 5.0
"""Seconds that an environment call may still take after an abort. A job scheduler that sends
SIGTERM waits about 30 s before it kills."""


class CallCutError(Exception):
    """An interrupt ended a call before it returned."""


class Brake:
    """Holds all episodes while finished ones need the event loop.

    Released episodes resume a few at a time. Hundreds in one iteration of the loop would make the
    next finished one wait as long.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_releasing = False

    def hold(self) -> None:
        """Hold episodes before their next step."""
        self._is_held = True

    def release(self) -> None:
        """Let them resume."""
        self._is_held = False
        if self._waiting and not self._is_releasing:
            self._release_some()

    @property
    def is_open(self) -> bool:
        """Whether an episode may proceed now; otherwise call `wait`."""
        return not (self._is_held or self._waiting)

    async def wait(self) -> None:
        """Wait until the episode may proceed, in order of arrival."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _release_some(self) -> None:
        released = 0
        while self._waiting and not self._is_held and released < _RELEASED_AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else its episode was cancelled
                turn.set_result(None)
                released += 1
        self._is_releasing = bool(self._waiting) and not self._is_held
        if self._is_releasing:
            asyncio.get_running_loop().call_soon(self._release_some)


class Abortable(Protocol):
    """A place where a request runs or waits: an engine, or its queue during an outage."""

    async def abort(self, request_id: str) -> None:
        """Stop the request."""
        ...


class _Scope:
    """A call that an interrupt may cut: `asyncio.timeout` without its cost per call."""

    __slots__ = ("_cancelling", "_is_cut", "_task", "_timer", "patience_s")

    def __init__(self, patience_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "an interrupt needs a task that it can cancel"
        self.patience_s = patience_s
        self._task, self._cancelling = task, task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        self._is_cut = False

    def end_at(self, when: float) -> None:
        """Cut the call at this time of the loop, unless it was cut already."""
        if self._is_cut:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._cut)

    def close(self) -> bool:
        """Return whether the call was cut and the task was not cancelled otherwise."""
        if self._timer is not None:
            self._timer.cancel()
        # The caller may have cancelled the task, too. Then its cancellation wins.
        return self._is_cut and self._task.uncancel() <= self._cancelling

    def _cut(self) -> None:
        self._is_cut = True
        self._task.cancel()


class Interrupt:
    """A request to stop, shared by any number of episodes on one event loop."""

    def __init__(self, *, grace_s: float = GRACE_S) -> None:
        """Make an interrupt that has not fired.

        Args:
            grace_s: Seconds that an environment call may still take after an abort.
        """
        self.reason: StopReason | None = None
        """None until a stop is requested."""
        self.brake: Brake | None = None
        """Set by a run that limits the number of unwritten finished episodes."""
        self.grace_s = grace_s
        """Seconds that an environment call may still take; 0 after `hurry`."""
        self._deadline: float | None = None
        self._until: float | None = None
        self._active: dict[str, Abortable] = {}
        self._scopes: set[_Scope] = set()
        self._children: set[Interrupt] = set()
        self._aborting: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def fire(self, reason: StopReason = StopReason.ABORTED) -> None:
        """Request every episode to stop and abort running requests. The first reason wins."""
        if self.reason is not None:
            return
        self.reason = reason
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        if self._active or self._scopes:
            loop = asyncio.get_running_loop()
            self._until = self._cut_time(loop)
            for scope in self._scopes:
                scope.end_at(self._until + scope.patience_s)
            if self._active:
                self._aborting = loop.create_task(self._abort_all())
        for child in tuple(self._children):
            child.fire(reason)

    async def fired(self) -> None:
        """Wait until a stop is requested."""
        if self.reason is None:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                self._waiting.remove(waiting)

    def check_deadline(self) -> bool:
        """Return whether the episode's deadline has passed, even before the timer fires."""
        if self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline:
            self.fire(StopReason.EPISODE_TIMEOUT)
        return self.reason is StopReason.EPISODE_TIMEOUT

    def hurry(self) -> None:
        """Cut every running call now instead of after its grace period."""
        self.grace_s, self._until = 0.0, None  # a later call gets no grace period either
        for scope in self._scopes:
            scope.end_at(asyncio.get_running_loop().time())
        for child in tuple(self._children):
            child.hurry()

    def child(self, *, timeout_s: float | None = None) -> "Interrupt":
        """Return an interrupt for one episode. It fires with this one, but not the reverse.

        Args:
            timeout_s: Seconds after which it fires itself with EPISODE_TIMEOUT; None means never.
        """
        child = Interrupt(grace_s=self.grace_s)
        # An episode that starts after a stop shares the grace period of the others.
        child.reason, child.brake, child._until = self.reason, self.brake, self._until
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            child._deadline = loop.time() + timeout_s
            child._timer = loop.call_at(child._deadline, child.fire, StopReason.EPISODE_TIMEOUT)
        self._children.add(child)
        return child

    async def discard(self, child: "Interrupt") -> None:
        """Forget an episode that has ended."""
        self._children.discard(child)
        await child.close()

    async def cut(self, call: Awaitable[T], *, patience_s: float = 0.0) -> T:
        """Await a call, but no longer than the episode's deadline.

        Args:
            call: A call of an environment or an engine.
            patience_s: Additional seconds, for an engine that answers an abort.

        Raises:
            CallCutError: The episode must stop and the call did not return in time.
        """
        scope = _Scope(patience_s)
        self._scopes.add(scope)
        if self.reason is not None:
            scope.end_at(self._limit() + patience_s)
        try:
            result = await call
        except BaseException as error:
            self._scopes.discard(scope)
            if scope.close() and isinstance(error, asyncio.CancelledError):
                raise CallCutError(str(self.reason)) from error
            raise
        self._scopes.discard(scope)
        scope.close()
        return result

    def enter(self, request_id: str, target: Abortable) -> None:
        """Register a running or waiting request."""
        self._active[request_id] = target

    def leave(self, request_id: str) -> None:
        """Unregister a request that has ended."""
        self._active.pop(request_id, None)

    async def close(self) -> None:
        """Stop the timer and the task that sends aborts."""
        if self._timer is not None:
            self._timer.cancel()
        if self._aborting is not None:
            self._aborting.cancel()
            await asyncio.gather(self._aborting, return_exceptions=True)

    def _limit(self) -> float:
        if self._until is None:
            self._until = self._cut_time(asyncio.get_running_loop())
        return self._until

    def _cut_time(self, loop: asyncio.AbstractEventLoop) -> float:
        # A deadline is exact; an abort leaves time for a state that can be resumed.
        grace = 0.0 if self.reason is StopReason.EPISODE_TIMEOUT else self.grace_s
        return loop.time() + grace

    async def _abort_all(self) -> None:
        while self._active:
            for request_id, engine in tuple(self._active.items()):
                try:
                    await engine.abort(request_id)
                except BaseException as error:  # foreign code; the request's own result says more
                    if is_own_cancellation(error):
                        raise
            await asyncio.sleep(_REPEAT_S)


async def until_done(tasks: Collection[asyncio.Task[None]]) -> None:
    """Wait for tasks, even if the caller is cancelled meanwhile.

    Args:
        tasks: Some that end soon: cancelled ones, or those that deliver a result.
    """
    while any(not task.done() for task in tasks):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)
