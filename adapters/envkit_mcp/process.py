"""A server's process, its children among them, and the messages on its pipes.

Where bubblewrap works, a server runs in its own PID namespace: killing the namespace ends all its
processes, also those that called setsid, and the kernel ends it if this process dies. Elsewhere the
process group is killed, then every process that carries its mark in its variables.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind
from envkit.toolcalls.tolerant_json import scrub
from envkit_mcp.declaration import FOLDER, McpServer
from envkit_mcp.folder import MARK, EpisodeFolder, abandoned, remove_tree

_CHUNK: Final = 1 << 16
_ERROR_TAIL: Final = 2000
_GRACE_S: Final = 0.5
"""Time to end after standard input was closed; the episode is over, so nothing is worth more."""
_REAP_S: Final = 5.0
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "TZ")
_EDGE: Final = 200
_ID_FIRST: Final = re.compile(rb'^\s*\{[^{\[]{0,80}"id"\s*:\s*(\d+)')
_ID_LAST: Final = re.compile(rb'"id"\s*:\s*(\d+)\s*(,\s*"jsonrpc"\s*:\s*"2.0"\s*)?\}\s*$')


class ServerProcess:
    """A running server. All methods run on one event loop."""

    def __init__(
        self, process: asyncio.subprocess.Process, mark: str, *, is_contained: bool
    ) -> None:
        self._process, self._mark, self._is_contained = process, mark, is_contained
        self._errors = bytearray()
        self._is_silent = False
        self._is_killed = False
        self._reading = asyncio.create_task(self._read_errors())

    @classmethod
    async def start(cls, server: McpServer, folder: EpisodeFolder) -> "ServerProcess":
        """Start a server in an episode's folder.

        Raises:
            EnvFault: The program cannot be started.
        """
        words = [word.replace(FOLDER, str(folder.files)) for word in server.command]
        variables = _variables(server.env, folder)
        found = shutil.which(words[0], path=variables.get("PATH"))
        if found is None and not (folder.files / words[0]).exists():
            raise EnvFault(
                f"the MCP server {server.name!r} cannot be started: there is no program "
                f"{words[0]!r:.200}; install it, or name its path",
                kind=FaultKind.PERMANENT,
            )
        contained = await asyncio.to_thread(can_contain)
        mark = f"{folder.root} {secrets.token_hex(8)}"  # an episode may have several servers
        if contained:
            words = [*_container(folder.files), *words]
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder.files,
                env={**variables, MARK: mark},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise EnvFault(
                f"the MCP server {server.name!r} cannot be started: {error!s:.300}",
                kind=FaultKind.PERMANENT,
            ) from error
        return cls(process, mark, is_contained=contained)

    @property
    def pid(self) -> int:
        """Of the process group, for tests that kill it."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, or has closed its standard output."""
        return self._is_silent or self._process.returncode is not None

    @property
    def last_words(self) -> str:
        """The end of its standard error, for messages; empty if there is none."""
        return self._errors.decode(errors="replace").strip()[-500:]

    async def stop(self) -> None:
        """End it and all processes that it started; nothing is left, however it resists."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        for _ in range(int(_GRACE_S / 0.01)):
            if self._process.returncode is not None:
                break
            await asyncio.sleep(0.01)
        await self.kill()

    async def kill(self) -> None:
        """End everything now; safe to call twice."""
        if self._is_killed:
            return  # its number may belong to another process by now
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if not self._is_contained:
            await asyncio.to_thread(_sweep, self._mark)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                while self._process.returncode is None:
                    await asyncio.sleep(0.005)
        self._reading.cancel()
        transport: Any = getattr(self._process, "_transport", None)
        if transport is not None:  # pipes that a stray child holds would keep it open
            transport.close()

    @asynccontextmanager
    async def streams(self, most: int) -> AsyncGenerator[tuple[Any, Any]]:
        """Give the SDK's client its pair of streams; the process is stopped at the end.

        Args:
            most: Maximum bytes of a message; the call of a larger one fails.
        """
        import anyio  # lazy: a dependency of the SDK

        sender, incoming = anyio.create_memory_object_stream[Any](0)
        outgoing, receiver = anyio.create_memory_object_stream[Any](0)
        tasks = [
            asyncio.create_task(self._receive(sender, most)),
            asyncio.create_task(self._send(receiver, sender)),
        ]
        try:
            yield incoming, outgoing
        finally:
            for stream in (incoming, outgoing, sender, receiver):
                stream.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.stop()

    async def _receive(self, sender: Any, most: int) -> None:  # noqa: ANN401  # anyio's stream
        """Forward the messages on standard output; closing the stream tells that it ended."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError), sender:
            lines = _Lines(most)
            while chunk := await self._process.stdout.read(_CHUNK):
                for line in lines.add(chunk):
                    message = _message(line)
                    if message is not None and not await _delivered(sender, message):
                        return
        self._is_silent = True

    async def _send(self, receiver: Any, sender: Any) -> None:  # noqa: ANN401  # anyio's streams
        assert self._process.stdin is not None
        try:
            async for item in receiver:
                text: str = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(text.encode() + b"\n")
                await self._process.stdin.drain()
        except (OSError, RuntimeError):
            sender.close()  # its requests fail now instead of waiting for their deadlines

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(OSError):
            while chunk := await self._process.stderr.read(_CHUNK):
                self._errors += chunk
                del self._errors[:-_ERROR_TAIL]


class _Lines:
    """Splits a stream into lines; a line beyond the limit becomes an error for its request."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self._dropped: bytes | None = None
        """The start of a line that is being dropped."""

    def add(self, chunk: bytes) -> list[bytes]:
        """Return the complete lines; the rest waits."""
        *ends, rest = chunk.split(b"\n")
        found = [line for end in ends if (line := self._finish(end)) is not None]
        self._grow(rest)
        return found

    def _finish(self, end: bytes) -> bytes | None:
        self._grow(end)
        line, self._buffer = bytes(self._buffer), bytearray()
        if self._dropped is None:
            return line
        start, self._dropped = self._dropped, None
        request = _ID_FIRST.search(start) or _ID_LAST.search(line)
        if request is None:
            return None
        return (
            b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":'
            b'"the answer has more than %d bytes and was dropped"}}'
        ) % (request[1], self._most)

    def _grow(self, part: bytes) -> None:
        self._buffer += part
        if len(self._buffer) > self._most or self._dropped is not None:
            if self._dropped is None:
                self._dropped = bytes(self._buffer[:_EDGE])
            del self._buffer[:-_EDGE]


def _message(line: bytes) -> Any:  # noqa: ANN401  # the SDK's message; None for other output
    """Read a message. Notifications are dropped: nothing reads them, and a flood delays others."""
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

    if not line.strip():
        return None
    try:
        found = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except (ValueError, RecursionError):
        found = _repaired(line)
    is_read = found is not None and not isinstance(found, JSONRPCNotification)
    return SessionMessage(found) if is_read else None


def _repaired(line: bytes) -> Any:  # noqa: ANN401  # the SDK's message; None for other output
    """Read an answer that is not Unicode; the call of one that cannot be read gets an error."""
    from mcp_types import jsonrpc_message_adapter

    ends = line[:_EDGE], line[-_EDGE:]
    if not any(b'"jsonrpc"' in end for end in ends):
        return None  # servers print to standard output; it is no message
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(line.decode(errors="replace")), ensure_ascii=False)
        return jsonrpc_message_adapter.validate_json(scrub(text), by_name=False)
    request = _ID_FIRST.search(ends[0]) or _ID_LAST.search(ends[1])
    if request is None or b'"method"' in ends[0]:
        return None
    return jsonrpc_message_adapter.validate_json(
        b'{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":'
        b'"the answer is not valid JSON-RPC"}}' % request[1]
    )


async def _delivered(sender: Any, message: Any) -> bool:  # noqa: ANN401  # anyio's and the SDK's
    import anyio

    try:
        await sender.send(message)
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        return False
    return True


def _variables(given: Mapping[str, str], folder: EpisodeFolder) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    own = {name: value.replace(FOLDER, str(folder.files)) for name, value in given.items()}
    places = {"HOME": str(folder.root / "home"), "TMPDIR": str(folder.root / "tmp")}
    return {**kept, **places, **own}


def _container(folder: Path) -> list[str]:
    return [
        *("bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid"),
        *("--die-with-parent", "--chdir", str(folder), "--"),
    ]


@cache
def can_contain() -> bool:
    """Return whether bubblewrap works here."""
    if shutil.which("bwrap") is None:
        return False
    try:
        done = subprocess.run(
            [*_container(Path("/")), "true"], capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def sweep_abandoned() -> None:
    """End and remove what processes left that were killed with episodes running."""
    for root in abandoned():
        _sweep(str(root))
        remove_tree(root)


def _sweep(mark: str) -> None:
    """Kill the processes with a server's mark, or of an episode's folder, until none is left."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(50):
        found = [
            pid
            for pid in _processes()
            if any(
                one == wanted or one.startswith(wanted + b" ")
                for one in _environment(pid).split(b"\0")
            )
        ]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    return [
        int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()
    ]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()  # empty for one that has ended
    except OSError:
        return b""
