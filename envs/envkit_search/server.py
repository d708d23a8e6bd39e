"""A server of Search-R1's `POST /retrieve` over any backend; the contract is in `remote`.

It works for any number of queries, with and without scores: `return_scores` true answers
`{"document": {"id", "contents"}, "score"}`, false the bare documents. Failures are never an empty
list:

| request | answer |
| --- | --- |
| without the key | 401 |
| from a web page on another site | 403 |
| violates the contract, or asks for too many documents | 422 with a `detail`, as in FastAPI |
| too large, or its answer would be | 413 with a `detail`; fewer queries at once may pass |
| its backend fails | 503, or 500 if trying again is useless |
| whose body is late | 408 |
| not answered in time | 503 |
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from envkit import ranges
from envkit.access import Access, check_port
from envkit.errors import EnvFault
from envkit.serving import IDLE_S, BodyError, listening, read_body
from envkit_search.document import Hit, SearchBackend, contents_of

MAX_REQUEST_QUERIES: Final = 4096
MAX_REQUEST_TOPK: Final = 1000
MAX_QUERY_CHARACTERS: Final = 8192
_HEALTH: Final = "/health"
_JSON: Final = "application/json"
_SLICE_HITS: Final = 1000
"""Documents searched and written at once: an answer grows by this many before its size is checked
again."""
_WRITE_ON_THREAD: Final = 1 << 18
"""Documents at least this long, in characters, are written off the event loop."""
_LAST_ANSWERS_S: Final = 3.0
"""Seconds that pending answers may take when the server shuts down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits on requests."""

    request_bytes: int = 4 << 20
    answer_bytes: int = 16 << 20
    """envkit's clients have the same limit."""
    documents: int = 16_384
    """Queries times `topk`."""
    request_s: float = 60.0
    """Seconds for the body to arrive, then for the answer, then for the client to read it."""
    idle_s: float = IDLE_S
    """Seconds that a connection may idle between requests."""
    at_once: int = 32
    """Concurrent searches; others wait, within `request_s`."""

    def __post_init__(self) -> None:
        """Reject limits under which nothing could be answered.

        Raises:
            ConfigurationError: One is not positive.
        """
        ranges.positive(**asdict(self))


class _Refused(Exception):
    """A request that violates the contract or asks for too much; the argument says why."""

    def __init__(self, detail: str, status: int = 422) -> None:
        super().__init__(detail)
        self.status = status


def create_app(
    backend: SearchBackend,
    *,
    access: Access,
    default_topk: int = 3,
    limits: ServerLimits | None = None,
) -> web.Application:
    """Return an application that serves `POST /retrieve` and `GET /health`.

    Args:
        backend: Backend to search; the caller closes it.
        access: Access rules; `/health` needs no key.
        default_topk: For requests whose `topk` is missing, null or 0.
        limits: None uses the defaults.

    Raises:
        ConfigurationError: `default_topk` or the port is out of range.
    """
    ranges.within(1, MAX_REQUEST_TOPK, default_topk=default_topk)
    bounds = limits or ServerLimits()
    service = _Service(backend, default_topk, bounds)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = access.refusal(request.headers.items(), needs_key=request.path != _HEALTH)
        if refusal is None:
            return await handler(request)
        body = {"detail": refusal.reason}
        return web.json_response(body, status=refusal.status, headers=refusal.headers)

    app = web.Application(client_max_size=bounds.request_bytes, middlewares=[guard])
    app.router.add_post("/retrieve", service.retrieve)
    app.router.add_get(_HEALTH, _health)
    return app


class _Service:
    """Answers `/retrieve` within its limits."""

    def __init__(self, backend: SearchBackend, default_topk: int, limits: ServerLimits) -> None:
        self._backend, self._default_topk, self._limits = backend, default_topk, limits
        self._free = asyncio.Semaphore(limits.at_once)

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        """Answer a request; cancel it if it takes too long."""
        limits = self._limits
        try:
            body = await read_body(
                request, max_bytes=limits.request_bytes, seconds=limits.request_s
            )
            async with asyncio.timeout(limits.request_s), self._free:
                parts = await self._answer(body)
            return web.Response(body=b"".join(parts), content_type=_JSON, charset="utf-8")
        except (_Refused, BodyError) as refused:
            return web.json_response({"detail": str(refused)}, status=refused.status)
        except EnvFault as fault:
            status = 503 if fault.retryable else 500
            return web.json_response({"detail": str(fault), "kind": fault.kind}, status=status)
        except TimeoutError:
            detail = f"not answered within {limits.request_s:g} s"
            return web.json_response({"detail": detail}, status=503)

    async def _answer(self, body: bytes) -> list[bytes]:
        """Return the JSON of an answer in chunks."""
        queries, topk, has_scores = _read_request(body, self._default_topk)
        if len(queries) * topk > self._limits.documents:
            raise _Refused(
                f"queries times topk may be at most {self._limits.documents}, got "
                f"{len(queries)} times {topk}: ask for fewer at once"
            )
        parts, size = [b'{"result": ['], 0
        step = max(1, _SLICE_HITS // topk)
        for start in range(0, len(queries), step):
            found = await self._backend.search(queries[start : start + step], topk=topk)
            written = await self._write(found, has_scores=has_scores, size=size)
            size += len(written)
            self._check_size(size)
            parts += [b", ", written] if start else [written]
        return [*parts, b"]}"]

    async def _write(self, found: list[list[Hit]], *, has_scores: bool, size: int) -> bytes:
        characters = sum(len(hit.document.text) for hits in found for hit in hits)
        self._check_size(size + characters)
        if characters < _WRITE_ON_THREAD:
            return _written(found, has_scores=has_scores)
        return await asyncio.to_thread(_written, found, has_scores=has_scores)

    def _check_size(self, size: int) -> None:
        if size > self._limits.answer_bytes:
            raise _Refused(
                f"the answer would exceed {self._limits.answer_bytes} bytes: ask for fewer "
                "queries at once, or a smaller topk",
                status=413,
            )


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def _written(found: list[list[Hit]], *, has_scores: bool) -> bytes:
    """Return the lists of some queries as JSON, without the brackets around them."""
    return ", ".join(
        json.dumps([_item(hit, has_scores=has_scores) for hit in hits]) for hits in found
    ).encode()


async def serve(
    backend: SearchBackend,
    *,
    access: Access,
    port: int = 8000,
    default_topk: int = 3,
    limits: ServerLimits | None = None,
    on_ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve a backend until the task is cancelled.

    Args:
        backend: Backend to search; the caller closes it.
        access: Access rules, and the address to listen on.
        port: 0 picks a free port.
        default_topk: For requests without `topk`.
        limits: None uses the defaults.
        on_ready: Called with the server's address once it listens.

    Raises:
        ConfigurationError: `default_topk` or the port is out of range.
        ServiceError: The address cannot be listened on.
    """
    check_port(port)
    bounds = limits or ServerLimits()
    app = create_app(backend, access=access, default_topk=default_topk, limits=bounds)
    async with listening(
        app,
        host=access.host,
        port=port,
        answer_s=bounds.request_s,
        stop_s=_LAST_ANSWERS_S,
        idle_s=bounds.idle_s,
    ) as address:
        on_ready(address)
        await asyncio.Event().wait()


def _read_request(body: bytes, default_topk: int) -> tuple[list[str], int, bool]:
    """Return queries, topk and whether scores are wanted."""
    try:
        payload: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"the body must be JSON: {str(error)[:200]}") from error
    if not isinstance(payload, dict):
        raise _Refused("the body must be an object with 'queries'")
    fields = cast(dict[str, Any], payload)
    queries = cast(object, fields.get("queries"))
    if not isinstance(queries, list) or not all(
        isinstance(query, str) for query in cast(list[object], queries)
    ):
        raise _Refused("'queries' must be a list of strings")
    asked = cast(list[str], queries)
    if len(asked) > MAX_REQUEST_QUERIES:
        raise _Refused(f"'queries' may hold at most {MAX_REQUEST_QUERIES}")
    if max(map(len, asked), default=0) > MAX_QUERY_CHARACTERS:
        raise _Refused(f"a query may have at most {MAX_QUERY_CHARACTERS} characters")
    topk: Any = fields.get("topk") or default_topk
    if isinstance(topk, bool) or not isinstance(topk, int) or not 0 < topk <= MAX_REQUEST_TOPK:
        raise _Refused(f"'topk' must be null or an integer from 1 to {MAX_REQUEST_TOPK}")
    has_scores: Any = fields.get("return_scores", False)
    if not isinstance(has_scores, bool):
        raise _Refused("'return_scores' must be true or false")
    return asked, topk, has_scores


def _item(hit: Hit, *, has_scores: bool) -> dict[str, Any]:
    document = {"id": hit.document.id, "contents": contents_of(hit.document)}
    return {"document": document, "score": hit.score} if has_scores else document
