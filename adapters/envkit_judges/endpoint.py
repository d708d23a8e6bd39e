"""A judge behind an OpenAI-compatible HTTP endpoint.

The contract is `POST /v1/chat/completions` in OpenAI's API reference, which vLLM and SGLang also
implement: errors are `{"error": {"message", "type", "code"}}` with a status, 429 carries
`Retry-After`, and `response_format` enforces a JSON Schema.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from envkit.messages import Message
from envkit.rollout.engine import Sampling
from envkit_chat import ChatClient, answer_fault, wire_message

ResponseFormat = Literal["json_schema", "json_object"]
_ADVICE: Final[Mapping[int, str]] = {
    400: "the request was refused; response_format=None suits servers without structured output",
    401: "the key was refused: check api_key",
    403: "the key has no access to this model",
    404: "the address or the model is unknown: check base_url and model",
    413: "the request is too large: show the judge less",
}


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
        """Describe the endpoint; the first question opens a connection.

        Args:
            base_url: Address up to and including the version, such as "http://127.0.0.1:8000/v1".
            model: Name of the model on the server.
            api_key: Sent as a bearer token; None sends none.
            headers: Sent with every request.
            response_format: How the server enforces JSON. None for servers that reject the field.
            length_field: Field of the maximum reply length; "max_completion_tokens" for OpenAI's
                reasoning models, which also require temperature 1.
            extras: Other fields of every request, such as {"reasoning_effort": "low"}.

        Raises:
            ConfigurationError: The address is not an HTTP address.
        """
        self._client = ChatClient(base_url, api_key=api_key, headers=headers, advice=_ADVICE)
        self._model, self._format = model, response_format
        self._length_field = length_field
        self._extras = dict(extras or {})

    @property
    def identity(self) -> str:
        """Model, address and other settings that change the answers."""
        extras = json.dumps(self._extras, sort_keys=True) if self._extras else ""
        return f"{self._model} at {self._client.url} {extras}".rstrip()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, schema: Mapping[str, Any]
    ) -> str:
        """Send one request and return the reply's text.

        Raises:
            EngineFault: No connection, a status other than 200, or a body that is not a completion.
        """
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
        return _text_of(
            await self._client.complete(fields, [wire_message(entry) for entry in messages])
        )

    async def aclose(self) -> None:
        """Close the running loop's connections; safe to call twice."""
        await self._client.aclose()

    def _response_format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        if self._format is None:
            return {}
        if self._format == "json_object":
            return {"response_format": {"type": "json_object"}}
        named = {"name": "verdict", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}


def _text_of(body: bytes) -> str:
    """Return the first choice's text; a refusal is text too.

    Raises:
        EngineFault: The body is not a completion.
    """
    try:
        choice: Any = json.loads(body)["choices"][0]["message"]
        content: Any = choice["content"]
        if content is None:
            content = choice.get("refusal")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise answer_fault(body) from error
    if not isinstance(content, str):
        raise answer_fault(body)
    return content
