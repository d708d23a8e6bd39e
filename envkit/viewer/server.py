"""The server of `envkit ui`: the viewer for all runs of a folder, on this machine only.

It listens on the loopback address. It is read-only unless people may write notes. Runs hold text
from models and websites. It must not be reachable from other pages in the same browser, by other
users of the machine, or under other host names:

| request | response |
| --- | --- |
| without the key, in the URL or in the cookie that the URL sets | 401 |
| from a page on another site, by `Origin` or `Sec-Fetch-Site` | 403 |
| with a `Host` that is neither an IP address nor localhost (DNS rebinding) | 403 |
| other than GET and HEAD, and PUT of notes if they are allowed | 405 |
| to change notes, without `Origin` or not as JSON: no form can send both | 403, 415 |
| for a run, an episode or an image that does not exist | 404 |
"""

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from envkit.access import Access
from envkit.errors import ConfigurationError, EnvkitError, StorageError
from envkit.serving import BodyError, listening, read_body
from envkit.text import utf8
from envkit.viewer.bundle import shell
from envkit.viewer.diff import compare_rows
from envkit.viewer.library import Library
from envkit.viewer.live_run import LiveRun
from envkit.viewer.markup import wire_json
from envkit.viewer.run_notes import MAX_BYTES, ConflictError, RunNotes

HOST: Final = "127.0.0.1"
MAX_QUERY: Final = 400
"""Maximum length of a search in characters."""
_KEY: Final = "key"
_ANSWER_S: Final = 300.0
"""Seconds to read an answer; a large run takes long over a forwarded port."""
_STOP_S: Final = 0.5
_BODY_S: Final = 10.0
_LONGEST_WAIT_S: Final = 20.0
_IDLE_S: Final = 0.4
_TICK_S: Final = 0.1
_OPEN_SITES: Final = ("same-origin", "none")
"""Values of Sec-Fetch-Site for this page itself, and for a URL that a person typed."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_LIBRARY: Final = web.AppKey("library", Library)


def create_app(library: Library, *, key: str) -> web.Application:
    """Return the application.

    Args:
        library: The runs to show; the application keeps reading them in the background.
        key: Key that every request must present.
    """
    access = Access(key=None, host=HOST)  # checks Origin and Host; the key is checked here
    secret = key.encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            refusal = _refused(request, access)
            is_entry = request.path == "/" and _KEY in request.query
            given = request.query[_KEY] if is_entry else request.cookies.get(_cookie(request), "")
            if refusal is None and not hmac.compare_digest(given.encode(errors="replace"), secret):
                what = "wrong" if given else "missing"
                refusal = _problem(401, f"the key is {what}: open the URL that envkit ui printed")
            # Not `refusal or ...`: a response of aiohttp up to 3.10.11 may be false.
            response = await handler(request) if refusal is None else refusal
            if is_entry and refusal is None:  # the page then removes the key from its URL
                name = _cookie(request)
                response.set_cookie(name, key, httponly=True, samesite="Strict", path="/")
            return response
        except web.HTTPException as error:
            return _problem(error.status, error.reason, error.headers.get("Allow"))

    app = web.Application(middlewares=[guard], client_max_size=MAX_BYTES)
    app[_LIBRARY] = library
    app.cleanup_ctx.append(_reading)
    app.on_response_prepare.append(_add_headers)
    page = _Page()
    app.router.add_get("/", page.answer)
    app.router.add_get("/api/runs", _runs)
    app.router.add_get("/api/run", _run)
    app.router.add_get("/api/episode", _episode)
    app.router.add_get("/api/record", _record)
    app.router.add_get("/api/search", _search)
    app.router.add_get("/api/metrics", _metrics)
    app.router.add_get("/api/diff", _diff)
    app.router.add_get("/api/changes", _changes)
    app.router.add_get("/image/{sha256:[0-9a-f]{64}}", _image)
    if library.takes_notes:
        app.router.add_put("/api/notes", _notes)
    return app


async def serve(
    library: Library, *, key: str, port: int, on_ready: Callable[[str], object] = lambda _: None
) -> None:
    """Serve until the task is cancelled.

    Args:
        library: The runs to show.
        key: Key that every request must present.
        port: The port; 0 uses any free one.
        on_ready: Called with the URL, key included, once the server listens.

    Raises:
        ServiceError: The server cannot listen on the port.
    """
    app = create_app(library, key=key)
    async with listening(app, host=HOST, port=port, answer_s=_ANSWER_S, stop_s=_STOP_S) as address:
        on_ready(f"{address}/?{_KEY}={key}")
        await asyncio.Event().wait()


async def _reading(app: web.Application) -> AsyncIterator[None]:
    """Read runs on a pool thread while the application runs."""

    async def read() -> None:
        while True:
            has_more = await asyncio.to_thread(app[_LIBRARY].step)
            await asyncio.sleep(0 if has_more else _IDLE_S)

    task = asyncio.create_task(read())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _refused(request: web.Request, access: Access) -> web.Response | None:
    """Return a refusal if a request comes from a disallowed origin, else None."""
    if not request.headers.get("Host"):
        return _problem(403, "a request must name its host")
    refusal = access.refusal(request.headers.items())
    if refusal is not None:
        return _problem(403, refusal.reason)
    site = request.headers.get("Sec-Fetch-Site", "none")
    # A link to the page from another site is harmless: the page still needs the key.
    is_link = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.path == "/"
    if site not in _OPEN_SITES and not is_link:
        return _problem(403, "pages from other sites may not use this server")
    return None


def _cookie(request: web.Request) -> str:
    """Return the cookie's name, which has the port because cookies are shared by all ports."""
    return f"envkit-ui-{request.url.port}"


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.popall("Server", None)


class _Page:
    """The document: the front end with its script and style, allowed by their hashes."""

    def __init__(self) -> None:
        page = shell(
            "ui",
            title="Runs · envkit",
            styles=["style.css", "runs.css"],
            sources="img-src 'self' data: blob:; connect-src 'self'",
        )
        self._policy, self._text = page.policy, page.head + page.script + page.tail

    async def answer(self, request: web.Request) -> web.Response:
        """Return the document."""
        headers = {"Content-Security-Policy": f"{self._policy}; frame-ancestors 'none'"}
        return web.Response(text=self._text, content_type="text/html", headers=headers)


async def _runs(request: web.Request) -> web.Response:
    return await _json(request.app[_LIBRARY].overview)


async def _run(request: web.Request) -> web.Response:
    run = _named(request)
    since, epoch = _whole(request, "since"), _whole(request, "epoch")
    return await _json(lambda: run.index(since=since, epoch=epoch))


async def _episode(request: web.Request) -> web.Response:
    run, number = _named(request), _whole(request, "number")
    return await _json(lambda: run.episode(number, request.app[_LIBRARY].token_text))


async def _record(request: web.Request) -> web.Response:
    run, number = _named(request), _whole(request, "number")
    return await _json(lambda: run.record(number))


async def _search(request: web.Request) -> web.Response:
    run, query = _named(request), request.query.get("q", "")
    if len(query) > MAX_QUERY:
        return _problem(400, f"a search can have at most {MAX_QUERY} characters, got {len(query)}")
    return await _json(lambda: list(run.search(query).items()))


async def _diff(request: web.Request) -> web.Response:
    """Compare two runs once both are fully read; until then, report the progress."""
    first, second = _named(request, "first"), _named(request, "second")
    # Rows that arrive between two answers would pair episodes with rows that a page lacks, and a
    # run that just starts has none to pair.
    waits = {run.name: run.is_behind or (run.is_live and not run.count) for run in (first, second)}
    reading = [name for name, is_waiting in waits.items() if is_waiting]
    if reading:
        count = first.count + second.count
        return await _json(lambda: {"reading": reading, "episodes": count})
    return await _json(lambda: compare_rows(first.rows(), second.rows(), [first.name, second.name]))


async def _metrics(request: web.Request) -> web.Response:
    return await _json(request.app[_LIBRARY].metrics)


async def _notes(request: web.Request) -> web.Response:
    """Change the notes of a run; 409 with the current ones if somebody else changed the note."""
    if "Origin" not in request.headers:
        return _problem(403, "a request that changes notes must name its Origin")
    if request.content_type != "application/json":
        return _problem(415, "notes must be sent as application/json")
    run, library = _named(request), request.app[_LIBRARY]
    try:
        body = await read_body(request, max_bytes=MAX_BYTES, seconds=_BODY_S)
        before, after = map(RunNotes.checked, _change(body))
        made = await asyncio.to_thread(library.annotate, run, before, after)
    except BodyError as error:
        return _problem(error.status, str(error))
    except ConflictError as error:
        return web.json_response(error.notes.to_json(), status=409)
    except ConfigurationError as error:
        return _problem(400, str(error))
    except StorageError as error:
        return _problem(507, str(error))
    return web.json_response(made.to_json())


def _change(body: bytes) -> tuple[object, object]:
    """Return what a request says was there before, and what it wants.

    Raises:
        ConfigurationError: It is not valid JSON or lacks one of the two.
    """
    try:
        data: Any = json.loads(body)
        return data["before"], data["after"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigurationError('notes are sent as {"before": ..., "after": ...}') from error


async def _changes(request: web.Request) -> web.Response:
    """Answer once anything changed, or after 20 seconds."""
    library, known = request.app[_LIBRARY], _whole(request, "version")
    for _ in range(int(_LONGEST_WAIT_S / _TICK_S)):
        if library.version != known:
            break
        await asyncio.sleep(_TICK_S)
    return await _json(library.state)


async def _image(request: web.Request) -> web.Response:
    run, sha256 = _named(request), request.match_info["sha256"]
    folder = request.app[_LIBRARY].folder
    try:
        data, kind = await asyncio.to_thread(folder.read_image, run.path, sha256)
    except EnvkitError as error:
        return _problem(404, str(error))
    headers = {"Cache-Control": "private, max-age=86400, immutable"}
    return web.Response(body=data, content_type=kind, headers=headers)


def _named(request: web.Request, parameter: str = "name") -> LiveRun:
    run = request.app[_LIBRARY].run(request.query.get(parameter, ""))
    if run is None:
        raise web.HTTPNotFound(reason="no such run")
    return run


def _whole(request: web.Request, parameter: str) -> int:
    """Return an integer parameter; 0 if it is missing or invalid."""
    text = request.query.get(parameter, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


async def _json(build: Callable[[], Any]) -> web.Response:
    """Respond with data that is built and serialized on a thread, or is JSON; None gives 404."""

    def written() -> bytes | None:
        data = build()
        return data if data is None or isinstance(data, bytes) else wire_json(data)

    try:
        body = await asyncio.to_thread(written)
    except ConfigurationError as error:
        return _problem(409, str(error))
    except EnvkitError as error:
        return _problem(404, str(error))
    if body is None:
        return _problem(404, "no such episode")
    return web.Response(body=body, content_type="application/json")


def _problem(status: int, detail: str, allow: str | None = None) -> web.Response:
    headers = {} if allow is None else {"Allow": allow}
    return web.Response(status=status, text=f"{utf8(detail)}\n", headers=headers)
