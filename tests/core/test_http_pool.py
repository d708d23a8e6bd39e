"""What HTTP clients share: connections, bodies of limited size, and when to try again."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from email.utils import formatdate
from math import isfinite

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from envkit.http_pool import HttpPool, read_capped
from envkit.retry_after import LONGEST_S, retry_after
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


NOW = 946_684_800.0  # 2000-01-01


def read(value: str, name: str = "Retry-After") -> float | None:
    return retry_after({name: value}, wall_clock=lambda: NOW)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        (" 2 ", 2.0),
        ("0", 0.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("-5", 0.0),
        ("9" * 400, LONGEST_S),
        ("Sat, 01 Jan 2000 00:00:30 GMT", 30.0),
        ("Sat, 01 Jan 2000 00:00:30 -0000", 30.0),
        ("Sat, 01 Jan 2000 01:00:30 +0100", 30.0),
        ("Saturday, 01-Jan-00 00:00:30 GMT", 30.0),
        ("Sat Jan  1 00:00:30 2000", 30.0),
        ("Sat, 01 Jan 2000 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 1999 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 00:00:00 GMT", LONGEST_S),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
        ("1_0", None),
        ("\u0665", None),
        ("2 s", None),
        ("Sat, 99 Jan 2000 00:00:00 GMT", None),
        ("9" * 10_000, None),
    ],
)
def test_value_is_seconds_a_date_or_nothing(value: str, seconds: float | None) -> None:
    assert read(value) == seconds


def test_milliseconds_come_first_where_they_can_be_read() -> None:
    assert retry_after({"retry-after-ms": "250", "Retry-After": "9"}) == 0.25
    assert retry_after({"retry-after-ms": "1.5"}) == 0.0015
    assert retry_after({"retry-after-ms": "soon", "Retry-After": "9"}) == 9.0
    assert retry_after({}) is None


def test_names_of_headers_may_be_in_lower_case_or_a_mapping_that_ignores_case() -> None:
    assert retry_after({"retry-after": "3"}) == 3.0
    assert retry_after(CIMultiDict({"RETRY-AFTER": "3"})) == 3.0
    assert retry_after(CIMultiDict({"Retry-After-Ms": "3"})) == 0.003


@given(st.text(), st.sampled_from(["Retry-After", "retry-after", "retry-after-ms"]))
def test_any_text_gives_a_bounded_wait_or_none(value: str, name: str) -> None:
    seconds = read(value, name)
    assert seconds is None or (isfinite(seconds) and 0.0 <= seconds <= LONGEST_S)


@given(st.integers(0, 10**9), st.integers(0, 999))
def test_seconds_and_their_fraction_are_read_as_written(whole: int, thousandths: int) -> None:
    assert read(str(whole)) == float(whole)
    expected = min(LONGEST_S, float(f"{whole}.{thousandths:03}"))
    assert read(f"{whole}.{thousandths:03}") == expected
    assert read(str(whole), "retry-after-ms") == whole / 1000


@given(st.integers(-(10**8), 10**8))
def test_date_is_the_seconds_until_then(offset: int) -> None:
    assert read(formatdate(NOW + offset, usegmt=True)) == float(max(0, offset))
