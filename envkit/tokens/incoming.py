"""Check the messages that a codec gets, before anything reads them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from envkit.errors import TemplateError
from envkit.images import Image
from envkit.messages import Message

AfterReply = Literal["refuse", "answer", "continue"]
"""What a prompt that ends with a reply means."""
ROLES: Final = ("system", "developer", "user", "assistant", "tool")


def check_prompt(messages: Sequence[Message], *, after_reply: AfterReply = "refuse") -> None:
    """Reject messages that no reply can follow.

    Args:
        messages: A conversation.
        after_reply: What a reply at its end means.

    Raises:
        TemplateError: There are none, one has the wrong form, or the last one is a reply that
            cannot be answered or continued.
    """
    if not messages:
        raise TemplateError("a prompt needs at least one message, got none")
    check_messages(messages)
    last: Any = messages[-1]
    if last["role"] != "assistant" or after_reply == "answer":
        return
    if after_reply == "refuse":
        raise TemplateError(
            "a prompt must end with a message for the model to answer, got an assistant message"
        )
    content: Any = last.get("content")
    ends_with_text = bool(content) and (
        isinstance(content, str) or _mapping(content[-1]).get("type") == "text"
    )
    if not ends_with_text or last.get("tool_calls"):
        raise TemplateError(f"only a reply that ends with text can continue, got {_shown(last)}")


def check_messages(messages: Sequence[Message]) -> None:
    """Reject what is not a message.

    Raises:
        TemplateError: A message, part or call has the wrong form.
    """
    for entry in messages:
        if not (fields := _mapping(entry)):  # a caller may pass anything
            raise TemplateError(
                f"a message must be a mapping with 'role' and 'content', got {_shown(entry)}; "
                "build it with envkit.messages.message"
            )
        if fields.get("role") not in ROLES:
            raise TemplateError(
                "a role must be system, user, assistant or tool, got "
                f"{fields.get('role')!r} in {_shown(entry)}"
            )
        content: Any = entry.get("content")
        if type(content) is not str:
            _check_content(content, entry["role"])
        if entry.get("tool_calls"):
            _check_calls(entry.get("tool_calls"))
        if entry.get("trusted"):
            _check_ranges(entry.get("trusted"))


def _check_content(content: Any, role: str) -> None:  # noqa: ANN401  # foreign data
    if isinstance(content, str) or (content is None and role == "assistant"):
        return  # a reply that only makes calls has no content
    for part in _items(content, f"the content of a {role!r} message must be a string or a list"):
        fields = _mapping(part)
        kind = fields.get("type")
        if kind == "text" and isinstance(fields.get("text"), str):
            continue
        if kind == "image" and isinstance(fields.get("image"), Image):
            continue
        if kind not in ("text", "image"):
            raise TemplateError(
                f"a part must be of type 'text' or 'image', got {kind!r} in {_shown(part)}"
            )
        raise TemplateError(
            "a part must be {'type': 'text', 'text': str} or {'type': 'image', 'image': "
            f"envkit.Image}}, got {_shown(part)}"
        )


def _check_calls(calls: object) -> None:
    for call in _items(calls, "tool_calls must be a list"):
        if not _mapping(call) or not _mapping(_mapping(call).get("function", call)):
            raise TemplateError(
                "a tool call must be {'type': 'function', 'function': {'name': ..., 'arguments': "
                f"...}}}}, got {_shown(call)}"
            )


def _check_ranges(ranges: object) -> None:
    for one in _items(ranges, "trusted must be a list of [start, end]"):
        match one:
            case [int(), int()]:
                continue
            case _:
                raise TemplateError(
                    f"trusted must be a list of [start, end] within the text, got {_shown(one)}"
                )


def _items(value: object, rule: str) -> Sequence[object]:
    if not isinstance(value, (list, tuple)):
        raise TemplateError(f"{rule}, got {_shown(value)}")
    return cast("Sequence[object]", value)


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _shown(value: object) -> str:
    return repr(value)[:200]
