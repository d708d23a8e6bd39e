"""A server of Search-R1's `/retrieve` and of Serper's `/search`, strict, that fails as it is told.

A request that the real service would refuse gets 422 and is noted in `complaints`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, cast

from aiohttp import web
from fakes.search_backend import MemoryBackend
from fakes.sglang_failures import Draws
from fakes.virtual_time import skip

from envkit_search.document import Hit

HANG_S = 60.0
"""Seconds that pass, by the clock of the event loop, in an answer that comes too late."""


class Failure(StrEnum):
    """One way for a request to fail."""

    E500 = "500"
    E502 = "502"
    E503 = "503"
    E504 = "504"
    BUSY = "429"
    BUSY_SECONDS = "429 with Retry-After in seconds"
    BUSY_LONG = "429 with a Retry-After of an hour"
    E400 = "400"
    E401 = "401"
    E404 = "404"
    REDIRECT = "302"
    RESET = "the connection is dropped before the answer"
    RESET_MID_BODY = "the connection is dropped in the middle of the answer"
    HANG = "no answer"
    DRIP = "a right answer, a byte at a time"
    NOT_JSON = "200 with half a JSON object"
    HTML = "200 with a page"
    EMPTY_BODY = "200 with nothing"
    DEEP = "200 with deeply nested lists"
    WRONG_TOP = "200 with a list instead of an object"
    WRONG_LIST = "200 with an object for each query"
    WRONG_ITEM = "200 with numbers for documents"
    NO_CONTENTS = "200 with documents without contents"
    NAN_SCORE = "200 with a score that is not a number"
    FEWER = "200 with a list less than queries"
    NULL = "200 with null for a query's list"
    HUGE = "200 with a body that does not end"


class Shape(StrEnum):
    """A right answer, as one of the servers in use gives it."""

    SCORED = "scored"
    BARE = "bare"
    PROXY = "proxy"
    """Without ids and scores, from a proxy of a web search engine."""


STATUS = {
    Failure.E500: 500,
    Failure.E502: 502,
    Failure.E503: 503,
    Failure.E504: 504,
    Failure.BUSY: 429,
    Failure.E400: 400,
    Failure.E401: 401,
    Failure.E404: 404,
}
BODIES = {
    Failure.NOT_JSON: b'{"result": [[{"docu',
    Failure.HTML: b"<html><body>Bad gateway</body></html>",
    Failure.EMPTY_BODY: b"",
    Failure.DEEP: b"[" * 100_000,
    Failure.WRONG_TOP: b"[[]]",
    Failure.WRONG_LIST: b'{"result": [{"document": {"contents": "a"}}]}',
    Failure.WRONG_ITEM: b'{"result": [[1, 2]]}',
    Failure.NO_CONTENTS: b'{"result": [[{"document": {"id": "1"}, "score": 1.0}]]}',
    Failure.NAN_SCORE: b'{"result": [[{"document": {"contents": "a"}, "score": NaN}]]}',
    Failure.NULL: b'{"result": [null]}',
}


class FakeSearchServer:
    """What was asked, what to answer, and what to fail with."""

    def __init__(
        self,
        *,
        script: Sequence[Failure | None] = (),
        rates: Mapping[Failure, float] | None = None,
        seed: int = 0,
        shape: Shape = Shape.SCORED,
        delay_s: float = 0.0,
        poison: str | None = None,
    ) -> None:
        """Fail by the script first, then at random.

        Args:
            script: For the first requests, in order of arrival; None is success.
            rates: Probability of each failure for every later request.
            seed: Of the draws.
            shape: Of right answers.
            delay_s: Before every right answer.
            poison: A query for which a whole request is refused with 400.
        """
        self._failures = Draws(script=script, rates=rates, seed=seed)
        self.shape, self.delay_s, self.poison = shape, delay_s, poison
        self.backend = MemoryBackend()
        self.requests: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.at_once = self.most_at_once = 0
        self.body: bytes | None = None
        """Instead of a right answer."""
        self.content_type = "application/json"

    @property
    def failed(self) -> list[Failure]:
        """What requests failed with so far."""
        return [one for one in self._failures.drawn if one is not None]

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        """Answer `/retrieve`."""
        return await self._answer(request, self._right_retrieve)

    async def serper(self, request: web.Request) -> web.StreamResponse:
        """Answer Serper's `/search`."""
        if request.headers.get("X-API-KEY") != "secret":
            return web.json_response({"message": "Unauthorized.", "statusCode": 403}, status=403)
        return await self._answer(request, self._right_serper)

    async def _answer(self, request: web.Request, right: Any) -> web.StreamResponse:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            failure = self._failures.draw()
            if failure is not None:
                await request.read()
                return await self._fail(failure, request)
            await asyncio.sleep(self.delay_s)
            return await right(request)
        finally:
            self.at_once -= 1

    async def _right_retrieve(self, request: web.Request) -> web.StreamResponse:
        payload = await self._payload(
            request, {"queries": list, "topk": int, "return_scores": bool}
        )
        if payload is None:
            return web.json_response({"detail": self.complaints[-1]}, status=422)
        if self.poison in payload["queries"]:
            return web.json_response({"detail": "poison"}, status=400)
        if self.body is not None:
            return web.Response(body=self.body, headers={"Content-Type": self.content_type})
        found = await self.backend.search(payload["queries"], topk=payload["topk"])
        return web.json_response({"result": [[self._item(hit) for hit in hits] for hits in found]})

    async def _right_serper(self, request: web.Request) -> web.StreamResponse:
        payload = await self._payload(request, {"q": str, "num": int, "gl": str, "hl": str})
        if payload is None:
            return web.json_response({"message": self.complaints[-1]}, status=400)
        if self.body is not None:
            return web.Response(body=self.body, headers={"Content-Type": self.content_type})
        (hits,) = await self.backend.search([payload["q"]], topk=payload["num"])
        answer: dict[str, Any] = {"searchParameters": {**payload, "type": "search"}, "credits": 1}
        if hits:
            answer["organic"] = [
                {
                    "title": hit.document.title,
                    "link": f"https://example.org/{hit.document.id}",
                    "snippet": hit.document.text,
                    "position": rank,
                }
                for rank, hit in enumerate(hits, start=1)
            ]
        return web.json_response(answer)

    async def _payload(
        self, request: web.Request, fields: Mapping[str, type]
    ) -> dict[str, Any] | None:
        payload: Any = json.loads(await request.read())
        self.requests.append(payload)
        if request.content_type != "application/json":
            self.complaints.append(f"content type {request.content_type}")
        elif set(payload) != set(fields):
            self.complaints.append(f"keys {sorted(payload)}")
        elif any(type(payload[name]) is not kind for name, kind in fields.items()):
            self.complaints.append(f"types of {payload}")
        elif "queries" in payload and not all(
            isinstance(query, str) for query in cast(list[object], payload["queries"])
        ):
            self.complaints.append("queries must be strings")
        else:
            return cast(dict[str, Any], payload)
        return None

    def _item(self, hit: Hit) -> dict[str, Any]:
        contents = f'"{hit.document.title}"\n{hit.document.text}'
        if self.shape is Shape.PROXY:
            return {"document": {"contents": contents}}
        document = {"id": hit.document.id, "contents": contents}
        return document if self.shape is Shape.BARE else {"document": document, "score": hit.score}

    async def _fail(self, failure: Failure, request: web.Request) -> web.StreamResponse:
        if failure in STATUS:
            return web.json_response({"detail": failure.name}, status=STATUS[failure])
        if failure in (Failure.BUSY_SECONDS, Failure.BUSY_LONG):
            wait = "1" if failure is Failure.BUSY_SECONDS else "3600"
            return web.Response(status=429, headers={"Retry-After": wait}, text="slow down")
        if failure is Failure.REDIRECT:
            return web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"})
        if failure in BODIES:
            body = BODIES[failure]
            return web.Response(body=body, headers={"Content-Type": "application/json"})
        if failure is Failure.FEWER:
            return web.json_response({"result": []})
        if failure is Failure.HANG:
            skip(HANG_S)
            await asyncio.sleep(3600)
        return await self._break(failure, request)

    async def _break(self, failure: Failure, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if failure is Failure.RESET:
            transport.abort()
            return response
        if failure is Failure.RESET_MID_BODY:
            response.content_length = 1000
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write(b'{"result": [[')
            for _ in range(100_000 if failure is Failure.HUGE else 0):
                await response.write(b"x" * 65_536)
            for _ in range(300 if failure is Failure.DRIP else 0):
                await response.write(b" ")
                skip(HANG_S / 10)
                await asyncio.sleep(0)
        transport.abort()
        return response


@asynccontextmanager
async def served(server: FakeSearchServer) -> AsyncGenerator[str, None]:
    """Run the server on a free port of this machine; gives its address."""
    app = web.Application()
    app.router.add_post("/retrieve", server.retrieve)
    app.router.add_post("/search", server.serper)
    async with running(app) as address:
        yield address


@asynccontextmanager
async def running(app: web.Application) -> AsyncGenerator[str, None]:
    """Run an application on a free port of this machine; gives its address."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
