"""One connection to a server, opened and closed by one task on the background loop."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, cast

from envkit.errors import EnvFault, FaultKind, MissingDependencyError, describe
from envkit.toolcalls.tolerant_json import scrub
from envkit_mcp.declaration import McpLimits, McpServer
from envkit_mcp.folder import EpisodeFolder
from envkit_mcp.outcomes import Ending, NoAnswerError, RefusedCallError
from envkit_mcp.process import ServerProcess

try:
    import mcp
    from mcp.shared.exceptions import MCPError

    from envkit_mcp.http import HttpNotes, http_streams
except ImportError as error:
    raise MissingDependencyError.for_extra("MCP servers", "mcp", "mcp") from error

_CLOSE_S: Final = 10.0
_PROBE_S: Final = 5.0
_PAGES: Final = 100
_CLOSED: Final = -32000
"""The SDK's code for a connection that ended."""
_LATE: Final = -32001
"""The SDK's code for an answer that is late."""


class Session:
    """A connection. `open` makes one; all methods run on the background loop."""

    def __init__(self, server: McpServer, limits: McpLimits, folder: EpisodeFolder) -> None:
        self._server, self._limits, self._folder = server, limits, folder
        self._ready, self._stop = asyncio.Event(), asyncio.Event()
        self._notes = HttpNotes()
        self._client: Any = None
        self._error: BaseException | None = None
        self.process: ServerProcess | None = None
        """None for a server over HTTP."""
        self.tools: list[Any] = []
        """The server's tools, of all pages."""
        self._task = asyncio.create_task(self._hold(), name=f"mcp {server.name}")

    @classmethod
    async def open(cls, server: McpServer, limits: McpLimits, folder: EpisodeFolder) -> "Session":
        """Connect to a server and list its tools.

        Raises:
            EnvFault: It cannot be started or reached, died, did not answer in time, or has too many
                pages of tools.
        """
        session = cls(server, limits, folder)
        waiting = asyncio.create_task(session._ready.wait())
        try:
            await asyncio.wait(
                {session._task, waiting},
                timeout=limits.connect_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not session._ready.is_set():
                is_late = not session._task.done()
                await session.close()
                raise session._failed_to_open(is_late=is_late)
        except asyncio.CancelledError:
            await session.close()
            raise
        finally:
            waiting.cancel()
        return session

    @property
    def is_alive(self) -> bool:
        """Whether the connection still stands, as far as is known."""
        has_ended = self.process is not None and self.process.has_ended
        return not self._task.done() and not has_ended

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Call a tool and return the SDK's `CallToolResult`.

        Raises:
            NoAnswerError: There was no answer.
            RefusedCallError: The answer is an error of the protocol, or not valid.
        """
        limit = self._limits.call_timeout_s
        if not self.is_alive:
            raise NoAnswerError(Ending.DIED, self._why_it_ended())
        before = self._notes.failures, self._notes.too_large
        work = asyncio.create_task(
            self._client.call_tool(tool, _unicode(arguments), read_timeout_seconds=limit)
        )
        work.add_done_callback(_read_failure)
        try:
            # The SDK cancels callers of a lost HTTP server: look at tasks instead of awaiting them.
            await asyncio.wait(
                {work, self._task}, timeout=limit + 1, return_when=asyncio.FIRST_COMPLETED
            )
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=1)
                if not self.is_alive:
                    raise NoAnswerError(Ending.DIED, self._why_it_ended())
                raise await self._late()
            return await self._outcome(work, before)
        finally:
            work.cancel()

    async def ends_within(self, seconds: float) -> bool:
        """Return whether the connection ends within a time."""
        end = asyncio.get_running_loop().time() + seconds
        while self.is_alive and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        return not self.is_alive

    async def close(self) -> None:
        """End the connection and the process; safe to call twice."""
        self._stop.set()
        if not self._ready.is_set():
            self._task.cancel()  # it waits for an answer of the server, and not for `_stop`
        await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
        if self.process is not None:
            await self.process.kill()

    async def _outcome(self, work: "asyncio.Task[Any]", before: tuple[int, int]) -> Any:  # noqa: ANN401
        failure = asyncio.CancelledError() if work.cancelled() else work.exception()
        if failure is None:
            return work.result()
        notes = self._notes
        if notes.failure is not None and notes.failures > before[0]:
            raise NoAnswerError(Ending.HTTP, notes.failure, notes.kind) from failure
        if notes.too_large > before[1]:
            raise RefusedCallError(
                f"the answer has more than {self._limits.answer_bytes} bytes and was dropped"
            ) from failure
        if isinstance(failure, MCPError):
            said: Any = cast("Any", failure).error
            if said.code == _LATE:
                raise await self._late()
            if said.code != _CLOSED:
                raise RefusedCallError(said.message) from failure
        elif isinstance(failure, Exception):
            raise RefusedCallError(f"{describe(failure):.500}") from failure
        raise NoAnswerError(Ending.DIED, self._why_it_ended()) from failure

    async def _late(self) -> NoAnswerError:
        """Return whether a server without an answer works or hangs."""
        late = f"did not answer within {self._limits.call_timeout_s:g} s"
        if self._server.url is not None:
            return NoAnswerError(Ending.LATE, late, FaultKind.TIMEOUT)
        probe = asyncio.create_task(self._client.list_tools(cache_mode="bypass"))
        probe.add_done_callback(_read_failure)
        await asyncio.wait({probe}, timeout=_PROBE_S)
        is_answered = probe.done() and not probe.cancelled() and probe.exception() is None
        probe.cancel()
        ending = Ending.LATE if is_answered else Ending.HUNG
        return NoAnswerError(ending, late, FaultKind.TIMEOUT)

    async def _hold(self) -> None:
        """Open the connection, wait for `close`, and close it: the SDK wants one task for both."""
        try:
            async with AsyncExitStack() as stack:
                streams = await self._connect()
                client = mcp.Client(
                    streams,
                    mode=self._server.era,
                    cache=None,
                    read_timeout_seconds=self._limits.connect_timeout_s,
                )
                self._client = await stack.enter_async_context(client)
                # A pattern of an output schema can take forever, and stops the whole process.
                self._client.session.validate_tool_result = _accept
                self.tools = await self._list()
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:  # noqa: BLE001  # groups and cancellations of the SDK
            self._error = error
        finally:
            if self.process is not None:
                with contextlib.suppress(OSError):
                    await asyncio.shield(self.process.kill())

    async def _connect(self) -> Any:  # noqa: ANN401  # a context manager of the SDK's streams
        if self._server.url is None:
            self.process = await ServerProcess.start(self._server, self._folder)
            return self.process.streams(self._limits.answer_bytes)
        return http_streams(
            self._server.url,
            self._server.headers,
            most=self._limits.answer_bytes,
            timeout_s=self._limits.connect_timeout_s,
            notes=self._notes,
        )

    async def _list(self) -> list[Any]:
        """Return the tools of all pages. The SDK keeps their schemas, and lists none again."""
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise EnvFault(
            f"the MCP server {self._server.name!r} may list its tools on at most {_PAGES} pages, "
            f"got more with {len(found)} tools",
            kind=FaultKind.PERMANENT,
        )

    def _failed_to_open(self, *, is_late: bool) -> EnvFault:
        error = _first(self._error)
        if isinstance(error, EnvFault):
            return error
        name, words = self._server.name, self._last_words()
        if is_late:
            return EnvFault(
                f"the MCP server {name!r} was not ready within "
                f"{self._limits.connect_timeout_s:g} s{words}",
                kind=FaultKind.TIMEOUT,
            )
        kind, why = FaultKind.CRASHED, "it ended" if error is None else f"{describe(error):.300}"
        if self._notes.failure is not None:
            kind, why = self._notes.kind, self._notes.failure
        elif isinstance(error, MCPError):
            said: Any = cast("Any", error).error
            is_closed = said.code == _CLOSED
            kind = FaultKind.CRASHED if is_closed else FaultKind.PERMANENT
            why = "it ended" if is_closed else f"it answered: {said.message:.300}"
        elif isinstance(error, Exception) and not isinstance(error, OSError):
            kind = FaultKind.PERMANENT
        return EnvFault(f"the MCP server {name!r} cannot be used: {why}{words}", kind=kind)

    def _why_it_ended(self) -> str:
        if self._notes.failure is not None:
            return f"it was lost: {self._notes.failure}"
        return f"it ended{self._last_words()}"

    def _last_words(self) -> str:
        words = "" if self.process is None else self.process.last_words
        return f"; the end of its standard error: {words}" if words else ""


async def _accept(name: str, result: object) -> None:
    """Accept any structured content; the model reads the text."""


def _unicode(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON data without lone surrogates, which cannot be sent."""
    return json.loads(scrub(json.dumps(dict(arguments), ensure_ascii=False)))


def _read_failure(task: "asyncio.Task[Any]") -> None:
    """Retrieve an abandoned task's exception; otherwise asyncio logs it."""
    if not task.cancelled():
        task.exception()


def _first(error: BaseException | None) -> BaseException | None:
    """Return the cause in the groups of the SDK's tasks, preferring one that is not a closing."""
    while isinstance(error, BaseExceptionGroup):
        parts: tuple[BaseException, ...] = error.exceptions
        error = next((part for part in parts if not isinstance(part, OSError)), parts[0])
    return error
