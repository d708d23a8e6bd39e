"""What HTTP clients share: connections, bodies of limited size, and when to try again."""

import asyncio
import gc
import gzip
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from email.utils import formatdate
from math import isfinite

import pytest
from aiohttp import ClientPayloadError, web
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from envkit.http_pool import HttpPool, read_capped, read_error
from envkit.retry_after import LONGEST_S, retry_after
from envkit.serving import listening


async def _cookies(request: web.Request) -> web.Response:
    answer = web.json_response(dict(request.cookies))
    answer.set_cookie("worker", "3")
    return answer


async def _headers(request: web.Request) -> web.Response:
    return web.Response(text=request.headers["X-Own"])


async def _packed(request: web.Request) -> web.Response:
    assert request.headers["Accept-Encoding"] == "identity"
    encoding, body = PACKED[request.query["name"]]
    return web.Response(body=body, headers={"Content-Encoding": encoding})


async def _failed(request: web.Request) -> web.StreamResponse:
    """Send an error page of 100 MB in pieces, and count what was sent."""
    response = web.StreamResponse(status=503)
    await response.prepare(request)
    try:
        await response.write(b"overloaded")
        for _ in range(100):
            await response.write(b" " * (1 << 20))
            request.app[SENT].append(1 << 20)
    except ConnectionError:
        pass
    return response


def _bare(data: bytes) -> bytes:
    """Return deflate without a header, as some servers send it."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


TEXT = b'{"a": 1}'
BOMB = 64 << 20
PACKED = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "bare deflate": ("Deflate", _bare(TEXT)),
    "identity": ("identity", TEXT),
    "bomb": ("gzip", gzip.compress(bytes(BOMB))),
    "not gzip": ("gzip", TEXT),
    "cut gzip": ("gzip", gzip.compress(TEXT)[:-9]),
    "br": ("br", b"\x0b\x03\x80{}\x03"),
    "two": ("gzip, gzip", gzip.compress(gzip.compress(TEXT))),
}
SENT: web.AppKey[list[int]] = web.AppKey("sent", list)


@asynccontextmanager
async def served(sent: list[int] | None = None) -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_get("/cookies", _cookies)
    app.router.add_get("/headers", _headers)
    app.router.add_get("/packed", _packed)
    app.router.add_get("/failed", _failed)
    app[SENT] = sent if sent is not None else []
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


async def unpacked(name: str, most: int = 1000) -> bytes | None:
    pool = HttpPool()
    async with served() as address:
        try:
            async with pool.session().get(f"{address}/packed?name={name}") as answer:
                return await read_capped(answer, most)
        finally:
            await pool.aclose()


@pytest.mark.parametrize("name", ["gzip", "deflate", "bare deflate", "identity"])
async def test_body_that_is_compressed_unasked_is_read(name: str) -> None:
    assert await unpacked(name) == TEXT
    assert await unpacked(name, len(TEXT)) == TEXT
    assert await unpacked(name, len(TEXT) - 1) is None


async def test_bomb_is_refused_by_its_plain_size() -> None:
    assert len(PACKED["bomb"][1]) < 100_000
    assert await unpacked("bomb", 100_000) is None


@pytest.mark.parametrize("name", ["not gzip", "cut gzip", "br", "two"])
async def test_body_that_cannot_be_decompressed_is_a_broken_answer(name: str) -> None:
    with pytest.raises(ClientPayloadError):
        await unpacked(name)


async def test_long_error_is_read_at_its_beginning_only() -> None:
    pool, sent = HttpPool(), list[int]()
    async with served(sent) as address:
        async with pool.session().get(f"{address}/failed") as answer:
            body = await read_error(answer)
        await pool.aclose()
    assert body.startswith(b"overloaded")
    assert len(body) <= 1 << 16
    assert sum(sent) < 50 << 20


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
