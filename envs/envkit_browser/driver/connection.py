"""The DevTools protocol over a pair of sockets: commands with deadlines, and events.

Protocol: chromedevtools.github.io/devtools-protocol, as `--remote-debugging-pipe` speaks it: JSON,
and a zero byte after each message. No port is open, so only this process can control the browser.
Sessions are flat: every message of a page carries its session id.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from envkit_browser.driver.trouble import BrowserFault, Trouble

Reply = dict[str, Any]
"""The result of a command: any JSON object."""
EventHandler = Callable[[str, Reply], None]
"""Receives the name and parameters of an event; must not block."""
_END: Final = b"\0"


class Connection(asyncio.Protocol):
    """A connection to a browser; belongs to the event loop that opened it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._closed = self._loop.create_future()
        self._begun: list[bytes] = []
        """Parts of an incomplete message."""
        self._number = 0
        self._waiting: dict[int, tuple[str, str | None, asyncio.Future[Reply]]] = {}
        self._handlers: dict[str | None, EventHandler] = {}
        self.on_lost: Callable[[], None] = lambda: None
        """Called once when the socket closes without `aclose`."""
        self.is_open = False

    @classmethod
    async def open(cls, end: socket.socket) -> "Connection":
        """Connect, taking ownership of our end of the socket pair."""
        loop = asyncio.get_running_loop()
        try:
            return (await loop.create_unix_connection(cls, sock=end))[1]
        except BaseException:
            end.close()
            raise

    def listen(self, session: str | None, handler: EventHandler | None) -> None:
        """Set the handler for a session's events (None: the browser's); None removes it."""
        if handler is None:
            self._handlers.pop(session, None)
        else:
            self._handlers[session] = handler

    async def send(
        self, method: str, session: str | None, deadline_s: float, params: Mapping[str, Any]
    ) -> Reply:
        """Send a command and wait for its result.

        Messages go out in the order in which their coroutines start, so a `gather` of commands is a
        pipeline.

        Raises:
            BrowserFault: The connection is closed, the deadline passed, or the browser refuses.
        """
        if self._transport is None or not self.is_open:
            raise self._lost(method)
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        future: asyncio.Future[Reply] = self._loop.create_future()
        timer = self._loop.call_later(deadline_s, self._expire, number, deadline_s)
        self._waiting[number] = (method, session, future)
        try:
            self._transport.write(json.dumps(message).encode() + _END)
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # retrieved, even if the caller was cancelled meanwhile

    def fail(self, session: str, fault: BrowserFault) -> None:
        """Fail pending commands of a page that no longer answers."""
        for _, owner, future in self._waiting.values():
            if owner == session and not future.done():
                future.set_exception(fault)

    def break_off(self) -> None:
        """Close the socket as if the peer had, for tests and fault injection."""
        if self._transport is not None:
            self._transport.abort()

    async def aclose(self) -> None:
        """Close the socket; pending commands get a fault."""
        self.on_lost = lambda: None
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()  # not `close`: a stopped browser never reads the last command
            await asyncio.shield(self._closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start; called by the event loop."""
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        """Receive data; called by the event loop."""
        *ends, rest = data.split(_END)
        for end in ends:
            self._begun.append(end)
            message = b"".join(self._begun)
            self._begun.clear()
            self._take(json.loads(message))
        if rest:
            self._begun.append(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail pending commands; called by the event loop."""
        self.is_open = False
        if not self._closed.done():
            self._closed.set_result(None)
        for method, _, future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(self._lost(method))
        self.on_lost()

    def _take(self, message: Reply) -> None:
        if "id" not in message:
            handler = self._handlers.get(message.get("sessionId"))
            if handler is not None:
                handler(message["method"], message.get("params", {}))
            return
        waiting = self._waiting.get(message["id"])
        if waiting is None or waiting[2].done():
            return
        method, _, future = waiting
        if "error" in message:
            error = cast(Reply, message["error"])
            text = f"the browser refuses {method}: {error.get('message')!r:.300}"
            future.set_exception(BrowserFault(text, trouble=Trouble.REFUSED))
        else:
            future.set_result(message.get("result", {}))

    def _expire(self, number: int, deadline_s: float) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting[2].done():
            waiting[2].set_exception(
                BrowserFault(
                    f"the browser does not answer {waiting[0]} within {deadline_s:g} s",
                    trouble=Trouble.HUNG,
                )
            )

    def _lost(self, method: str) -> BrowserFault:
        return BrowserFault(
            f"the connection to the browser is closed, at {method}", trouble=Trouble.SOCKET_CLOSED
        )
