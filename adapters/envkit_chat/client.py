"""HTTP to a chat endpoint: one request, one answer, or a fault that says whether to retry.

The contract is `POST /v1/chat/completions` in OpenAI's API reference, which vLLM and SGLang also
implement: errors are `{"error": {"message", "type", "code"}}` with a status, and 429 carries
`Retry-After`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from envkit import fast_json
from envkit.errors import ConfigurationError, EngineFault, FaultKind
from envkit.http_pool import HttpPool, read_capped, read_error
from envkit.images import Image
from envkit.retry_after import UNAVAILABLE_STATUS, retry_after

_CONNECTION_ERRORS: Final = (aiohttp.ClientError, ConnectionError)
_WRONG_ADDRESS: Final = (
    aiohttp.InvalidURL,
    aiohttp.ClientSSLError,
    aiohttp.ClientConnectorDNSError,
    aiohttp.ClientResponseError,
)
"""No retry fixes these."""
_MAX_BYTES: Final = 2 << 20
_MAX_VALUES: Final = 1 << 17
"""Units of `fast_json.values_in`: a completion has a dozen, and its text may have such signs."""
"""Maximum answer, which the event loop parses: about 35 ms."""
_RETRYABLE: Final = frozenset({408, 409, 425, 429})
_SPENT: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that waiting does not fix (OpenAI's guide to error codes)."""


class ChatClient:
    """Connections to one endpoint."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        headers: Mapping[str, str] | None = None,
        advice: Mapping[int, str],
    ) -> None:
        """Describe the endpoint; the first request opens a connection.

        Args:
            base_url: Address up to and including the version, such as "http://127.0.0.1:8000/v1".
            api_key: Sent as a bearer token; None sends none.
            headers: Sent with every request.
            advice: Advice by HTTP status, for error messages.

        Raises:
            ConfigurationError: The address is not an HTTP address.
        """
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"base_url must begin with http:// or https://, got {base_url!r}"
            )
        self.url = base_url.rstrip("/") + "/chat/completions"
        """URL of the requests."""
        self._key, self._advice = api_key, dict(advice)
        sent = {"Content-Type": "application/json", **(headers or {})}
        if api_key is not None:
            sent["Authorization"] = f"Bearer {api_key}"
        self._pool = HttpPool(headers=sent)

    async def complete(
        self, fields: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> bytes:
        """Send one request and return the response body. The caller sets deadlines.

        Args:
            fields: The request's fields without its messages.
            messages: In wire format, with images as `Image`.

        Raises:
            EngineFault: No connection, a status other than 200, or a body that is too long.
        """
        request = {**fields, "messages": messages}
        if any(not isinstance(entry.get("content"), str | None) for entry in messages):
            # Encoding an image takes tens of milliseconds the first time.
            body = await asyncio.to_thread(_encoded, request)
        else:
            body = _encoded(request)
        try:
            async with self._pool.session().post(
                self.url, data=body, allow_redirects=False
            ) as response:
                if response.status == 200:
                    answer = await read_capped(response, _MAX_BYTES)
                else:
                    answer = await read_error(response)
        except _CONNECTION_ERRORS as error:
            is_wrong = isinstance(error, _WRONG_ADDRESS)
            raise EngineFault(
                f"cannot reach {self.url}: {type(error).__name__}: {error}",
                kind=FaultKind.PERMANENT if is_wrong else FaultKind.TRANSIENT,
                is_unavailable=not is_wrong,
            ) from error
        if answer is None:
            raise EngineFault(f"the answer is longer than {_MAX_BYTES} bytes")
        if len(answer) > _MAX_VALUES and fast_json.values_in(answer) > _MAX_VALUES:
            raise EngineFault(f"the answer has more than {_MAX_VALUES} JSON values")
        if response.status != 200:
            raise status_fault(
                response.status,
                response.headers,
                answer,
                secret=self._key,
                advice=self._advice,
            )
        return answer

    async def aclose(self) -> None:
        """Close the running loop's connections; safe to call twice."""
        await self._pool.aclose()


def _encoded(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, default=_data_uri).encode()


def _data_uri(value: object) -> str:
    if isinstance(value, Image):
        return value.data_uri(value.file_format)
    raise TypeError(f"a request is JSON data, got {type(value).__name__}")


def status_fault(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    secret: str | None = None,
    advice: Mapping[int, str],
) -> EngineFault:
    """Return the fault of an answer without a completion.

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
    # A quota that is spent is also a 429, and no retry restores it.
    is_retryable = (status in _RETRYABLE or status >= 500) and code not in _SPENT
    return EngineFault(
        text,
        kind=FaultKind.TRANSIENT if is_retryable else FaultKind.PERMANENT,
        is_unavailable=is_retryable and status in UNAVAILABLE_STATUS,
        retry_after_s=retry_after(headers) if is_retryable else None,
        status=status,
    )


def answer_fault(body: bytes) -> EngineFault:
    """Return the fault of a 200 whose body is not a completion, such as a proxy's page."""
    text = f"the response is not a chat completion: {_excerpt(body)!r}"
    return EngineFault(text, kind=FaultKind.TRANSIENT)


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
