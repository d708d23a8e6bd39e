"""The tiny stand-in conversation that an observation is rendered behind.

`[user "u", assistant MARK, observation]`: MARK is a random word, so the place behind the reply can
be found in the rendered text. For tool results the assistant carries calls that are named and
numbered like the results, with a second mark as their only argument, because templates look the
calls up, check them or print them.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envkit.errors import TemplateError
from envkit.tokens.rules import ContentForms, Variant
from envkit.tokens.template import PlainMessage, plain

CALL_ID = "call00000"
"""Nine alphanumerics: Mistral's templates check that."""


class Writer:
    """Writes stand-in messages in the form of content that a template reads."""

    def __init__(self, forms: ContentForms) -> None:
        self.forms = forms
        self.text_mark = f"Zq{secrets.token_hex(4)}Xw"  # alphanumeric: survives trim, split, tojson
        self.call_mark = f"Ya{secrets.token_hex(4)}Vb"

    def content(self, text: str) -> str | list[dict[str, Any]]:
        """Return a text as content."""
        return text if self.forms.strings else [{"type": "text", "text": text}]

    def say(self, role: str, text: str) -> PlainMessage:
        """Return a text message."""
        return {"role": role, "content": self.content(text)}

    def result(self, text: str, *, name: str = "f", call_id: str = CALL_ID) -> PlainMessage:
        """Return a tool result."""
        return {
            "role": "tool",
            "name": name,
            "tool_call_id": call_id,
            "content": self.content(text),
        }

    def observation(self, role: str, text: str) -> PlainMessage:
        """Return an observation of a role."""
        return self.result(text) if role == "tool" else self.say(role, text)

    def reply(self, variant: Variant, calls: Sequence[tuple[str, str]]) -> PlainMessage:
        """Return the marked reply; `calls` are the names and ids of the calls it makes."""
        if variant.calls == "none":
            return self.say("assistant", self.text_mark)
        if variant.calls == "one":
            calls = calls[:1]
        result: PlainMessage = {"role": "assistant"}
        if variant.content != "absent":
            result["content"] = self.content(self.text_mark if variant.content == "mark" else "")
        result["tool_calls"] = [
            self.call(name, call_id, {"a": self.call_mark}, as_text=variant.arguments == "text")
            for name, call_id in calls
        ]
        return result

    def call(
        self, name: str, call_id: str, arguments: Mapping[str, Any], *, as_text: bool
    ) -> dict[str, Any]:
        """Return a tool call in the chat-completions form."""
        written = json.dumps(arguments) if as_text else dict(arguments)
        function = {"name": name, "arguments": written}
        return {"type": "function", "id": call_id, "function": function}

    def after_reply(self, text: str) -> int:
        """Return where the marked reply ends in a rendered text.

        Raises:
            TemplateError: The template did not render the reply.
        """
        ends = [
            place + len(mark)
            for mark in (self.text_mark, self.call_mark)
            if (place := text.rfind(mark)) >= 0
        ]
        if not ends:
            raise TemplateError("the chat template does not render the assistant's reply")
        return max(ends)

    def fit(self, messages: Sequence[Mapping[str, Any]]) -> list[PlainMessage]:
        """Return messages as plain data, in a form of content that the template renders."""
        return [self._fit(entry) for entry in plain(messages)]

    def _fit(self, entry: PlainMessage) -> PlainMessage:
        content: Any = entry.get("content")
        if isinstance(content, str):
            if not self.forms.strings:
                entry["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list):
            flat = not self.forms.parts or entry["role"] == "tool"
            if flat and self.forms.strings:
                entry["content"] = "".join(_texts(content))  # pyright: ignore[reportUnknownArgumentType]
        return entry


def _texts(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for part in parts:
        if part.get("type") != "text":
            raise TemplateError("the chat template does not render images, got one in a message")
        yield part["text"]


def variants(role: str) -> Iterator[Variant]:
    """Yield ways to write the marked reply, the most faithful first."""
    if role == "tool":
        for content in ("empty", "absent", "mark"):
            for arguments in ("object", "text"):
                for calls in ("all", "one"):
                    yield Variant(content=content, arguments=arguments, calls=calls)
    yield Variant(content="mark", calls="none")
