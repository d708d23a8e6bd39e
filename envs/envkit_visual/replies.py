"""Read the actions of a reply: what is in `<action>` tags, or in a call of the tool `act`."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from envkit.reply import Reply
from envkit.toolcalls import parse_tool_calls
from envkit.tools import ToolSpec

_START, _END = "<action>", "</action>"
_LONGEST: Final = 400
"""Maximum characters of an action."""
_AROUND: Final = "\"'`*()[] "
"""What may be around an action: quotes, brackets and Markdown."""
_NUMBER: Final = re.compile(r"[+-]?\d{1,12}(?:\.\d{1,12})?", re.ASCII)


class ActionForm(StrEnum):
    """How an action is written in a reply."""

    TAGS = "tags"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a reply gives as its action."""

    text: str = ""
    call: dict[str, Any] | None = None
    """The call, for `info["tool_call"]`."""
    error: str | None = None
    """Why there is no action."""


def tool(meaning: str) -> ToolSpec:
    """Return the tool `act`.

    Args:
        meaning: What an action is, as a sentence.
    """
    return ToolSpec(
        name="act",
        description="Act in the world that the picture shows.",
        parameters={
            "type": "object",
            "properties": {"action": {"type": "string", "description": meaning}},
            "required": ["action"],
        },
    )


def read_action(reply: Reply, form: ActionForm) -> Written:
    """Return the last action of a reply. Never raises for what a model writes."""
    call = None
    if form is ActionForm.TAGS:
        text = _last_tagged(reply.final)
        if text is None:
            return Written(error="there is no <action>...</action> in the reply")
    else:
        calls = [call for call in parse_tool_calls(reply).calls if call.name == "act"]
        if not calls:
            return Written(error="there is no call of the tool act in the reply")
        call = {"name": "act", "arguments": calls[-1].arguments}
        text = calls[-1].arguments.get("action")
    if not isinstance(text, str | int | float):
        return Written(call=call, error="the action is not a text")
    text = " ".join(str(text).replace("\u2212", "-").split()).strip(_AROUND).rstrip(".")
    if not 0 < len(text) <= _LONGEST:
        return Written(call=call, error=f"an action has 1 to {_LONGEST} characters")
    return Written(text=text, call=call)


def _last_tagged(text: str) -> str | None:
    """Return what the last pair of tags holds, in a time that grows with the text only."""
    end = max(0, text.rfind(_END))
    start = text.rfind(_START, 0, end)
    return None if start < 0 else text[start + len(_START) : text.find(_END, start)]


def write_action(text: str, form: ActionForm) -> str:
    """Return the reply that gives an action."""
    if form is ActionForm.TAGS:
        return f"<action>{text}</action>"
    call = json.dumps({"name": "act", "arguments": {"action": text}}, ensure_ascii=False)
    return f"<tool_call>{call}</tool_call>"


def number_in(text: str) -> float | None:
    """Return the number that a text is; None if it is not a plain decimal number."""
    return float(text) if _NUMBER.fullmatch(text) else None
