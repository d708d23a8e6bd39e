"""Read a chat completion: text, tool calls and token counts."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from envkit import fast_json
from envkit.errors import EngineFault, FaultKind
from envkit.rollout.engine import FinishReason
from envkit.toolcalls.tolerant_json import scrub
from envkit_chat.client import answer_fault

_CLOSING_TAG: Final = re.compile(r"</([\w:-]+)>")
_STOP_KEYS: Final = ("stop_reason", "matched_stop")
"""Keys of a choice in which vLLM and SGLang say which stop string ended it."""
_MOST: Final = 1 << 40
"""Larger token counts are treated as missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """An endpoint's reply."""

    text: str
    """The text, with calls as `<tool_call>` blocks, which environments read."""
    finish_reason: FinishReason
    prompt_tokens: int
    """Counted by the server; 0 if it does not say."""
    reply_tokens: int
    cached_tokens: int
    model: str | None
    """Named by the server; None if it does not say."""
    stop_string: str | None = None
    """The stop string that ended the text, without which servers return it; None if the server does
    not say."""

    def with_stop(self, stops: Sequence[str]) -> str:
        """Return the text with the stop string that ended it, as other engines sample it.

        Without the server's word, a closing tag follows where the text leaves its tag open.

        Args:
            stops: The stop strings that were asked for.
        """
        if self.finish_reason is not FinishReason.STOP:
            return self.text
        if self.stop_string is not None and self.stop_string in stops:
            return self.text.removesuffix(self.stop_string) + self.stop_string
        for stop in stops:
            tag = _CLOSING_TAG.fullmatch(stop)
            if tag and self.text.count(f"<{tag[1]}>") > self.text.count(stop):
                return self.text + stop
        return self.text


def read_reply(body: bytes) -> ChatReply:
    """Return the first choice of a completion; a refusal is text too.

    An empty reply that hit the length limit stays empty: the model spent its tokens elsewhere, such
    as on reasoning.

    Raises:
        EngineFault: The body is not a completion, has no content, or was withheld by a filter.
    """
    try:
        answer: Any = fast_json.loads_large(body)
        choice: Any = answer["choices"][0]
        said: Any = choice["message"]
        parts = [_text(said.get("content")), *_blocks(said.get("tool_calls") or ())]
        reason: Any = choice.get("finish_reason")
        refusal = _text(said.get("refusal"))
        stops = [choice.get(key) for key in _STOP_KEYS]
        usage: Any = answer.get("usage") or {}
        details: Any = usage.get("prompt_tokens_details") or {}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise answer_fault(body) from error
    text = "\n".join(part for part in parts if part) or refusal
    if reason == "content_filter":
        raise EngineFault("the endpoint's content filter withheld the reply")
    if not text and reason != "length":
        raise EngineFault(
            f"the endpoint returned no content (finish_reason {reason!r}); a larger "
            "--max-new-tokens helps models that reason before they answer",
            kind=FaultKind.TRANSIENT,
        )
    served: Any = answer.get("model")
    return ChatReply(
        text=scrub(text),
        finish_reason=FinishReason.LENGTH if reason == "length" else FinishReason.STOP,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        reply_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")),
        model=served if isinstance(served, str) else None,
        stop_string=next((one for one in stops if isinstance(one, str)), None),
    )


def _text(value: object) -> str:
    """Return a content's text: a string, or the text parts of a list.

    Raises:
        TypeError: The content is neither.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise TypeError
    parts = cast("list[Mapping[str, Any]]", value)
    return "".join(str(part["text"]) for part in parts if part["type"] == "text")


def _blocks(calls: "list[Mapping[str, Any]] | tuple[()]") -> list[str]:
    """Return tool calls as text. Arguments that are not valid JSON stay a string."""
    blocks: list[str] = []
    for call in calls:
        function: Mapping[str, Any] = call["function"]
        arguments: Any = function.get("arguments") or {}
        with suppress(ValueError, RecursionError, TypeError):
            arguments = json.loads(arguments)
        wanted: dict[str, Any] = {"name": str(function["name"]), "arguments": arguments}
        blocks.append(f"<tool_call>\n{json.dumps(wanted, ensure_ascii=False)}\n</tool_call>")
    return blocks


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST else 0
