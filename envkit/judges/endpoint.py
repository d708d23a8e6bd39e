"""A judge behind an OpenAI-compatible HTTP endpoint.

The contract is that of OpenAI's API reference, `POST /v1/chat/completions`, which vLLM and SGLang
serve too: errors are `{"error": {"message", "type", "code"}}` with a status, 429 carries
`Retry-After`, and `response_format` holds a reply to a JSON Schema.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import aiohttp

from envkit.errors import ConfigurationError
from envkit.judges.failure import CallFailure
from envkit.judges.refusals import answer_failure, status_failure
from envkit.messages import Message
from envkit.rollout.engine import Sampling
from envkit.toolcalls.tolerant_json import scrub

ResponseFormat = Literal["json_schema", "json_object"]
_CONNECTION_ERRORS: Final = (aiohttp.ClientError, ConnectionError)
_MAX_BYTES: Final = 4 * 2**20
# What Qwen, Llama, GLM, DeepSeek, MiniCPM, LLaVA, InternVL, Gemma, Pixtral and Mistral begin tokens
# with.
_CONTROL: Final = re.compile(
    r"<(?=[|\uff5c])|<(?=/?(?:s|think|tool_call|tool_response|image|video|audio|img|start_of_turn|"
    r"end_of_turn|image_soft_token|start_of_image|end_of_image|IMG_CONTEXT)>)|"
    r"\[(?=/?(?:INST|IMG|IMG_BREAK|IMG_END|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS)\])"
)


class Endpoint:
    """A model of an OpenAI-compatible server."""

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        response_format: ResponseFormat | None = "json_schema",
        length_field: str = "max_tokens",
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the endpoint; nothing is sent before the first question.

        Args:
            base_url: Up to and including the version, such as "http://127.0.0.1:8000/v1".
            model: Its name there.
            api_key: Sent as a bearer token; None sends none.
            headers: Sent with every request.
            response_format: How the server holds the model to JSON. None for servers that refuse
                the field.
            length_field: Where the longest reply is said; "max_completion_tokens" for OpenAI's
                reasoning models, which also take no other temperature than 1.
            extras: Other fields of every request, such as {"reasoning_effort": "low"}.

        Raises:
            ConfigurationError: The address is no HTTP address.
        """
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"base_url must begin with http:// or https://, got {base_url!r}"
            )
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model, self._format = model, response_format
        self._key, self._length_field = api_key, length_field
        self._extras = dict(extras or {})
        self._headers = dict(headers or {})
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession]
        self._sessions = WeakKeyDictionary()

    @property
    def identity(self) -> str:
        """Model and address, with what else changes its answers."""
        extras = json.dumps(self._extras, sort_keys=True) if self._extras else ""
        return f"{self._model} at {self._url} {extras}".rstrip()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, schema: Mapping[str, Any]
    ) -> str:
        """Send one request and return the reply's text.

        Raises:
            CallFailure: No connection, a status other than 200, or a body that is no completion.
        """
        body = await self._body(messages, sampling, schema)
        try:
            async with self._session().post(
                self._url, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                answer = await _read(response)
                if response.status != 200:
                    raise status_failure(
                        response.status, response.headers, answer, secret=self._key
                    )
        except _CONNECTION_ERRORS as error:
            raise CallFailure(
                f"cannot reach {self._url}: {type(error).__name__}: {error}", is_retryable=True
            ) from error
        return _text_of(answer)

    async def aclose(self) -> None:
        """Close the running loop's connections; closing twice is fine."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    async def _body(
        self, messages: Sequence[Message], sampling: Sampling, schema: Mapping[str, Any]
    ) -> bytes:
        fields: dict[str, Any] = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._length_field: sampling.max_new_tokens,
            **({} if sampling.seed is None else {"seed": sampling.seed}),
            **self._response_format(schema),
            **sampling.extras,
            **self._extras,
        }
        has_images = any(not isinstance(entry["content"], str) for entry in messages)
        if has_images:  # encoding pictures takes tens of milliseconds each the first time
            return await asyncio.to_thread(_encoded, fields, messages)
        return _encoded(fields, messages)

    def _response_format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if self._format is None:
            return {}
        if self._format == "json_object":
            return {"response_format": {"type": "json_object"}}
        named = {"name": "verdict", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # the judge bounds its calls itself
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Content-Type": "application/json"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read a body that is no longer than any verdict.

    Raises:
        CallFailure: It is longer.
    """
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise CallFailure(
                f"the judge's answer is longer than {_MAX_BYTES} bytes", is_retryable=False
            )
    return bytes(body)


def _encoded(fields: Mapping[str, Any], messages: Sequence[Message]) -> bytes:
    spoken = [{"role": entry["role"], "content": _content(entry)} for entry in messages]
    return json.dumps({**fields, "messages": spoken}).encode()


def _content(entry: Message) -> object:
    content = entry["content"]
    if isinstance(content, str):
        return _without_tokens(content)
    return [
        {"type": "image_url", "image_url": {"url": part["image"].data_uri()}}
        if part["type"] == "image"
        else {"type": "text", "text": _without_tokens(part["text"])}
        for part in content
    ]


def _without_tokens(text: str) -> str:
    """Return a text in which no server's chat template sees control tokens.

    The judge's tokenizer is out of reach here, so what families have in common is broken.
    """
    return _CONTROL.sub(lambda mark: f"{mark.group()} ", scrub(text))


def _text_of(body: bytes) -> str:
    """Return the first choice's text; a refusal is text too.

    Raises:
        CallFailure: The body is no completion.
    """
    try:
        choice: Any = json.loads(body)["choices"][0]["message"]
        content: Any = choice["content"]
        if content is None:
            content = choice.get("refusal")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise answer_failure(body) from error
    if not isinstance(content, str):
        raise answer_failure(body)
    return content
