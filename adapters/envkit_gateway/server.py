"""The HTTP server between agents and a session: loopback, one key per episode."""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, Final, Protocol, cast

from aiohttp import ClientConnectionResetError, web

from envkit.errors import EngineFault, LedgerFault
from envkit.serving import BodyError, listening, read_body
from envkit.threads.pool import WorkerPool
from envkit_gateway import anthropic, chat, responses
from envkit_gateway.agents import LOOPBACK
from envkit_gateway.control import PATH, Control
from envkit_gateway.deltas import Delta
from envkit_gateway.request import AgentRequest, RequestRefused, bad_request
from envkit_gateway.session import KEY_PREFIX, OVER, Session
from envkit_gateway.turn import Choice, Turn, TurnState

MAX_BODY: Final = 128 << 20
"""Maximum bytes of a request's body, including images."""
_LARGE: Final = 32 << 10
"""Bytes above which a body is read on a thread."""
_KEEPALIVE_S: Final = 5.0
_BODY_S: Final = 60.0
"""Seconds in which a body must arrive; on loopback it takes milliseconds."""
_ANSWER_S: Final = 60.0
"""Seconds in which an answer must be read; a client that reads slower counts as lost."""
_STOP_S: Final = 0.5
"""Seconds that open connections have at the end, when every session is over."""
_LABELS: Final = ("x-claude-code-agent-id", "x-parent-session-id", "thread-id")
"""Headers that clients send to identify a sub-agent."""
_DIALECTS: Final = (chat, responses, anthropic)


class Gateway:
    """Serves the sessions of one event loop."""

    def __init__(self) -> None:
        """Prepare the server; `running` starts it."""
        self._sessions: dict[str, Session] = {}
        """By key, as long as the episode runs."""
        self._controls: dict[str, tuple[Session, Control]] = {}
        """The same."""
        self._pool = WorkerPool()
        self.url = ""
        """Address of the server for agents, without `/v1`."""

    @asynccontextmanager
    async def running(
        self, *, host: str = LOOPBACK, port: int = 0, url: str | None = None
    ) -> AsyncGenerator["Gateway"]:
        """Serve plain HTTP until the context ends.

        Args:
            host: Address to listen on.
            port: TCP port; 0 takes a free one.
            url: Address at which agents reach the server; None takes host and port.

        Raises:
            ServiceError: The port cannot be listened on.
        """
        app = web.Application(client_max_size=MAX_BODY)
        for dialect in _DIALECTS:
            app.router.add_post(dialect.PATH, self._handler(dialect))
        app.router.add_post(f"{PATH}/{{name}}", self._control)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.*}", self._model)
        app.router.add_post(f"{anthropic.PATH}/count_tokens", self._count_tokens)
        app.router.add_route("*", "/", self._root)
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        app.on_response_prepare.append(_name_request)
        try:
            async with listening(
                app, host=host, port=port, answer_s=_ANSWER_S, stop_s=_STOP_S, cancels_lost=True
            ) as address:
                self.url = url or address
                yield self
        finally:
            self._pool.close()

    @asynccontextmanager
    async def serving(
        self, session: Session, control: Control | None = None
    ) -> AsyncGenerator[Session]:
        """Answer requests with a session's key inside the block; afterwards they get 403.

        Args:
            session: The session.
            control: What the agent's process may do with its own key; None allows nothing.
        """
        self._sessions[session.key] = session
        if control is not None:
            self._controls[control.key] = session, control
        try:
            yield session
        finally:
            await session.close()
            self._sessions.pop(session.key, None)
            if control is not None:
                del self._controls[control.key]
                await control.close()

    def _session(self, request: web.Request) -> Session:
        given = _keys(request)
        session = next((self._sessions[one] for one in given if one in self._sessions), None)
        if session is not None:
            return session
        if any(one.startswith(KEY_PREFIX) for one in given):  # of a process that ends late
            raise RequestRefused(403, OVER)
        raise RequestRefused(401, "unknown API key: use the one of the episode")

    def _handler(self, dialect: ModuleType) -> Callable[[web.Request], Any]:
        async def handle(http: web.Request) -> web.StreamResponse:
            session: Session | None = None
            try:
                session = self._session(http)
                request = await self._read(http, dialect, session)
                turns = await session.open(request)
            except (RequestRefused, RecursionError) as error:
                refused = (
                    error
                    if isinstance(error, RequestRefused)
                    else bad_request(f"the body is nested too deeply: {error}")
                )
                if session is not None:
                    session.note_refusal(refused)
                return _refusal(dialect, refused)
            except (EngineFault, LedgerFault) as fault:
                return _refusal(dialect, _failed(fault))
            except Exception as error:  # noqa: BLE001  # no request may end without a JSON answer
                if session is not None:
                    session.note_defect(error)
                return _refusal(dialect, _failed(error))
            return await _Delivery(http, session, request, turns, dialect).run()

        return handle

    async def _control(self, http: web.Request) -> web.StreamResponse:
        session: Session | None = None
        try:
            key = next((one for one in _keys(http) if one in self._controls), None)
            if key is None:
                raise RequestRefused(401, f"{PATH} needs the key of the agent's standard input")
            session, control = self._controls[key]
            body = _object_of(await self._data(http))
            answer = await control.answer(http.match_info["name"], body)
            session.refusal = None
            return web.json_response(answer)
        except RequestRefused as refused:
            if session is not None:
                session.note_refusal(refused)
            return _refusal(_dialect_of(http), refused)
        except Exception as error:  # noqa: BLE001  # no request may end without a JSON answer
            return _refusal(_dialect_of(http), RequestRefused(500, f"the step failed: {error}"))

    async def _data(self, http: web.Request) -> bytes:
        """Return a request's body.

        Raises:
            RequestRefused: It is compressed, too large, cut or late.
        """
        try:
            return await read_body(http, max_bytes=MAX_BODY, seconds=_BODY_S)
        except BodyError as error:  # a late one is not 408, which SDKs send again
            raise RequestRefused(413 if error.status == 413 else 400, str(error)) from error

    async def _read(self, http: web.Request, dialect: ModuleType, session: Session) -> AgentRequest:
        data = await self._data(http)
        # OpenAI's and Anthropic's SDKs count their own retries in this header.
        is_retry = http.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        label = next((http.headers[one] for one in _LABELS if one in http.headers), "")

        # A copy, because a large body is read on a thread while other requests add turns.
        turns = tuple(session.turns)

        def read() -> AgentRequest:
            return _parsed(data, dialect, turns, is_retry=is_retry, label=label)

        return read() if len(data) < _LARGE else await self._pool.computing.run(read)

    async def _models(self, http: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [_model("envkit")], "has_more": False})

    async def _model(self, http: web.Request) -> web.StreamResponse:
        return web.json_response(_model(http.match_info["name"]))

    async def _count_tokens(self, http: web.Request) -> web.StreamResponse:
        try:
            session = self._session(http)
            request = await self._read(http, anthropic, session)
            tokens = len((await session.prompt(request)).train_ids)
        except RequestRefused as refused:
            return _refusal(anthropic, refused)
        except Exception as error:  # noqa: BLE001  # no request may end without a JSON answer
            return _refusal(anthropic, _failed(error))
        return web.json_response({"input_tokens": tokens})

    async def _root(self, http: web.Request) -> web.StreamResponse:
        return web.Response(text="" if http.method == "HEAD" else "envkit gateway\n")

    async def _unknown(self, http: web.Request) -> web.StreamResponse:
        known = ", ".join(dialect.PATH for dialect in _DIALECTS)
        refused = RequestRefused(404, f"no {http.method} {http.path} here; POST to {known}")
        return _refusal(_dialect_of(http), refused)


async def _name_request(_http: web.Request, response: web.StreamResponse) -> None:
    """Give an answer the id that SDKs report with it, under OpenAI's and Anthropic's names."""
    name = f"req_{secrets.token_hex(12)}"
    response.headers["x-request-id"] = response.headers["request-id"] = name


def _keys(http: web.Request) -> list[str]:
    """Return what a request may have as its key, in the headers of all dialects."""
    given = [http.headers.get("authorization", "").rpartition(" ")[2]]
    return given + [http.headers.get(name, "") for name in ("x-api-key", "api-key")]


def _dialect_of(http: web.Request) -> ModuleType:
    """Return the dialect of a request that none of the dialects serves."""
    is_anthropic = "anthropic-version" in http.headers or http.path.startswith(anthropic.PATH)
    return anthropic if is_anthropic else chat


def _parsed(
    data: bytes, dialect: ModuleType, turns: Sequence[Turn], *, is_retry: bool, label: str
) -> AgentRequest:
    fields = _object_of(data)
    try:
        request: AgentRequest = dialect.read(fields, turns)
    except RecursionError as error:
        raise bad_request("the body is nested too deeply") from error
    # A client may retry a failed stream without streaming.
    same = {k: v for k, v in fields.items() if k not in ("stream", "stream_options")}
    text = dialect.PATH + json.dumps(same, sort_keys=True)
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return request.of_client(key=key, is_retry=is_retry, label=label)


def _object_of(data: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        RequestRefused: It is something else.
    """
    try:
        body: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return cast("dict[str, Any]", body)


class EventWriter(Protocol):
    """The `Events` of a dialect: one answer as server-sent events."""

    def delta(self, index: int, more: Delta) -> Iterable[str]:
        """Return the events of more text of a choice, while the engine samples it."""
        ...

    def end(self, choices: Sequence[Choice], decode: Callable[[int], str]) -> Iterable[str]:
        """Return the events of the rest of the answer."""
        ...


class _Delivery:
    """Brings one answer to one client."""

    def __init__(
        self,
        http: web.Request,
        session: Session,
        request: AgentRequest,
        turns: Sequence[Turn],
        dialect: ModuleType,
    ) -> None:
        self._http, self._session, self._turns = http, session, turns
        self._request, self._dialect = request, dialect
        self._response: web.StreamResponse | None = None
        self._first: list[Turn] = []
        """Turns whose reply no other client had before this one."""
        self._is_read = False
        """Whether the client has the whole answer, but not the end of the stream."""

    async def run(self) -> web.StreamResponse:
        """Return the answer, or the part that was sent before the client left."""
        for turn in self._turns:
            turn.waiting += 1
        try:
            return await (self._streamed() if self._request.is_streamed else self._whole())
        # aiohttp cancels the handler of a client that left, unless a write finds out first.
        except (ConnectionError, asyncio.CancelledError) as error:
            for turn in self._first:
                if self._is_read:
                    turn.state = TurnState.READ
                elif isinstance(error, ClientConnectionResetError):
                    turn.state = TurnState.RUNNING  # the last byte was not written
            if isinstance(error, asyncio.CancelledError) or self._response is None:
                raise
            return self._response
        finally:
            for turn in self._turns:
                turn.waiting -= 1
                self._session.client_left(turn)

    async def _whole(self) -> web.StreamResponse:
        choices = await self._choices()
        if isinstance(choices, RequestRefused):
            return _refusal(self._dialect, choices)
        body = self._dialect.answer(choices, self._request, self._session.token_text)
        self._response = response = web.json_response(body)
        await response.prepare(self._http)
        self._delivered()
        await response.write_eof()
        return response

    async def _streamed(self) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
        self._response = response = web.StreamResponse(headers=headers)
        await response.prepare(self._http)
        events: EventWriter = self._dialect.Events(self._turns, self._request)
        await self._write_deltas(response, events)
        choices = await self._choices()
        try:
            if isinstance(choices, RequestRefused):
                raise choices
            parts = list(events.end(choices, self._session.token_text))
        except (RequestRefused, LedgerFault) as error:
            await response.write(self._dialect.stream_error(_failed(error)).encode())
            await response.write_eof()
            return response
        last = len(parts) - self._dialect.closing_events(self._request)
        for part in parts[:last]:
            await response.write(part.encode())
        self._delivered()
        await response.write(parts[last].encode())
        self._is_read = True  # clients leave once they know why the reply ended
        for part in parts[last + 1 :]:
            await response.write(part.encode())
        await response.write_eof()
        return response

    async def _write_deltas(self, response: web.StreamResponse, events: EventWriter) -> None:
        """Write what the client may see before the replies end."""
        news = asyncio.Event()
        tasks = [one.task for one in self._turns if one.task is not None]
        for task in tasks:
            task.add_done_callback(lambda _: news.set())
        lives = [(n, one.live) for n, one in enumerate(self._turns) if one.live is not None]
        growing = [(n, self._session.growing(live, self._request)) for n, live in lives]
        for _, live in lives:
            live.stream.listeners.append(news.set)
        try:
            while not all(task.done() for task in tasks):
                try:
                    async with asyncio.timeout(_KEEPALIVE_S):
                        await news.wait()
                except TimeoutError:
                    # Proxies and clients give up a connection that is silent while a reply waits
                    # for the engine.
                    await response.write(b": keepalive\n\n")
                    continue
                news.clear()
                for number, one in growing:
                    for part in events.delta(number, more) if any(more := one.more()) else ():
                        await response.write(part.encode())
        finally:
            for _, live in lives:
                live.stream.listeners.remove(news.set)

    async def _choices(self) -> list[Choice] | RequestRefused:
        tasks = [one.task for one in self._turns if one.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        found: list[Choice] = []
        for turn in self._turns:
            if turn.reply is None:
                # Of an episode that is over, any other status would be retried.
                is_over = self._session.is_closed
                return RequestRefused(403, OVER) if is_over else _failed(turn.error)
            found.append(Choice(turn, turn.reply))
        return found

    def _delivered(self) -> None:
        """Note the delivery before its last byte: an agent may end as soon as it has that."""
        for turn in self._turns:
            if turn.state is not TurnState.SUPERSEDED:
                if turn.state is not TurnState.DELIVERED:
                    self._first.append(turn)
                turn.state = TurnState.DELIVERED


def _failed(error: BaseException | None) -> RequestRefused:
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, EngineFault):
        return RequestRefused(503, f"the engine failed: {error}")
    if error is None or isinstance(error, asyncio.CancelledError):
        return RequestRefused(503, "the request was cancelled")
    return RequestRefused(500, f"the request failed: {error}")


def _refusal(dialect: ModuleType, refused: RequestRefused) -> web.Response:
    return web.json_response(dialect.error(refused), status=refused.status)


def _model(name: str) -> Mapping[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "envkit", "type": "model"}
