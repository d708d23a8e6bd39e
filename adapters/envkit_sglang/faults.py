"""Which failure of a server is which fault: of the server itself, or of one request.

SGLang answers errors in four shapes (python/sglang/srt/entrypoints/http_server.py, 0.5.23):
`{"error": "text"}` from its schema gate, `{"error": {"message": ...}}` for a ValueError,
`{"object": "error", "message": ...}` for an HTTPException, and plain text for everything else.
"""

import json
import reprlib
from typing import Any, Final

import aiohttp

from envkit.errors import EngineFault, FaultKind
from envkit.retry_after import AWAY_STATUS
from envkit_sglang.transport import Answer

_TRANSIENT_STATUS: Final = frozenset({408, 425})
_SHOWN_CHARACTERS: Final = 500
_READ_BYTES: Final = 1 << 16

CONNECTION_ERRORS: Final = (aiohttp.ClientError, ConnectionError)
"""What the HTTP client raises when it does not reach a server, or loses it."""
BROKEN_CONNECTION: Final = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientPayloadError,
    ConnectionResetError,
)
"""Those after which the server may still be working on the request."""
_WRONG_ADDRESS: Final = (
    aiohttp.InvalidURL,
    aiohttp.ClientSSLError,
    aiohttp.ClientResponseError,
    aiohttp.ClientConnectorCertificateError,
)
"""No server comes back from these: a bad address or certificate, or something that is not HTTP."""


def error_message(body: bytes) -> str:
    """Return the human part of an error body, whatever its shape."""
    text = body[:_READ_BYTES].decode(errors="replace").strip()
    try:
        answer: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text[:_SHOWN_CHARACTERS] or "(empty body)"
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        if isinstance(error, dict):
            error = error.get("message", error)
        return _shown(error)
    return _shown(answer)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else reprlib.repr(value)
    return text[:_SHOWN_CHARACTERS].encode(errors="replace").decode()


def status_fault(url: str, answer: Answer) -> EngineFault:
    """Return the fault of an answer that is not 200.

    A 400 never succeeds on a second try. A 500 is an unexpected exception in the server, which may
    pass: it is retryable.
    """
    status = answer.status
    message = f"SGLang at {url} answered {status}: {error_message(answer.body)}"
    if status in AWAY_STATUS:
        return EngineFault(
            message,
            kind=FaultKind.TRANSIENT,
            is_away=True,
            retry_after_s=answer.retry_after_s,
        )
    if status in _TRANSIENT_STATUS or status > 500:
        return EngineFault(message, kind=FaultKind.TRANSIENT)
    if status == 500:
        message += (
            ". A 500 for a request with images often means that the ids held expanded image "
            "placeholders; send one per image. The server's log has the traceback"
        )
    if status in (401, 403):
        message += ". Pass api_key=... as the server was started with --api-key"
    if status == 404:
        message += ". Is this the address of an SGLang server, without a path such as /v1?"
    return EngineFault(message, kind=FaultKind.PERMANENT, retryable=status == 500)


def abort_fault(status: int, message: object) -> EngineFault:
    """Return the fault of a request that the server gave up with a status of its own."""
    return EngineFault(
        f"SGLang gave the request up with status {status}: {_shown(message)}",
        kind=FaultKind.TRANSIENT if status >= 500 else FaultKind.PERMANENT,
        is_away=status in AWAY_STATUS,
    )


def connection_fault(url: str, error: BaseException, *, reached_before: bool) -> EngineFault:
    """Return the fault of a connection that could not be made, or that broke.

    Args:
        url: The server's base address.
        error: What the HTTP client raised.
        reached_before: True when this server has answered this client before.
    """
    reason = str(error) or type(error).__name__
    if isinstance(error, _WRONG_ADDRESS):
        return EngineFault(f"no SGLang server can be reached at {url}: {reason}")
    if isinstance(error, BROKEN_CONNECTION):
        return EngineFault(
            f"the SGLang server at {url} broke the connection of a request: {reason}. It probably "
            "crashed or was stopped: look at the end of its log and start it again",
            kind=FaultKind.CRASHED,
            is_away=True,
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError) and not reached_before:
        return EngineFault(f"no host of {url} is known: {reason}", kind=FaultKind.TRANSIENT)
    if reached_before:
        return EngineFault(
            f"the SGLang server at {url} stopped answering: {reason}. It has answered before, so "
            "it probably crashed or was stopped: look at the end of its log and start it again",
            kind=FaultKind.TRANSIENT,
            is_away=True,
        )
    return EngineFault(
        f"no SGLang server could be reached at {url}: {reason}. Check that it is running, that "
        "its log says it is ready, that host and port are right, and that no proxy or firewall "
        f"is in between; `curl {url}/health` must answer 200",
        kind=FaultKind.TRANSIENT,
        is_away=True,
    )


def timeout_fault(url: str, seconds: float, rid: str) -> EngineFault:
    """Return the fault of a request that had no answer before its deadline."""
    return EngineFault(
        f"SGLang at {url} gave no answer in {seconds:g} s (rid {rid}); the request was aborted. "
        "The server may be overloaded, paused, or stuck on this request: a healthy /health with a "
        "request that never ends is how Qwen2.5-VL servers treat expanded image placeholders",
        kind=FaultKind.TIMEOUT,
    )
