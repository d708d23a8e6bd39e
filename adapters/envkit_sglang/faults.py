"""Which failure of a server is which fault, and whether the same call is worth repeating.

SGLang answers errors in four shapes (python/sglang/srt/entrypoints/http_server.py, 0.5.23):
`{"error": "text"}` from its schema gate, `{"error": {"message": ...}}` for a ValueError,
`{"object": "error", "message": ...}` for an HTTPException, and plain text for everything else.
"""

import json
from typing import Any, Final

import aiohttp

from envkit.errors import EngineFault, FaultKind

_RETRYABLE_STATUS: Final = frozenset({408, 425, 429, 502, 503, 504})
_SHOWN_CHARACTERS: Final = 500

CONNECTION_ERRORS: Final = (aiohttp.ClientError, ConnectionError)
"""What the HTTP client raises when it does not reach a server, or loses it."""
BROKEN_CONNECTION: Final = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientPayloadError,
    ConnectionResetError,
)
"""Those after which the server may still be working on the request."""


def error_message(body: bytes) -> str:
    """Return the human part of an error body, whatever its shape."""
    text = body.decode(errors="replace").strip()
    try:
        answer: Any = json.loads(text)
    except ValueError:
        return text[:_SHOWN_CHARACTERS] or "(empty body)"
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        if isinstance(error, dict):
            error = error.get("message", error)
        return str(error)[:_SHOWN_CHARACTERS]
    return str(answer)[:_SHOWN_CHARACTERS]


def status_fault(url: str, status: int, body: bytes) -> EngineFault:
    """Return the fault of an answer that is not 200.

    A 400 never succeeds on a second try. A 500 is an unexpected exception in the server: worth one
    more try, because it may have been a passing one, and permanent after that; see
    `is_worth_retrying`.
    """
    message = f"SGLang at {url} answered {status}: {error_message(body)}"
    if status in _RETRYABLE_STATUS or status > 500:
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
    return EngineFault(message, kind=FaultKind.PERMANENT)


def is_worth_retrying(status: int, attempt: int, max_retries: int) -> bool:
    """Tell whether an answer with this status is worth another attempt, a 500 only once.

    Args:
        status: HTTP status, not 200.
        attempt: Number of the attempt that got it, from 0.
        max_retries: How many repetitions a retryable failure may have.
    """
    if status == 500:
        return attempt < min(1, max_retries)
    return (status in _RETRYABLE_STATUS or status > 500) and attempt < max_retries


def connection_fault(url: str, error: BaseException, *, reached_before: bool) -> EngineFault:
    """Return the fault of a connection that could not be made, or that broke.

    Args:
        url: The server's base address.
        error: What the HTTP client raised.
        reached_before: True when this server has answered this client before.
    """
    reason = str(error) or type(error).__name__
    if reached_before:
        return EngineFault(
            f"the SGLang server at {url} stopped answering: {reason}. It has answered before, so "
            "it probably crashed or was stopped: look at the end of its log and start it again",
            kind=FaultKind.CRASHED,
        )
    return EngineFault(
        f"no SGLang server could be reached at {url}: {reason}. Check that it is running, that "
        "its log says it is ready, that host and port are right, and that no proxy or firewall "
        f"is in between; `curl {url}/health` must answer 200",
        kind=FaultKind.TRANSIENT,
    )


def timeout_fault(url: str, seconds: float, rid: str) -> EngineFault:
    """Return the fault of a request that had no answer before its deadline."""
    return EngineFault(
        f"SGLang at {url} gave no answer in {seconds:g} s (rid {rid}); the request was aborted. "
        "The server may be overloaded, paused, or stuck on this request: a healthy /health with a "
        "request that never ends is how Qwen2.5-VL servers treat expanded image placeholders",
        kind=FaultKind.TIMEOUT,
    )
