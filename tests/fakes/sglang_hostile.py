"""A server on loopback that answers `/generate` with whatever bytes a test likes."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Reply = Callable[[dict[str, Any]], bytes | None]
"""From a request's body to the whole HTTP answer; None never answers."""


def http(body: bytes, *, status: str = "200 OK", headers: str = "", length: int = -1) -> bytes:
    """Return an HTTP answer; `length` overrides what the header says of the body."""
    size = len(body) if length < 0 else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n"
    return f"{head}{headers}\r\n".encode() + body


def good(request: dict[str, Any]) -> dict[str, Any]:
    """Return the right answer to a request: three ids of which the last one stops."""
    ids = [20, 21, request["sampling_params"]["stop_token_ids"][0]]
    return {
        "text": "",
        "output_ids": ids,
        "meta_info": {
            "id": request["rid"],
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "prompt_tokens": len(request["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": "default",
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
        },
    }


@asynccontextmanager
async def hostile_server(reply: Reply) -> AsyncGenerator[str]:
    """Serve on a free port and yield the address. Other paths than `/generate` answer 404."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = int(head.lower().partition("content-length:")[2].split("\r\n")[0] or 0)
                body = await reader.readexactly(size)
                if not head.startswith("POST /generate "):
                    writer.write(http(b"{}", status="404 Not Found"))
                    continue
                answer = reply(json.loads(body))
                if answer is None:
                    await reader.read()  # until the client gives up
                    break
                writer.write(answer)
                await writer.drain()
                if not _is_whole(answer):
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def _is_whole(answer: bytes) -> bool:
    """Whether an answer has as many bytes as it says, so that the connection can be kept."""
    head, end, body = answer.partition(b"\r\n\r\n")
    size = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    return bool(end) and size.isdigit() and int(size) == len(body)
