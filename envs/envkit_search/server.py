"""A server of Search-R1's `POST /retrieve` over any backend; the contract is in `remote`.

Right for any number of queries, with and without scores: `return_scores` true answers
`{"document": {"id", "contents"}, "score"}`, false the bare documents. A request that is no such
object gets 422 with a `detail`, as from FastAPI, which Search-R1 uses; a backend that fails gets
503 or, where another try is no use, 500: never an empty list.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web

from envkit.errors import ConfigurationError, EnvFault
from envkit_search.contents import contents_of
from envkit_search.document import Hit, SearchBackend

MAX_REQUEST_BYTES: Final = 4 << 20
MAX_REQUEST_QUERIES: Final = 4096
MAX_REQUEST_TOPK: Final = 1000
_LAST_ANSWERS_S: Final = 3.0
"""How long answers under way may take once the server is to end, in seconds."""


class _Refused(Exception):
    """A request that is not the contract's; the argument says why."""


def create_app(backend: SearchBackend, *, default_topk: int = 3) -> web.Application:
    """Return an application that serves `POST /retrieve` and `GET /health`.

    Args:
        backend: Whom to ask; it stays the caller's to close.
        default_topk: For requests whose `topk` is missing, null or 0.

    Raises:
        ConfigurationError: `default_topk` is out of range.
    """
    if not 1 <= default_topk <= MAX_REQUEST_TOPK:
        raise ConfigurationError(
            f"default_topk must be 1 to {MAX_REQUEST_TOPK}, got {default_topk}"
        )

    async def retrieve(request: web.Request) -> web.Response:
        try:
            queries, topk, has_scores = _read_request(await request.read(), default_topk)
        except _Refused as refused:
            return web.json_response({"detail": str(refused)}, status=422)
        try:
            found = await backend.search(queries, topk=topk) if queries else []
        except EnvFault as fault:
            status = 503 if fault.retryable else 500
            return web.json_response({"detail": str(fault), "kind": fault.kind}, status=status)
        result = [[_item(hit, has_scores=has_scores) for hit in hits] for hits in found]
        return web.json_response({"result": result})

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=MAX_REQUEST_BYTES)
    app.router.add_post("/retrieve", retrieve)
    app.router.add_get("/health", health)
    return app


async def serve(
    backend: SearchBackend,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    default_topk: int = 3,
    on_ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve a backend until the task is cancelled.

    Args:
        backend: Whom to ask; it stays the caller's to close.
        host: Address to listen on; the default is reachable from this machine only.
        port: 0 takes a free one.
        default_topk: For requests that name none.
        on_ready: Called with the server's address once it listens.

    Raises:
        ConfigurationError: The address cannot be listened on, or `default_topk` is out of range.
    """
    runner = web.AppRunner(
        create_app(backend, default_topk=default_topk),
        access_log=None,
        shutdown_timeout=_LAST_ANSWERS_S,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from error
        name, taken = cast(tuple[str, int], runner.addresses[0][:2])
        on_ready(f"http://[{name}]:{taken}" if ":" in name else f"http://{name}:{taken}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def serve_until_interrupted(
    backend: SearchBackend,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    default_topk: int = 3,
    on_ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve a backend until Ctrl-C; for programs that do nothing else. See `serve`.

    Raises:
        ConfigurationError: The address cannot be listened on, or `default_topk` is out of range.
    """
    serving = serve(backend, host=host, port=port, default_topk=default_topk, on_ready=on_ready)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serving)


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
    if len(cast(list[str], queries)) > MAX_REQUEST_QUERIES:
        raise _Refused(f"'queries' may hold at most {MAX_REQUEST_QUERIES}")
    topk: Any = fields.get("topk") or default_topk
    if isinstance(topk, bool) or not isinstance(topk, int) or not 0 < topk <= MAX_REQUEST_TOPK:
        raise _Refused(f"'topk' must be null or an integer from 1 to {MAX_REQUEST_TOPK}")
    has_scores: Any = fields.get("return_scores", False)
    if not isinstance(has_scores, bool):
        raise _Refused("'return_scores' must be true or false")
    return cast(list[str], queries), topk, has_scores


def _item(hit: Hit, *, has_scores: bool) -> dict[str, Any]:
    document = {"id": hit.document.id, "contents": contents_of(hit.document)}
    return {"document": document, "score": hit.score} if has_scores else document
