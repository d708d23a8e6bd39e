"""Clients over raw sockets, which stop, drip and send broken HTTP as no library would."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_NEXT = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_LENGTH = b"Content-Length: 5\r\n"
AMBIGUOUS = {
    "both lengths": (b"Content-Length: 6\r\n" + _CHUNKED, b"0\r\n\r\n"),
    "both lengths, chunked first": (_CHUNKED + b"Content-Length: 6\r\n", b"0\r\n\r\n"),
    "two lengths": (b"Content-Length: 0\r\n" + _LENGTH, b""),
    "a length twice": (_LENGTH + _LENGTH, b"hello"),
    "a list of lengths": (b"Content-Length: 5, 5\r\n", b"hello"),
    "a length with a sign": (b"Content-Length: +5\r\n", b"hello"),
    "a length with an underscore": (b"Content-Length: 0_5\r\n", b"hello"),
    "an unknown coding": (b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "a folded field": (b"X-A: b\r\n c: d\r\n", b""),
    "a folded coding": (b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
    "a space before the colon": (b"Content-Length : 5\r\n", b"hello"),
    "a bare line feed": (b"X: y\n" + _CHUNKED, b"0\r\n\r\n"),
    "a bare carriage return": (b"X: y\r" + _CHUNKED, b"0\r\n\r\n"),
    "a chunk's extension with a line feed": (_CHUNKED, b"5;a\nhello\r\n0\r\n\r\n"),
    "a chunk's size in another base": (_CHUNKED, b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a length in the trailer": (_CHUNKED, b"0\r\nContent-Length: 5\r\n\r\n"),
}
"""Header fields and bodies whose end two servers see at different places."""


@asynccontextmanager
async def connected(
    address: str, said: str | bytes = b""
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect with small buffers, and say something: who does not read on is soon behind."""
    place = urlsplit(address)
    stranger = socket.socket()
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stranger.setblocking(False)
    await asyncio.get_running_loop().sock_connect(stranger, (place.hostname, place.port))
    reader, writer = await asyncio.open_connection(sock=stranger, limit=1024)
    try:
        writer.write(said.encode() if isinstance(said, str) else said)
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answers_to_ambiguous(address: str, name: str, *, path: str = "/") -> int:
    """Send a request of an ambiguous end and one after it; count the answers until the end."""
    fields, body = AMBIGUOUS[name]
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    said = b""
    async with connected(address, head + fields + b"\r\n" + body + _NEXT) as (reader, _):
        with contextlib.suppress(ConnectionResetError):
            while part := await asyncio.wait_for(reader.read(65_536), 10):
                said += part
    return said.count(b"HTTP/1.")
