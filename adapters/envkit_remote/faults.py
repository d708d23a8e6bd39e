"""Map a server's failures to faults: of the server itself, or of one request.

Errors come in four shapes. vLLM and SGLang (for a ValueError) answer
`{"error": {"message": ...}}`, SGLang's schema gate `{"error": "text"}`, its HTTPException
`{"object": "error", "message": ...}`, and everything else is plain text.
"""

import asyncio
import json
import reprlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import aiohttp

from envkit.errors import EngineFault, FaultKind
from envkit.retry_after import UNAVAILABLE_STATUS
from envkit_remote.transport import Answer, Transport

_TRANSIENT_STATUS: Final = frozenset({408, 425})
_SHOWN_CHARACTERS: Final = 500
_READ_BYTES: Final = 1 << 16

CONNECTION_ERRORS: Final = (aiohttp.ClientError, ConnectionError)
"""HTTP client errors for an unreachable or lost server."""
BROKEN_CONNECTION: Final = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientPayloadError,
    ConnectionResetError,
)
"""Errors after which the server may still process the request."""
_WRONG_ADDRESS: Final = (
    aiohttp.InvalidURL,
    aiohttp.ClientSSLError,
    aiohttp.ClientResponseError,
    aiohttp.ClientConnectorCertificateError,
)
"""Errors that do not recover: a bad address or certificate, or a protocol other than HTTP."""


def error_message(body: bytes) -> str:
    """Return the readable message of an error body of any shape."""
    text = body[:_READ_BYTES].decode(errors="replace").strip()
    try:
        answer: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text[:_SHOWN_CHARACTERS] or "(empty body)"
    for key in ("error", "message"):
        if isinstance(answer, dict):
            inside = cast("dict[str, Any]", answer)
            answer = inside.get(key, inside)
    return shown(answer)


def shown(value: object) -> str:
    """Return a foreign value as short text for a message."""
    text = value if isinstance(value, str) else reprlib.repr(value)
    return text[:_SHOWN_CHARACTERS].encode(errors="replace").decode()


def status_fault(http: Transport, answer: Answer, advice: Mapping[int, str]) -> EngineFault:
    """Return the fault of an answer that is not 200.

    Args:
        http: The server.
        answer: The answer. A 4xx never succeeds on retry, except 408, 425 and 429.
        advice: Advice by status.
    """
    status = answer.status
    message = f"{http.title} at {http.base_url} answered {status}: {error_message(answer.body)}"
    is_unavailable = status in UNAVAILABLE_STATUS
    # A 500 is decided by the dialect: it may be a bug in the request, or a dying engine.
    is_passing = is_unavailable or status in _TRANSIENT_STATUS or status > 500
    hint = None if is_passing else advice.get(status)
    return EngineFault(
        f"{message}. {hint}" if hint else message,
        kind=FaultKind.TRANSIENT if is_passing else FaultKind.PERMANENT,
        is_unavailable=is_unavailable,
        retry_after_s=answer.retry_after_s if is_unavailable else None,
        status=status,
    )


def connection_fault(http: Transport, error: BaseException) -> EngineFault:
    """Return the fault of a connection that could not be made, or that broke.

    Args:
        http: The server, which may have answered this client before.
        error: What the HTTP client raised.
    """
    title, url = http.title, http.base_url
    reason = str(error) or type(error).__name__
    if isinstance(error, _WRONG_ADDRESS):
        return EngineFault(f"no {title} server can be reached at {url}: {reason}")
    if isinstance(error, BROKEN_CONNECTION):
        return EngineFault(
            f"the {title} server at {url} broke the connection of a request: {reason}. It probably "
            "crashed or was stopped: look at the end of its log and start it again",
            kind=FaultKind.CRASHED,
            is_unavailable=True,
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError) and not http.reached:
        return EngineFault(f"no host of {url} is known: {reason}", kind=FaultKind.TRANSIENT)
    if http.reached:
        return EngineFault(
            f"the {title} server at {url} stopped answering: {reason}. It has answered before, so "
            "it probably crashed or was stopped: look at the end of its log and start it again",
            kind=FaultKind.TRANSIENT,
            is_unavailable=True,
        )
    return EngineFault(
        f"no {title} server could be reached at {url}: {reason}. Check that it is running, that "
        "its log says it is ready, that host and port are right, and that no proxy or firewall "
        f"is in between; `curl {url}/health` must return 200",
        kind=FaultKind.TRANSIENT,
        is_unavailable=True,
    )


@asynccontextmanager
async def asking(http: Transport, timeout_s: float, what: str) -> AsyncGenerator[None]:
    """Turn errors while querying a server's facts into faults.

    Args:
        http: The server.
        timeout_s: Seconds for the whole block.
        what: Name of the request, for the message of a timeout.

    Raises:
        EngineFault: The server was not reached, or not in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except CONNECTION_ERRORS as error:
        raise connection_fault(http, error) from error
    except TimeoutError as error:
        raise timeout_fault(http, timeout_s, what) from error


def timeout_fault(http: Transport, seconds: float, rid: str, hint: str = "") -> EngineFault:
    """Return the fault of a request that had no answer before its deadline."""
    return EngineFault(
        f"{http.title} at {http.base_url} gave no answer in {seconds:g} s (request {rid}); the "
        "request was aborted. The server may be overloaded, paused, or stuck on this request"
        f"{hint}",
        kind=FaultKind.TIMEOUT,
    )
