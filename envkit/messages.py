"""Chat messages: who says what, with text and images in reading order.

A message is the dictionary that chat templates read, so it is passed to a template as it is. Images
travel as `envkit.images.Image` objects inside parts; they become pixels or data URIs at the edge.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NotRequired, TypedDict, cast

from envkit.errors import ContractError
from envkit.images import Image


class TextPart(TypedDict):
    """A run of text."""

    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    """One picture."""

    type: Literal["image"]
    image: Image


Part = TextPart | ImagePart
Role = Literal["system", "user", "assistant", "tool"]


class Message(TypedDict):
    """One chat message. Images belong in `user` messages: templates drop them elsewhere."""

    role: Role
    content: str | list[Part]
    tool_calls: NotRequired[list[dict[str, Any]]]  # in the chat-completions wire form
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def message(role: Role, text: str, images: Sequence[Image] = ()) -> Message:
    """Build a message; images come before the text, as the vision models were trained.

    The content is a plain string where there is no image.
    """
    if not images:
        return {"role": role, "content": text}
    parts: list[Part] = [{"type": "image", "image": image} for image in images]
    if text:
        parts.append({"type": "text", "text": text})
    return {"role": role, "content": parts}


def images_of(messages: Iterable[Message]) -> tuple[Image, ...]:
    """Return every image of the messages, in reading order."""
    return tuple(
        part["image"]
        for entry in messages
        if not isinstance(entry["content"], str)
        for part in entry["content"]
        if part["type"] == "image"
    )


def text_of(entry: Message) -> str:
    """Return the message's text without its images."""
    content = entry["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def check_message(entry: Message, *, source: str) -> Message:
    """Return the message unchanged, or say what is wrong with it.

    Args:
        entry: The message to check.
        source: Who made it, for the error, such as "geo3k-v0.format_observation".

    Raises:
        ContractError: A missing key, an unknown role or part, or an image outside a user message.
    """
    foreign: Any = entry  # an environment's author may have returned anything
    if not isinstance(foreign, dict) or "role" not in foreign or "content" not in foreign:
        raise ContractError(
            f"{source} must return a message with 'role' and 'content', got {repr(entry)[:200]}"
        )
    if entry["role"] not in ("system", "user", "assistant", "tool"):
        raise ContractError(
            f"{source} must use role system, user, assistant or tool, got {entry['role']!r}"
        )
    content: Any = entry["content"]
    if isinstance(content, str):
        return entry
    if not isinstance(content, list):
        raise ContractError(
            f"{source}: content must be a string or a list of parts, got {type(content).__name__}"
        )
    for part in cast(list[object], content):
        _check_part(part, entry["role"], source)
    return entry


def _check_part(part: object, role: str, source: str) -> None:
    shown: object = part
    fields = cast(dict[str, object], part) if isinstance(part, dict) else {}
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return
    if fields.get("type") == "image" and isinstance(fields.get("image"), Image):
        if role != "user":
            raise ContractError(
                f"{source}: images must travel in a 'user' message, got role {role!r}; "
                "chat templates drop them elsewhere"
            )
        return
    raise ContractError(
        f"{source}: a part must be {{'type': 'text', 'text': str}} or "
        f"{{'type': 'image', 'image': envkit.Image}}, got {repr(shown)[:200]}"
    )
