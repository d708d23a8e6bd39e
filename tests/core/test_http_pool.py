"""Connections that HTTP clients share: no cookies, a pool per loop, bodies of limited size."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from envkit.http_pool import HttpPool, read_capped
from envkit.serving import listening


async def _cookies(request: web.Request) -> web.Response:
    answer = web.json_response(dict(request.cookies))
    answer.set_cookie("worker", "3")
    return answer


async def _headers(request: web.Request) -> web.Response:
    return web.Response(text=request.headers["X-Own"])


@asynccontextmanager
async def served() -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_get("/cookies", _cookies)
    app.router.add_get("/headers", _headers)
    async with listening(app, host="127.0.0.1", port=0, answer_s=5, stop_s=0.1) as address:
        # The usual cookie jar keeps no cookies of IP addresses.
        yield address.replace("127.0.0.1", "localhost")


async def test_pool_sends_its_headers_and_keeps_no_cookie() -> None:
    pool = HttpPool(headers={"X-Own": "yes"})
    async with served() as address:
        for _ in range(2):
            async with pool.session().get(f"{address}/cookies") as answer:
                assert await answer.json() == {}
        async with pool.session().get(f"{address}/headers") as answer:
            assert await answer.text() == "yes"
        await pool.aclose()
        await pool.aclose()


@pytest.mark.parametrize(("most", "found"), [(3, b"yes"), (2, None)])
async def test_body_is_read_up_to_its_limit(most: int, found: bytes | None) -> None:
    pool = HttpPool(headers={"X-Own": "yes"})
    async with served() as address:
        async with pool.session().get(f"{address}/headers") as answer:
            assert await read_capped(answer, most) == found
        await pool.aclose()


def test_pool_forgets_the_connections_of_a_loop_that_ended() -> None:
    pool = HttpPool()

    async def use() -> None:
        pool.session()

    for _ in range(3):
        asyncio.run(use())  # without closing
    assert len(pool._sessions) == 1
    asyncio.run(pool.aclose())
    assert not pool._sessions
    gc.collect()  # an unclosed session would warn here, and warnings are errors
