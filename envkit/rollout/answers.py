"""Tool messages in the form that the model's template can render.

Templates such as those of gpt-oss and Mistral-Nemo write the name or the id of the call into the
tool message. An environment only returns the text, so the loop adds both, from the environment's
own `info["tool_call"]` or from the reply. The message becomes a user message if the template has no
tool role, needs a call where the model made none, or drops images of tool messages. A bad reply
therefore never faults the episode.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from envkit.messages import Message
from envkit.reply import Reply
from envkit.tokens.codec import ChatCodec
from envkit.toolcalls import parse_tool_calls

_NAME: Final = re.compile(r"[\w.:/-]{1,64}")
"""Names and ids come from the model, so any other text in them must not reach a prompt."""
_OWN_FORMATS: Final = (
    re.compile(r"to=functions\.([\w.-]{1,64})"),  # gpt-oss
    re.compile(r"<\|tool_call>call:([\w.-]{1,64})\{"),  # Gemma 4
)
_NEEDED: Final = {"call name": "name", "call id": "tool_call_id"}


class ToolAnswers:
    """Completes the tool messages of one episode."""

    def __init__(self, codec: ChatCodec | None) -> None:
        """Take the codec's audit of tool messages; None leaves every message unchanged."""
        self._codec = codec
        if codec is None:
            return
        role = codec.audit().roles["tool"]
        self._takes_any_id = role.takes_any_call_id
        self._needed = [key for part, key in _NEEDED.items() if part in role.depends_on]

    def readable(
        self,
        entry: Message,
        *,
        reply: Reply | None = None,
        info: Mapping[str, Any] | None = None,
        turn: int = 0,
    ) -> Message:
        """Return a message in a role that the template supports, with the call of a tool message.

        Args:
            entry: The environment's message.
            reply: The reply that it answers; None if it answers none.
            info: The step's info.
            turn: Numbers the call if the model did not.
        """
        if self._codec is None:
            return entry
        entry = self._codec.readable(entry)
        if entry["role"] != "tool":
            return entry
        name, call_id = _call((info or {}).get("tool_call"), reply or Reply(text=""))
        answer: Message = {**entry}
        if name:
            answer.setdefault("name", name)
            own = call_id if self._takes_any_id else ""
            answer.setdefault("tool_call_id", own or f"call{turn:05d}")
        if any(key not in answer for key in self._needed):
            return {**entry, "role": "user"}
        return answer


def _call(recorded: object, reply: Reply) -> tuple[str, str]:
    """Return the name and the model's id of the answered call, each "" if unknown."""
    if isinstance(recorded, Mapping):
        name, call_id = _clean(recorded.get("name")), _clean(recorded.get("id"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        if name:
            return name, call_id
    calls = parse_tool_calls(reply).calls
    if calls:
        return _clean(calls[0].name), _clean(calls[0].id)
    found = (pattern.search(reply.final) for pattern in _OWN_FORMATS)
    return next((match[1] for match in found if match), ""), ""


def _clean(word: object) -> str:
    """Return a valid name or id, else ""; an id that only numbers a reply's calls is invalid."""
    if not isinstance(word, str) or not _NAME.fullmatch(word):
        return ""
    return "" if re.fullmatch(r"call\d{5}", word) else word
