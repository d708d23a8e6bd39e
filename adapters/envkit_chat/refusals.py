"""Classify HTTP responses that are not completions: retry, wait, or fail."""

import json
from collections.abc import Mapping
from typing import Any, Final

from envkit.retry_after import retry_after
from envkit_chat.failure import CallFailure

_RETRYABLE: Final = frozenset({408, 409, 425, 429})
_SPENT: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that waiting does not fix (OpenAI's guide to error codes)."""


def status_failure(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secret: str | None = None,
    advice: Mapping[int, str],
) -> CallFailure:
    """Return the failure for a status.

    Args:
        status: Anything but 200.
        headers: The response headers.
        body: The response body.
        secret: Removed from messages, even if the server repeats it.
        advice: Advice by status, for the message.
    """
    message, code = _error_of(body)
    if secret:
        message = message.replace(secret, "***")
    hint = advice.get(status)
    text = f"HTTP {status}" + (f" ({hint})" if hint else "") + f": {message}"
    is_retryable = (status in _RETRYABLE or status >= 500) and code not in _SPENT
    return CallFailure(
        text,
        is_retryable=is_retryable,
        retry_after_s=retry_after(headers) if is_retryable else None,
        status=status,
    )


def answer_failure(body: bytes) -> CallFailure:
    """Return the failure for a 200 whose body is not a completion, such as a proxy's page."""
    text = f"the response is not a chat completion: {_excerpt(body)!r}"
    return CallFailure(text, is_retryable=True)


def _error_of(body: bytes) -> tuple[str, str | None]:
    """Return an error body's message and code, or an excerpt if it is not a JSON error."""
    try:
        error: Any = json.loads(body)["error"]
        if isinstance(error, str):
            return error[:300], None
        code: Any = error.get("code")
        return str(error["message"])[:300], code if isinstance(code, str) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _excerpt(body), None


def _excerpt(body: bytes) -> str:
    return " ".join(body[:1000].decode("utf-8", "replace").split())[:200]
