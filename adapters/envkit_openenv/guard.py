"""Access control for OpenEnv's application: a key, limits, and fair shares of sessions.

It is an ASGI middleware, so it depends only on OpenEnv's paths and error messages. It serves only
the paths that a session needs: OpenEnv's `POST /reset` and `/mcp` create environments outside of
sessions.

| a session | ends with |
| --- | --- |
| beyond the capacity, or its client's share | CAPACITY_REACHED, code 1013 |
| without a message for `session_timeout_s` | code 1001 |
| whose environment or client takes longer than `step_timeout_s` | code 1011 |
| with a message beyond `message_bytes` | code 1009 |

An answer beyond `answer_bytes`, or to a message that is not a JSON object, is an error; the session
continues. An HTTP connection serves one request, so nothing can be smuggled after it.
"""

import asyncio
import contextlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from envkit import ranges
from envkit.access import Access, Refusal
from envkit.errors import EnvFault, FaultKind
from envkit_openenv.protocol import write_fault

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_SESSION: Final = "/ws"
_HEALTH: Final = "/health"
_READ: Final = frozenset({_HEALTH, "/schema", "/metadata"})
"""Readable paths; the health route needs no key."""
_AWAY, _TOO_LARGE, _FAILED, _TRY_LATER = 1001, 1009, 1011, 1013
_CLOSE_S: Final = 2.0
_WAITING_S: Final = 60.0
"""Seconds that a client counts as waiting after a rejection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits on clients. Times are in seconds."""

    max_sessions: int = 64
    session_timeout_s: float = 1800.0
    """Idle time without a message; a client may wait this long for its engine."""
    step_timeout_s: float = 600.0
    """Time of a reset or a step, including delivery of the answer."""
    message_bytes: int = 4 << 20
    answer_bytes: int = 64 << 20
    """envkit's clients have the same limit."""

    def __post_init__(self) -> None:
        """Reject limits under which nothing could be played.

        Raises:
            ConfigurationError: One is not positive.
        """
        ranges.positive(**asdict(self))


class SessionShares:
    """Divides the sessions fairly among clients.

    A single client may have all. Once another asks, no client with an equal share gets more until
    every client that asked within the last minute has as many.
    """

    def __init__(self, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock = total, clock
        self._held = Counter[str]()
        self._asked: dict[str, float] = {}

    def take(self, client: str) -> str | None:
        """Take a session; return why that is not possible, or None."""
        now = self._clock()
        self._asked[client] = now
        self._asked = {
            name: at
            for name, at in self._asked.items()
            if name in self._held or now - at < _WAITING_S
        }
        share = math.ceil(self._total / len(self._asked))
        if self._held.total() >= self._total:
            return f"all {self._total} sessions are taken; try again later"
        if self._held[client] >= share:
            return f"{share} sessions are this client's share while others wait; try again later"
        self._held[client] += 1
        return None

    def release(self, client: str) -> None:
        """Release a session."""
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]


class Guard:
    """The middleware."""

    def __init__(self, app: Application, *, access: Access, limits: ServerLimits) -> None:
        self._app, self._access, self._limits = app, access, limits
        self._shares = SessionShares(limits.max_sessions)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or reject it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http":
            send = _closing(send)
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        else:
            await self._serve_session(scope, receive, send)

    def _refusal(self, scope: Message) -> Refusal | None:
        path: str = scope["path"]
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        refusal = self._access.refusal(headers, needs_key=path != _HEALTH)
        is_read = scope["type"] == "http" and path in _READ and scope["method"] in ("GET", "HEAD")
        if refusal is None and not is_read and (scope["type"], path) != ("websocket", _SESSION):
            return Refusal(status=404, reason=f"sessions are at {_SESSION}; nothing is served here")
        return refusal

    async def _serve_session(self, scope: Message, receive: Receive, send: Send) -> None:
        client = str((scope.get("client") or ("",))[0])
        reason = self._shares.take(client)
        if reason is not None:
            await receive()
            await send({"type": "websocket.accept"})
            await send(_error(reason, code="CAPACITY_REACHED"))
            await send({"type": "websocket.close", "code": _TRY_LATER, "reason": reason})
            return
        session = _GuardedSession(self._limits, receive, send)
        playing = asyncio.ensure_future(self._app(scope, session.receive, session.send))

        def release(_: object) -> None:
            self._shares.release(client)

        playing.add_done_callback(release)  # not before: a hanging environment still has a thread
        await session.watch(playing)


class _GuardedSession:
    """Forwards one session's messages, within the limits."""

    def __init__(self, limits: ServerLimits, receive: Receive, send: Send) -> None:
        self._limits, self._receive, self._send = limits, receive, send
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = asyncio.Event()

    async def watch(self, playing: "asyncio.Future[None]") -> None:
        """Wait for the session's end; a late one is closed and abandoned."""
        self._start_timer()
        late = asyncio.create_task(self._is_late.wait())
        try:
            await asyncio.wait({playing, late}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                playing.result()
                return
            await self._close(_FAILED, f"no answer within {self._limits.step_timeout_s:g} s")
        finally:
            self._stop_timer()
            late.cancel()
            playing.cancel()

    async def receive(self) -> Message:
        """Return the client's next message that can be answered, or its end."""
        while True:
            message = await self._next()
            is_said = message["type"] == "websocket.receive"
            problem = _problem(message.get("text")) if is_said else None
            if problem is None:
                return message
            await self.send(_error(problem, code="INVALID_JSON"))

    async def _next(self) -> Message:
        self._stop_timer()
        if self._is_over:
            return {"type": "websocket.disconnect", "code": _FAILED}
        try:
            async with asyncio.timeout(self._limits.session_timeout_s):
                message = await self._receive()
        except TimeoutError:
            return await self._end(_AWAY, f"idle for {self._limits.session_timeout_s:g} s")
        self._start_timer()
        text: str | bytes = message.get("text") or message.get("bytes") or ""
        if len(text) > self._limits.message_bytes:
            return await self._end(
                _TOO_LARGE, f"a message may have at most {self._limits.message_bytes} bytes"
            )
        return message

    async def send(self, message: Message) -> None:
        """Send a message, unless the session is over."""
        if self._is_over:
            return
        text: str = message.get("text") or ""
        if 4 * len(text) > self._limits.answer_bytes:  # otherwise it is short in any encoding
            size = len(text.encode(errors="replace"))
            if size > self._limits.answer_bytes:
                rule = f"at most {self._limits.answer_bytes} bytes"
                fault = EnvFault(f"an answer may have {rule}, got {size}", kind=FaultKind.PERMANENT)
                message = _error(write_fault(fault), code="EXECUTION_ERROR")
        await self._deliver(message)

    async def _deliver(self, message: Message) -> None:
        try:
            await self._send(message)
        except (OSError, RuntimeError):  # the client left, or uvicorn already closed the session
            self._is_over = True

    async def _end(self, code: int, reason: str) -> Message:
        await self._close(code, reason)
        return {"type": "websocket.disconnect", "code": code, "reason": reason}

    async def _close(self, code: int, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(TimeoutError):  # the client does not read
            async with asyncio.timeout(_CLOSE_S):
                await self._deliver({"type": "websocket.close", "code": code, "reason": reason})

    def _start_timer(self) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.step_timeout_s, self._is_late.set)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _refuse(refusal: Refusal, scope: Message, receive: Receive, send: Send) -> None:
    """Answer with the status; a server that cannot do so for a handshake answers 403."""
    prefix = "http.response"
    if scope["type"] == "websocket":
        await receive()
        prefix = "websocket.http.response"
        if prefix not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.reason})
            return
    body = json.dumps({"detail": refusal.reason}).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **refusal.headers,
    }
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": f"{prefix}.start", "status": refusal.status, "headers": encoded})
    await send({"type": f"{prefix}.body", "body": body})


def _closing(send: Send) -> Send:
    """Return a `send` whose answer is the last one of its connection."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return closing


def _problem(text: str | None) -> str | None:
    """Return why OpenEnv's application could not answer a message, or None."""
    if text is None:
        return "a message must be text, got bytes"
    try:
        found: object = json.loads(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a message must be valid Unicode, got half of a surrogate pair"
    except json.JSONDecodeError as error:
        return f"a message must be JSON: {error}"
    except ValueError:
        return f"an integer may have at most {sys.get_int_max_str_digits()} digits, got more"
    except RecursionError:
        return "a message is nested too deeply"
    if isinstance(found, dict):
        return None
    kind = "null" if found is None else type(found).__name__
    return f"a message must be a JSON object with 'type' as text, got {kind}"


def _error(text: str, *, code: str) -> Message:
    data = {"type": "error", "data": {"message": text, "code": code}}
    return {"type": "websocket.send", "text": json.dumps(data)}
