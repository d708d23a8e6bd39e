"""Write stand-in conversations before an observation, and marks in real ones.

In `[user "u", assistant MARK, observation]`, MARK is a random word that locates the end of the
reply in the rendered text. A reply with structured calls has a second mark as an argument. Its
calls have the names and ids of the results, because templates look calls up, check or print them.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from envkit.errors import TemplateError
from envkit.tokens.rules import ContentForms, Variant
from envkit.tokens.template import PlainMessage, plain

CALL_ID = "call00000"
"""Nine alphanumeric characters, which Mistral's templates check."""
_ARGUMENTS: Final = "arguments"
"""Argument that holds what is not a JSON object, for templates that read objects only."""
PLAIN_REPLY: Final = Variant(content="mark", calls="none")


class Writer:
    """Writes stand-in messages with content in the form that a template reads."""

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

    def result(self, text: str, *, call_id: str = CALL_ID) -> PlainMessage:
        """Return a tool result."""
        return {
            "role": "tool",
            "name": "f",
            "tool_call_id": call_id,
            "content": self.content(text),
        }

    def observation(self, role: str, text: str) -> PlainMessage:
        """Return an observation of a role."""
        return self.result(text) if role == "tool" else self.say(role, text)

    def reply(self, variant: Variant, calls: Sequence[tuple[str, str]]) -> PlainMessage:
        """Return the marked reply; `calls` are the names and ids of its calls."""
        if variant.calls == "none":
            return self.say("assistant", self.text_mark)
        text = self.text_mark if variant.content == "mark" else ""
        return self.calling(variant, calls, text=text, argument=self.call_mark)

    def calling(
        self, variant: Variant, calls: Sequence[tuple[str, str]], *, text: str, argument: str
    ) -> PlainMessage:
        """Return a reply with structured calls, written as the template reads them."""
        if variant.calls == "one":
            calls = calls[:1]
        result: PlainMessage = {"role": "assistant"}
        if text or variant.content != "absent":
            result["content"] = self.content(text)
        as_text = variant.arguments == "text"
        result["tool_calls"] = [
            self.call(name, call_id, {"a": argument}, as_text=as_text) for name, call_id in calls
        ]
        return result

    def call(
        self, name: str, call_id: str, arguments: Mapping[str, Any], *, as_text: bool
    ) -> dict[str, Any]:
        """Return a tool call in the chat-completions form."""
        written = json.dumps(arguments) if as_text else dict(arguments)
        function = {"name": name, "arguments": written}
        return {"type": "function", "id": call_id, "function": function}

    def marked(self, reply: PlainMessage, variant: Variant) -> PlainMessage:
        """Return a real reply with the mark at the end of its text or of its last call."""
        if not reply.get("tool_calls"):
            return {**reply, "content": self._marked_content(reply.get("content"))}
        *others, last = reply["tool_calls"]
        function = dict(last.get("function", last))
        given: Any = function.get("arguments") or {}
        if isinstance(given, str):
            given = _object(given)
        arguments: dict[str, Any] = {**given, "zz": self.call_mark}
        as_text = variant.arguments == "text"
        function["arguments"] = json.dumps(arguments) if as_text else arguments
        result = {**reply, "tool_calls": [*others, {**last, "function": function}]}
        if variant.content == "mark":  # the template writes no calls
            result["content"] = self._marked_content(reply.get("content"))
        return result

    def _marked_content(self, content: Any) -> Any:  # noqa: ANN401  # a string or parts
        if isinstance(content, list):
            return [*content, {"type": "text", "text": self.text_mark}]
        return f"{content or ''}{self.text_mark}"

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
        """Return messages as plain data with content in a form that the template renders."""
        return [self._fit(entry) for entry in plain(messages)]

    def _fit(self, entry: PlainMessage) -> PlainMessage:
        content: Any = entry.get("content")
        if isinstance(content, str):
            if not self.forms.strings:
                entry["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list):
            is_text = all(part.get("type") == "text" for part in cast("list[Any]", content))
            flat = not self.forms.parts or (entry["role"] == "tool" and is_text)
            if flat and self.forms.strings:
                entry["content"] = "".join(_texts(content))  # pyright: ignore[reportUnknownArgumentType]
        for call in entry.get("tool_calls") or ():
            function = call.get("function", call)
            if "arguments" in function:
                function["arguments"] = self._fit_arguments(function["arguments"])
        return entry

    def _fit_arguments(self, given: Any) -> Any:  # noqa: ANN401  # JSON
        """Return a call's arguments as servers give them to a template, if it renders that form."""
        value = _parsed(given) if isinstance(given, str) else given
        # Where they are not an object, vLLM writes an empty one (`_postprocess_messages` in
        # vllm/renderers/chat_utils.py) and SGLang refuses the conversation. Here the policy reads
        # what it wrote.
        if not isinstance(value, dict):
            return given if self.forms.texts or not isinstance(given, str) else {_ARGUMENTS: given}
        if self.forms.objects:
            return value  # pyright: ignore[reportUnknownVariableType]
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _object(text: str) -> dict[str, Any]:
    """Parse the JSON arguments of a call; anything but an object becomes empty."""
    value = _parsed(text)
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _parsed(text: str) -> Any:  # noqa: ANN401  # JSON
    """Parse JSON; None if it is not valid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _texts(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for part in parts:
        if part.get("type") != "text":
            raise TemplateError("the chat template does not render images, got one in a message")
        yield part["text"]


def call_variants() -> Iterator[Variant]:
    """Yield ways to write a reply with structured calls, the most faithful first."""
    for content in ("empty", "absent", "mark"):
        for arguments in ("object", "text"):
            for calls in ("all", "one"):
                yield Variant(content=content, arguments=arguments, calls=calls)
