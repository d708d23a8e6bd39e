"""Chat messages with text and images in reading order.

A message is the dictionary that chat templates read and is passed to a template unchanged. Images
are `envkit.images.Image` objects inside parts; they become pixels or data URIs at the boundary.
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
    """One image."""

    type: Literal["image"]
    image: Image


Part = TextPart | ImagePart
Role = Literal["system", "user", "assistant", "tool"]


class Trusted(str):
    """Text whose control tokens are intended and reach the model as tokens.

        system_prompt = Trusted("Reason inside <think> and </think>.")
        Turn(Trusted("Reason inside <think> and </think>. Question: ") + question)

    In all other text of an environment, a tool or a dataset, control tokens are neutralised. Text
    added with `+` is trusted only if it is also `Trusted`; every other operation, including
    f-strings and `join`, returns a plain, untrusted string. A placeholder for an image is never
    trusted: send images as images.
    """

    ranges: tuple[tuple[int, int], ...]
    """Start and end of each trusted part."""

    def __new__(cls, text: str) -> "Trusted":
        """Trust a whole text; for a `Trusted` one, keep its trusted parts."""
        return cls._of(text, text.ranges if isinstance(text, Trusted) else ((0, len(text)),))

    @classmethod
    def _of(cls, text: str, ranges: tuple[tuple[int, int], ...]) -> "Trusted":
        made = str.__new__(cls, text)
        made.ranges = ranges
        return made

    def __add__(self, other: str) -> "Trusted":
        return _joined(self, other)

    def __radd__(self, other: str) -> "Trusted":
        return _joined(other, self)


def _joined(left: str, right: str) -> Trusted:
    ranges = (*_ranges(left), *((s + len(left), e + len(left)) for s, e in _ranges(right)))
    return Trusted._of(str.__add__(left, right), ranges)  # pyright: ignore[reportPrivateUsage]


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    return text.ranges if isinstance(text, Trusted) else ()


class Message(TypedDict):
    """One chat message.

    Images belong in `user` messages, and in `tool` messages if the chat template renders them there
    (`codec.audit().image_roles`).
    """

    role: Role
    content: str | list[Part]
    tool_calls: NotRequired[list[dict[str, Any]]]  # in the chat-completions wire form
    reasoning_content: NotRequired[str]  # of a reply that another program quotes
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    trusted: NotRequired[list[list[int]]]
    """Start and end of each trusted part, whose control tokens are intended."""


def message(role: Role, text: str, images: Sequence[Image] = ()) -> Message:
    """Build a message with images before the text, as vision models are trained.

    The content is a plain string if there are no images.
    """
    if isinstance(text, Trusted):
        ranges = [[start, end] for start, end in text.ranges]
        return {**message(role, str.__str__(text), images), "trusted": ranges}
    if not images:
        return {"role": role, "content": text}
    parts: list[Part] = [{"type": "image", "image": image} for image in images]
    if text:
        parts.append({"type": "text", "text": text})
    return {"role": role, "content": parts}


def images_of(messages: Iterable[Message]) -> tuple[Image, ...]:
    """Return every image of the messages, in reading order."""
    return tuple(
        [
            part["image"]
            for entry in messages
            if isinstance(content := entry.get("content"), (list, tuple))
            for part in content
            if part["type"] == "image"
        ]
    )


def text_of(entry: Message) -> str:
    """Return the message's text without its images, with trusted parts as `Trusted`."""
    content = entry["content"]
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content if part["type"] == "text")
    if "trusted" not in entry:
        return content
    ranges = tuple((start, end) for start, end in entry["trusted"])
    return Trusted._of(content, ranges) if ranges else content  # pyright: ignore[reportPrivateUsage]


def check_message(entry: Message, *, source: str) -> Message:
    """Check a message and return it unchanged.

    Args:
        entry: The message to check.
        source: Where it comes from, for errors, such as "geo3k-v0.format_observation".

    Raises:
        ContractError: A key is missing, a role or part is unknown, an image is in a message whose
            role is not user or tool, or a trusted range is outside the text.
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
        _check_trusted(entry, content, source)
        return entry
    if not isinstance(content, list):
        raise ContractError(
            f"{source}: content must be a string or a list of parts, got {type(content).__name__}"
        )
    for part in cast(list[object], content):
        _check_part(part, entry["role"], source)
    _check_trusted(entry, text_of({**entry, "trusted": []}), source)
    return entry


def _check_trusted(entry: Message, text: str, source: str) -> None:
    ranges: Any = entry.get("trusted", [])
    for one in cast("list[Any]", ranges) if isinstance(ranges, list) else [ranges]:
        match one:
            case [int(start), int(end)] if 0 <= start <= end <= len(text):
                continue
            case _:
                raise ContractError(
                    f"{source}: trusted must be a list of [start, end] within the text, "
                    f"got {repr(one)[:80]}"
                )


def _check_part(part: object, role: str, source: str) -> None:
    shown: object = part
    fields = cast(dict[str, object], part) if isinstance(part, dict) else {}
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return
    if fields.get("type") == "image" and isinstance(fields.get("image"), Image):
        if role not in ("user", "tool"):
            raise ContractError(
                f"{source}: images must be in a 'user' or 'tool' message, got role {role!r}; "
                "chat templates drop them elsewhere"
            )
        return
    raise ContractError(
        f"{source}: a part must be {{'type': 'text', 'text': str}} or "
        f"{{'type': 'image', 'image': envkit.Image}}, got {repr(shown)[:200]}"
    )
