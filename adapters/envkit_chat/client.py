"""HTTP to a chat endpoint: one request, one answer, or a typed failure.

The contract is `POST /v1/chat/completions` in OpenAI's API reference, which vLLM and SGLang also
implement: errors are `{"error": {"message", "type", "code"}}` with a status, and 429 carries
`Retry-After`.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import aiohttp

from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit_chat.failure import CallFailure
from envkit_chat.refusals import status_failure

_CONNECTION_ERRORS: Final = (aiohttp.ClientError, ConnectionError)
_WRONG_ADDRESS: Final = (
    aiohttp.InvalidURL,
    aiohttp.ClientSSLError,
    aiohttp.ClientConnectorDNSError,
    aiohttp.ClientResponseError,
)
"""No retry fixes these."""
_MAX_BYTES: Final = 4 * 2**20


class ChatClient:
    """Connections to one endpoint, with one pool per event loop."""

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
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._sessions = WeakKeyDictionary()

    async def complete(
        self, fields: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
    ) -> bytes:
        """Send one request and return the response body. The caller sets deadlines.

        Args:
            fields: The request's fields without its messages.
            messages: In wire format, with images as `Image`.

        Raises:
            CallFailure: No connection, a status other than 200, or a body that is too long.
        """
        request = {**fields, "messages": messages}
        if any(not isinstance(entry.get("content"), str | None) for entry in messages):
            # Encoding an image takes tens of milliseconds the first time.
            body = await asyncio.to_thread(_encoded, request)
        else:
            body = _encoded(request)
        try:
            async with self._session().post(
                self.url, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                answer = await _read(response)
                if response.status != 200:
                    raise status_failure(
                        response.status,
                        response.headers,
                        answer,
                        secret=self._key,
                        advice=self._advice,
                    )
        except _CONNECTION_ERRORS as error:
            raise CallFailure(
                f"cannot reach {self.url}: {type(error).__name__}: {error}",
                is_retryable=not isinstance(error, _WRONG_ADDRESS),
                is_unreachable=True,
            ) from error
        return answer

    async def aclose(self) -> None:
        """Close the running loop's connections; safe to call twice."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # callers set their own time limits
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session


def _encoded(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request, default=_data_uri).encode()


def _data_uri(value: object) -> str:
    if isinstance(value, Image):
        return value.data_uri(value.file_format)
    raise TypeError(f"a request is JSON data, got {type(value).__name__}")


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read a body up to the maximum reply size.

    Raises:
        CallFailure: The body is longer.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise CallFailure(f"the answer is longer than {_MAX_BYTES} bytes", is_retryable=False)
    return bytes(body)
