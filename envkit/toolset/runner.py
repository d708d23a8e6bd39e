"""Runs the calls of a reply: validated, concurrent, with deadlines, off the event loop."""

import asyncio
import inspect
import weakref
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import Fault, MissingDependencyError
from envkit.images import Image
from envkit.threads.pool import WorkerPool
from envkit.threads.workers import DeadlineError, gather_or_cancel
from envkit.toolcalls import ToolCall, call_errors
from envkit.tools import ToolSpec
from envkit.toolset.result import CallStatus, ToolResult, plain, sentence_of, shown
from envkit.toolset.tool_set import ToolSet

_MAX_THREADS: Final = 16
_MAX_ERROR_CHARACTERS: Final = 500

Shown = tuple[str, tuple[Image, ...]]


class ToolRunner:
    """Runs calls for one environment. Synchronous functions run on its own threads.

    A synchronous function that hangs cannot be stopped. It keeps its thread, and the pool starts
    another.
    """

    def __init__(self, tools: ToolSet) -> None:
        self.tools = tools
        """May be replaced between replies."""
        self._pool: WorkerPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Run the calls of one reply and return their results in the order of the calls.

        Calls beyond the set's `max_calls` are skipped and have no result.

        Raises:
            Fault: A tool raised it because a backend failed. The other calls are cancelled.
            MissingDependencyError: A tool needs a package that is not installed.
        """
        wanted = calls[: self.tools.max_calls]
        if self.tools.is_sequential or len(wanted) == 1:
            return tuple([await self._call(call) for call in wanted])
        return await gather_or_cancel([self._call(call) for call in wanted])

    async def aclose(self) -> None:
        """Stop the threads. Safe to call twice; a later call starts new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_loop": None}  # a copy starts its own threads

    async def _call(self, call: ToolCall) -> ToolResult:
        errors = call_errors(call, self.tools.specs)
        if errors:
            return self._failed(call, "; ".join(errors), CallStatus.INVALID)
        spec = next(spec for spec in self.tools.specs if spec.name == call.name)
        limit = self.tools.timeout_of(call.name)
        try:
            text, images = await self._run(spec, call.arguments, limit)
        except (Fault, MissingDependencyError):
            raise
        except DeadlineError as late:  # of this runner, or of the tool's own backend
            text = f"{call.name} did not answer within {late.timeout_s:g} s."
            return self._failed(call, text, CallStatus.TIMEOUT)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a tool may raise anything
            text = f"{call.name} failed: {sentence_of(error)}"
            return self._failed(call, text, CallStatus.CRASHED)
        text = plain(text, self.tools.max_characters)
        return ToolResult(name=call.name, text=text, images=images)

    async def _run(self, spec: ToolSpec, arguments: dict[str, Any], limit: float | None) -> Shown:
        if spec.is_async:
            value = await _within(spec(**arguments), limit)
        else:
            value = await self._threads().run(lambda: _finished(spec(**arguments)), timeout_s=limit)
            if inspect.isawaitable(value):  # of a decorated asynchronous function
                value = await _within(value, limit)
        if isinstance(value, _Finished):
            return value.shown
        if isinstance(value, str):
            return value, ()
        return await self._threads().run(lambda: shown(value))  # decoding images is slow

    def _threads(self) -> WorkerPool:
        loop = asyncio.get_running_loop()
        if self._pool is None or self._loop is not loop:
            if self._pool is not None:
                self._pool.close()
            self._pool, self._loop = WorkerPool(_MAX_THREADS), loop
            weakref.finalize(self, self._pool.close)
        return self._pool

    def _failed(self, call: ToolCall, text: str, status: CallStatus) -> ToolResult:
        return ToolResult(
            name=call.name[:64], text=plain(text, _MAX_ERROR_CHARACTERS), status=status
        )


@dataclass(frozen=True, slots=True)
class _Finished:
    """A value that its own thread has already converted for the model."""

    shown: Shown


def _finished(value: Any) -> Any:  # noqa: ANN401  # what a tool returned
    return value if inspect.isawaitable(value) else _Finished(shown(value))


async def _within(work: Awaitable[Any], limit: float | None) -> Any:  # noqa: ANN401  # the tool's own
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            return await work
    except TimeoutError as error:
        if limit is not None and deadline.expired():  # else the tool raised it itself
            raise DeadlineError(limit) from error
        raise
