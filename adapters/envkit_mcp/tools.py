"""The tools of an episode's servers.

    servers = McpTools(read_servers({"time": {"command": ["mcp-server-time"]}}))
    tools = await servers.start()   # a ToolSet of envkit
    ...
    await servers.stop()

What happens to a call of the policy:

| the server | outcome |
| --- | --- |
| answers, also with an error | a result, or a tool error |
| is late, but answers other requests | a tool error of status "timeout" |
| dies or hangs during the call | the same call is tried once on a fresh one, see `_try_again` |
| cannot be started again after it | a tool error if it starts in an untouched folder |
| dies between calls | the same, for the call before, see `_try_last` |
| fails by HTTP | `EnvFault` |
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from envkit.errors import EnvFault, FaultKind
from envkit.images import Image
from envkit.threads.workers import DeadlineError, gather_or_cancel
from envkit.toolset import ToolSet
from envkit_mcp.background import in_background
from envkit_mcp.declaration import McpLimits, McpServer
from envkit_mcp.folder import EpisodeFolder
from envkit_mcp.outcomes import Ending, NoAnswerError, RefusedCallError
from envkit_mcp.process import sweep_abandoned
from envkit_mcp.results import LethalCallError, ToolCallError, read_result
from envkit_mcp.schemas import check_names, specs_of

if TYPE_CHECKING:
    from envkit_mcp.session import Session
    from envkit_mcp.sharing import SharedSession

_SLACK_S: Final = 60.0
_swept: Final[list[bool]] = []
"""Not empty once this process has looked for what killed ones left."""
_SETTLE_S: Final = 2.0
"""Time in which a fresh server may die after a call, as the first one did."""


class McpTools:
    """Connections of one environment. Each episode starts with `start`, which ends the last one."""

    def __init__(self, servers: Sequence[McpServer], limits: McpLimits | None = None) -> None:
        """Take the servers; `start` connects to them.

        Args:
            servers: At least one, with different names.
            limits: None uses the defaults.

        Raises:
            MissingDependencyError: The package mcp is not installed.
        """
        import_module("envkit_mcp.session")  # reports a missing package now

        self._servers = tuple(servers)
        self._limits = limits or McpLimits()
        self._open: dict[str, Session] = {}
        """The episode's connections, shared ones among them."""
        self._shared: dict[str, SharedSession] = {}
        self._spoilt: set[str] = set()
        """Servers that do not start with what the episode's calls left in its folder."""
        self._lock = asyncio.Lock()
        """Held by a start and a stop: a start that was cancelled still ends its processes."""
        self._files: Mapping[str, str] = {}
        self._template: Path | None = None
        self._last: dict[str, tuple[str, dict[str, Any]]] = {}
        """Each server's latest call."""
        self.folder: EpisodeFolder | None = None
        """The episode's folder; None before `start`, and after `stop`."""

    async def start(
        self, files: Mapping[str, str] | None = None, *, template: Path | None = None
    ) -> ToolSet:
        """Start an episode: a new folder, and a fresh process or session of each server.

        Args:
            files: Written into the folder, by relative path.
            template: A folder whose content is copied into it first.

        Raises:
            EnvFault: A server failed, or its tools cannot be used.
            DatasetError: A file's path leaves the folder.
        """
        return await in_background(self._start(files or {}, template))

    async def stop(self, *, with_shared: bool = True) -> None:
        """End the processes and remove the folder; safe to call twice.

        Args:
            with_shared: Also let go of shared servers, which end with their last user.
        """
        await in_background(self._stop(with_shared=with_shared), to_its_end=True)

    def has_tool(self, server: str, tool: str) -> bool:
        """Return whether an episode's server lists a tool, offered or not."""
        return any(one.name == tool for one in self._open[server].tools)

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> list[str | Image]:
        """Call a tool by the server's own name of it, and return the parts of its result.

        Raises:
            ToolCallError: It failed by the tool's or the policy's doing.
            DeadlineError: A working server did not answer in time.
            EnvFault: The server failed.
        """
        declared = next(one for one in self._servers if one.name == server)
        return await in_background(self._call(declared, tool, arguments))

    def __getstate__(self) -> dict[str, Any]:
        fresh = {"_open": {}, "_shared": {}, "folder": None, "_lock": asyncio.Lock()}
        return {**self.__dict__, **fresh}  # connections are not to be copied

    async def _start(self, files: Mapping[str, str], template: Path | None) -> ToolSet:
        async with self._lock:
            return await self._open_all(files, template)

    async def _stop(self, *, with_shared: bool) -> None:
        async with self._lock:
            await self._close_all(with_shared=with_shared)

    async def _open_all(self, files: Mapping[str, str], template: Path | None) -> ToolSet:
        await self._close_all(with_shared=False)
        if not _swept:
            _swept.append(True)
            await asyncio.to_thread(sweep_abandoned)
        self._files, self._template = files, template
        self._spoilt.clear()
        try:
            self.folder = EpisodeFolder(template=template)
            self.folder.fill(files)
            opened = await gather_or_cancel([self._connect(server) for server in self._servers])
            pairs = [
                (server, spec)
                for server, session in zip(self._servers, opened, strict=True)
                for spec in specs_of(
                    server,
                    session.tools,
                    lambda tool, server=server: self._function(server, tool),
                    most=self._limits.tools,
                )
            ]
            check_names(pairs)
        except BaseException:
            await self._close_all(with_shared=False)
            raise
        # A call, its trial on a fresh server, and three starts: each has its deadline.
        longest = 2 * self._limits.call_timeout_s + 3 * self._limits.connect_timeout_s + _SLACK_S
        return ToolSet(
            specs=tuple(spec for _, spec in pairs),
            timeout_s=longest,
            max_calls=self._limits.max_calls,
            max_characters=self._limits.characters,
            is_sequential=True,  # the tools of a server share its state
        )

    async def _close_all(self, *, with_shared: bool) -> None:
        opened, self._open = self._open, {}
        self._last.clear()
        for name, session in reversed(opened.items()):
            if name not in self._shared:
                await session.close()
        if with_shared:
            shared, self._shared = self._shared, {}
            for one in shared.values():
                await one.release()
        folder, self.folder = self.folder, None
        if folder is not None:
            folder.close()

    def _function(self, server: McpServer, tool: str) -> Any:  # noqa: ANN401  # a tool's function
        async def call(**arguments: Any) -> list[str | Image] | str:  # noqa: ANN401  # JSON data
            parts = await self.call(server.name, tool, arguments)
            if any(isinstance(part, Image) for part in parts):
                return parts
            return "\n".join(str(part) for part in parts) or "Done."

        return call

    async def _connect(self, server: McpServer) -> "Session":
        """Open the episode's connection to a server, or use the shared one."""
        from envkit_mcp.session import Session
        from envkit_mcp.sharing import SharedSession

        if not server.is_shared:
            assert self.folder is not None
            session = await Session.open(server, self._limits, self.folder)
        else:
            if server.name not in self._shared:
                self._shared[server.name] = SharedSession.take(server, self._limits)
            session = await self._shared[server.name].session()
        self._open[server.name] = session
        return session

    async def _call(
        self, server: McpServer, tool: str, arguments: Mapping[str, Any]
    ) -> list[str | Image]:
        if self.folder is None:
            raise EnvFault("no episode is running; reset starts one", kind=FaultKind.CRASHED)
        if server.name in self._spoilt:
            raise LethalCallError("the server does not start with what is now in its folder")
        session = self._open[server.name]
        if not session.is_alive:
            await self._try_last(server)
        self._last[server.name] = (tool, dict(arguments))
        try:
            return await _answer(session, tool, arguments)
        except NoAnswerError as missing:
            if missing.ending is Ending.LATE:
                raise DeadlineError(self._limits.call_timeout_s) from missing
            if missing.ending is Ending.HTTP or server.url is not None:
                raise _lost(server, missing) from missing
            await self._try_again(server, tool, arguments, missing)

    async def _try_last(self, server: McpServer) -> NoReturn:
        """Find out whether the call before this one ended its server after its answer.

        Raises:
            LethalCallError: It did; this call is not run.
            EnvFault: It did not, there is none, or a fresh server cannot be started.
        """
        missing = NoAnswerError(Ending.DIED, "it ended between two calls")
        last = self._last.pop(server.name, None)
        if last is None or server.url is not None:
            raise _lost(server, missing)
        await self._try_again(server, *last, missing, settle_s=_SETTLE_S)

    async def _try_again(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        missing: NoAnswerError,
        *,
        settle_s: float = 0.0,
    ) -> NoReturn:
        """Find out whether a call itself ended its server.

        The call runs once more, in the same folder, on a process that did nothing else. If that one
        ends too, the call did it: a tool error, and the episode goes on with a new process. If not,
        something else did: a fault. The second answer is not used, because the first call may have
        taken effect, and because the state of the process is lost; a fault starts the episode over.

        Args:
            server: The server that ended.
            tool: The call's tool.
            arguments: The call's arguments.
            missing: How the server ended.
            settle_s: Seconds in which the fresh server may end after its answer.

        Raises:
            LethalCallError: The call ended two servers.
            EnvFault: It did not, or a fresh server cannot be started.
        """
        from envkit_mcp.session import Session

        if not server.is_shared:
            await self._open[server.name].close()
        assert self.folder is not None
        try:
            fresh = await Session.open(server, self._limits, self.folder)
        except EnvFault as fault:
            raise await self._not_started(server, fault) from fault
        try:
            is_lethal = await _is_lethal(fresh, tool, arguments, settle_s)
        finally:
            await fresh.close()
        if not is_lethal:
            raise _lost(server, missing) from missing
        try:
            await self._connect(server)
        except EnvFault as fault:
            raise await self._not_started(server, fault) from fault
        when = "during this call" if settle_s == 0 else f"after the call of {tool}"
        rest = "" if settle_s == 0 else "; this call was not run"
        raise LethalCallError(
            f"the server {missing.ending.value} {when}, and so did a fresh one{rest}. "
            "It was started again; what it kept in memory is lost"
        ) from missing

    async def _not_started(self, server: McpServer, fault: EnvFault) -> EnvFault | LethalCallError:
        """Return whose doing it is that a server cannot be started again.

        The policy's, if it starts in an untouched folder: a fault would play the same again.
        """
        from envkit_mcp.session import Session

        if server.is_shared:
            return fault
        try:
            with EpisodeFolder(template=self._template) as folder:
                folder.fill(self._files)
                await (await Session.open(server, self._limits, folder)).close()
        except EnvFault:
            return fault
        self._spoilt.add(server.name)
        return LethalCallError(
            "the server ended during this call, and does not start again with what is now in its "
            f"folder: {fault!s:.300}"
        )


async def _is_lethal(
    fresh: "Session", tool: str, arguments: Mapping[str, Any], settle_s: float
) -> bool:
    """Make a call, and return whether the server ends or hangs by it."""
    try:
        await _answer(fresh, tool, arguments)
    except ToolCallError:
        pass
    except NoAnswerError as missing:
        return missing.ending in (Ending.DIED, Ending.HUNG)
    return await fresh.ends_within(settle_s)


async def _answer(session: "Session", tool: str, arguments: Mapping[str, Any]) -> list[str | Image]:
    try:
        result = await session.call(tool, arguments)
        if all(block.type == "text" for block in result.content):
            return read_result(result)
        return await asyncio.to_thread(read_result, result)  # decodes images
    except RefusedCallError as refused:
        raise ToolCallError(str(refused)) from refused


def _lost(server: McpServer, missing: NoAnswerError) -> EnvFault:
    return EnvFault(f"the MCP server {server.name!r} failed: {missing}", kind=missing.kind)
