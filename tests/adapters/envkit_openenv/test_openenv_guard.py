"""The guard of an OpenEnv server: key, paths, bounds and shares, driven as ASGI."""

import asyncio
import contextlib
import json
from collections.abc import MutableMapping
from typing import Any

import pytest
from fakes.virtual_time import skip
from fakes.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from envkit.access import Access, bearer
from envkit.errors import ConfigurationError
from envkit_openenv.guard import Guard, ServerLimits, SessionShares

KEY = "a-key-for-these-tests"
Message = MutableMapping[str, Any]


class EchoApp:
    """A session that answers each message with itself, or as its text says."""

    def __init__(self) -> None:
        self.opened = self.ended = 0
        self.hung = asyncio.Event()
        self.heard: list[str] = []

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        self.opened += 1
        try:
            assert (await receive())["type"] == "websocket.connect"
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                await self._answer(json.loads(message["text"])["type"], send)
        finally:
            self.ended += 1

    async def _answer(self, text: str, send: Any) -> None:
        self.heard.append(text)
        while text == "hang" and not self.hung.is_set():
            with contextlib.suppress(asyncio.CancelledError):  # a thread cannot be cancelled
                await self.hung.wait()
        grown = "é" * 400 if text == "grow" else text
        await send({"type": "websocket.send", "text": grown})


class Client:
    """One connection: what it says and what it gets."""

    def __init__(self, guard: Guard, *, address: str = "10.0.0.1", path: str = "/ws") -> None:
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self.got: asyncio.Queue[Message] = asyncio.Queue()
        self.lost: Exception | None = None
        """What sending to it raises."""
        headers = [("host", "box:8000"), *bearer(KEY).items()]
        self.scope: Message = {
            "type": "websocket",
            "path": path,
            "client": (address, 5000),
            "headers": [(name.encode(), value.encode()) for name, value in headers],
            "extensions": {"websocket.http.response": {}},
        }
        self._guard = guard
        self._said.put_nowait({"type": "websocket.connect"})

    def start(self) -> "asyncio.Task[None]":
        """Connect."""
        self.task = asyncio.ensure_future(
            self._guard(self.scope, self._said.get, self._hear)  # type: ignore[arg-type]
        )
        return self.task

    def say(self, text: str) -> None:
        """Send a message."""
        self.send({"text": json.dumps({"type": text})})

    def send(self, message: Message) -> None:
        """Send a message as it is."""
        self._said.put_nowait({"type": "websocket.receive", **message})

    async def _hear(self, message: Message) -> None:
        if self.lost is not None:
            raise self.lost
        await self.got.put(message)

    def leave(self) -> None:
        """Close the connection."""
        self._said.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def next(self) -> Message:
        """Return what comes next."""
        return await asyncio.wait_for(self.got.get(), 120)


def guarded(app: EchoApp, **limits: Any) -> Guard:
    return Guard(app, access=Access(key=KEY), limits=ServerLimits(**limits))  # type: ignore[arg-type]


async def opened(guard: Guard, address: str = "10.0.0.1") -> tuple[Client, Message]:
    """Connect and say hello; returns what comes after the acceptance."""
    client = Client(guard, address=address)
    client.start()
    accepted = await client.next()
    assert accepted["type"] == "websocket.accept"
    client.say("hello")
    return client, await client.next()


async def requested(guard: Guard, path: str, *, method: str = "GET", key: str | None = KEY) -> int:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"box"), *((n.encode(), v.encode()) for n, v in bearer(key).items())]
    scope = {"type": "http", "path": path, "method": method, "headers": headers}
    await guard(scope, receive, send)
    assert (b"connection", b"close") in sent[0]["headers"]  # nothing can be smuggled after it
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("GET", "/health", None, 200),
        ("GET", "/schema", KEY, 200),
        ("GET", "/schema", None, 401),
        ("GET", "/metadata", KEY, 200),
        ("GET", "/state", KEY, 404),
        ("POST", "/reset", KEY, 404),
        ("POST", "/step", KEY, 404),
        ("POST", "/mcp", KEY, 404),
        ("POST", "/mcp", None, 401),
        ("POST", "/schema", KEY, 404),
        ("GET", "/docs", KEY, 404),
        ("GET", "/web", KEY, 404),
    ],
)
async def test_only_the_paths_of_sessions_are_served(
    method: str, path: str, key: str | None, status: int
) -> None:
    assert await requested(guarded(EchoApp()), path, method=method, key=key) == status


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ([], "/ws", 401),
        ([(b"authorization", b"Bearer wrong")], "/ws", 401),
        ([(b"authorization", f"Bearer {KEY}".encode()), (b"origin", b"http://evil")], "/ws", 403),
        ([(b"authorization", f"Bearer {KEY}".encode())], "/mcp", 404),
    ],
)
async def test_stranger_gets_no_session(
    headers: list[tuple[bytes, bytes]], path: str, status: int
) -> None:
    app = EchoApp()
    client = Client(guarded(app), path=path)
    client.scope["headers"] = [(b"host", b"box:8000"), *headers]
    await client.start()
    start, body = await client.next(), await client.next()
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert KEY.encode() not in body["body"]
    del client.scope["extensions"]
    client._said.put_nowait({"type": "websocket.connect"})
    await client.start()
    assert (await client.next())["type"] == "websocket.close"
    assert app.opened == 0


async def test_messages_pass_and_the_place_is_free_again() -> None:
    app = EchoApp()
    guard = guarded(app, max_sessions=1)
    for _ in range(3):
        client, answer = await opened(guard)
        assert answer["text"] == "hello"
        client.leave()
        await client.task
    assert (app.opened, app.ended) == (3, 3)


async def test_full_server_says_so_as_openenv_does() -> None:
    guard = guarded(EchoApp(), max_sessions=1)
    first, _ = await opened(guard)
    _, refused = await opened(guard)
    assert json.loads(refused["text"])["data"]["code"] == "CAPACITY_REACHED"
    first.leave()
    await first.task
    _, answer = await opened(guard)
    assert answer["text"] == "hello"


async def test_idle_session_ends() -> None:
    app = EchoApp()
    client, _ = await opened(guarded(app, session_timeout_s=60))
    skip(60)
    closed = await client.next()
    assert (closed["code"], closed["reason"]) == (1001, "idle for 60 s")
    await client.task
    assert app.ended == 1


async def test_session_that_hangs_is_closed_and_keeps_its_place_until_it_ends() -> None:
    app = EchoApp()
    guard = guarded(app, step_timeout_s=60, max_sessions=1)
    client, _ = await opened(guard)
    client.say("hang")
    await until(lambda: "hang" in app.heard)
    skip(60)
    assert (await client.next())["code"] == 1011
    await client.task
    _, refused = await opened(guard)
    assert json.loads(refused["text"])["data"]["code"] == "CAPACITY_REACHED"
    app.hung.set()
    await until(lambda: app.ended == 1)
    assert client.got.empty()  # nothing is sent after the end
    _, answer = await opened(guard)
    assert answer["text"] == "hello"


async def test_client_that_thinks_for_long_is_not_late() -> None:
    client, _ = await opened(guarded(EchoApp(), step_timeout_s=60))
    skip(90)
    await asyncio.sleep(0.01)
    client.say("still here")
    assert (await client.next())["text"] == "still here"


async def test_message_and_answer_stay_within_their_bytes() -> None:
    app = EchoApp()
    client, _ = await opened(guarded(app, message_bytes=1000, answer_bytes=500))
    client.say("grow")
    data = json.loads((await client.next())["text"])["data"]
    assert data["code"] == "EXECUTION_ERROR"
    assert "at most 500 bytes, got 800" in data["message"]
    client.say("small")
    assert (await client.next())["text"] == "small"
    client.say("x" * 1001)
    assert (await client.next())["code"] == 1009
    await client.task
    assert app.heard == ["hello", "grow", "small"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"text": "[]"}, "must be a JSON object with 'type' as text, got list"),
        ({"text": "null"}, "got null"),
        ({"text": "7"}, "got int"),
        ({"text": "{"}, "must be JSON"),
        ({"text": "[" * 100_000}, "nested too deeply"),
        ({"text": f'{{"seed": {"9" * 5000}}}'}, "at most 4300 digits"),
        ({"text": '{"type": "\\ud800"}'}, "valid Unicode"),
        ({"text": '{"type": "state", "\\ud800": 1}'}, "valid Unicode"),
        ({"bytes": b"{}"}, "must be text, got bytes"),
    ],
    ids=range(9),
)
async def test_message_of_another_form_gets_one_error(message: Message, reason: str) -> None:
    app = EchoApp()
    client, _ = await opened(guarded(app))
    client.send(message)
    client.say("hello again")
    data = json.loads((await client.next())["text"])["data"]
    assert data["code"] == "INVALID_JSON"
    assert reason in data["message"]
    assert (await client.next())["text"] == "hello again"
    assert app.heard == ["hello", "hello again"]


@pytest.mark.parametrize("error", [ConnectionResetError(), RuntimeError("after the close")])
async def test_client_that_left_ends_its_session_without_an_error(error: Exception) -> None:
    app = EchoApp()
    client, _ = await opened(guarded(app))

    client.lost = error
    client.say("anyone?")
    await client.task
    assert app.ended == 1


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


def test_one_client_may_have_all_and_two_share() -> None:
    clock = Clock()
    shares = SessionShares(4, clock=clock)
    assert [shares.take("a") is None for _ in range(5)] == [True] * 4 + [False]
    assert "all 4" in (shares.take("b") or "")
    shares.release("a")
    assert shares.take("a") is not None  # it has three of four, and b waits
    assert shares.take("b") is None
    shares.release("a")
    assert "share" in (shares.take("a") or "")
    assert shares.take("b") is None
    shares.release("b")
    shares.release("b")
    clock.now = 61.0
    assert [shares.take("a") is None for _ in range(3)] == [True, True, False]


@given(st.integers(1, 9), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_shares_never_exceed_the_total(total: int, moves: list[tuple[str, bool]]) -> None:
    shares, held = SessionShares(total, clock=Clock()), dict.fromkeys("abc", 0)
    for client, takes in moves:
        if takes and shares.take(client) is None:
            held[client] += 1
        elif not takes and held[client]:
            shares.release(client)
            held[client] -= 1
        assert sum(held.values()) <= total
    for client, count in held.items():
        for _ in range(count):
            shares.release(client)
    assert shares.take("a") is None


@pytest.mark.parametrize(
    "limits", [{"max_sessions": 0}, {"session_timeout_s": 0.0}, {"step_timeout_s": -1.0}]
)
def test_limits_that_allow_nothing_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        ServerLimits(**limits)
