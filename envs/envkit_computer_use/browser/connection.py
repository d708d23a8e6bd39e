"""The DevTools protocol over one WebSocket: commands with deadlines, and events.

Protocol: chromedevtools.github.io/devtools-protocol. Sessions are flat: every message of a page
carries its session id.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import aiohttp

from envkit_computer_use.browser.trouble import BrowserFault, Trouble

Reply = dict[str, Any]
"""The result of a command: any JSON object."""
EventHandler = Callable[[str, Reply], None]
"""Takes the name and the parameters of an event; must not block."""
_CONNECT_S: Final = 10.0
_FAILURES: Final = (aiohttp.ClientError, ConnectionError, OSError, asyncio.TimeoutError)


class Connection:
    """A connection to a browser; belongs to the event loop that opened it."""

    def __init__(
        self, http: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._http, self._socket = http, socket
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._waiting: dict[int, tuple[str, str | None, asyncio.Future[Reply]]] = {}
        self._handlers: dict[str | None, EventHandler] = {}
        self.on_lost: Callable[[], None] = lambda: None
        """Called once when the socket closes without `aclose`."""
        self.is_open = True
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect.

        Raises:
            BrowserFault: Nobody answers there.
        """
        http = aiohttp.ClientSession(trust_env=False)
        try:
            socket = await asyncio.wait_for(http.ws_connect(url, max_msg_size=0), _CONNECT_S)
        except BaseException as error:
            await http.close()
            if isinstance(error, _FAILURES):
                raise BrowserFault(
                    f"the browser's DevTools socket cannot be reached: {error!r}",
                    trouble=Trouble.START_FAILED,
                ) from error
            raise
        return cls(http, socket)

    def listen(self, session: str | None, handler: EventHandler | None) -> None:
        """Set who gets the events of a session (None: of the browser), or nobody."""
        if handler is None:
            self._handlers.pop(session, None)
        else:
            self._handlers[session] = handler

    async def send(
        self, method: str, session: str | None, deadline_s: float, params: Mapping[str, Any]
    ) -> Reply:
        """Send a command and wait for its result.

        Messages go out in the order of the first steps of their coroutines, so a `gather` of
        commands is a pipeline.

        Raises:
            BrowserFault: The connection is closed, the deadline passed, or the browser refuses.
        """
        if not self.is_open:
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
            await self._socket.send_str(json.dumps(message))
            return await future
        except _FAILURES as error:
            raise self._lost(method) from error
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
            if future.done() and not future.cancelled():
                future.exception()  # looked at, even where the caller was cancelled meanwhile

    def fail(self, session: str, fault: BrowserFault) -> None:
        """End what waits for a page that will not answer any more."""
        for _, owner, future in self._waiting.values():
            if owner == session and not future.done():
                future.set_exception(fault)

    async def break_off(self) -> None:
        """Close the socket as if the other end had, for tests and drills."""
        await self._socket.close()

    async def aclose(self) -> None:
        """Close the socket; what still waits gets a fault."""
        self.on_lost = lambda: None
        self.is_open = False
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._socket.close()
        await self._http.close()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    self._take(json.loads(message.data))
        finally:
            self.is_open = False
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
