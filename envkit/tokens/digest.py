"""Shorten a conversation to the turns that can change what follows it.

Templates that read earlier turns keep a few facts about them: which kinds of messages there were
and in which order, a switch that a text contained, how many calls were made. A digest therefore
keeps the last turn of every kind, in order, and the first where that matters. Two turns are of one
kind if their messages have the same roles, forms and calls, and contain the same of the template's
own words. A number that grows with the dropped turns follows from two renders of different length.

Calibration proves the digest against full renders of long conversations. A conversation in which
two calls have the same id is never shortened. If the template rejects the shortened conversation,
the codec renders all of it.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise
from typing import Any, Final, TypeVar, cast

from envkit.errors import TemplateError

M = TypeVar("M", bound=Mapping[str, Any])
_FEWEST: Final = 2
"""Number of turns that are never shortened."""
_RARE: Final = re.compile(r"[^\w\s.,:'-]|_")
_DIGITS: Final = re.compile(r"([0-9]+)")
_PLAIN: Final = frozenset({"role", "name", "content", "tool_call_id"})


class Counted(StrEnum):
    """What a template numbers through a conversation."""

    CALLS = "calls"
    """Structured calls (Cohere)."""
    USERS = "users"
    """User messages (LongCat)."""
    TOOLS = "tools"
    """Tool messages."""
    REPLIES = "replies"
    """Assistant messages."""

    def number_in(self, messages: Iterable[Mapping[str, Any]]) -> int:
        """Return how many there are in some messages."""
        if self is Counted.CALLS:
            return sum(len(entry.get("tool_calls") or ()) for entry in messages)
        role = {"users": "user", "tools": "tool", "replies": "assistant"}[self]
        return sum(entry["role"] == role for entry in messages)


class Words:
    """The words of a template that a text may contain."""

    def __init__(self, words: Iterable[str]) -> None:
        """Keep the words; white space around them does not matter."""
        self._words = sorted({word.strip() for word in words} - {""})
        self.any = bool(self._words)
        self._rare: dict[str, list[str]] = {}
        for word in self._words:  # a character that few texts contain spares most searches
            found = _RARE.search(word)
            self._rare.setdefault(found[0] if found else word[0], []).append(word)

    def within(self, messages: Iterable[Mapping[str, Any]]) -> "Words":
        """Return the words that occur in any message."""
        if not self.any:
            return self
        everything = "\0".join(chain.from_iterable(map(_texts, messages)))
        likely = [words for character, words in self._rare.items() if character in everything]
        return Words(word for word in chain.from_iterable(likely) if word in everything)

    def kind(self, text: str) -> Hashable:
        """Return which words a text contains and where, and whether it is blank."""
        if not self.any:
            return not text or text.isspace()
        bare = text.strip()
        found = [
            (word, bare.startswith(word), bare.endswith(word))
            for word in self._words
            if word in text
        ]
        return not bare, *found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Digest:
    """How to shorten the conversations of one template."""

    words: Words
    firsts: bool = False
    """Whether the first turn of every kind is kept as well as the last."""
    counted: Counted | None = None
    """None: the template numbers nothing."""

    def shorten(self, messages: Sequence[M], *, fewer: bool = False) -> Sequence[M]:
        """Return the messages that can change what follows the last one, a reply.

        Args:
            messages: A conversation, or the part of it that the template reads.
            fewer: Keep one turn fewer of every kind, to see which numbers grow with it.
        """
        starts = [i for i, entry in enumerate(messages) if entry.get("role") == "assistant"]
        try:
            if len(starts) <= _FEWEST or not _are_unique(messages):
                return messages
            words = self.words.within(messages)
            kinds = _kinds(messages[: starts[-1]], words)
        except (AttributeError, LookupError, TypeError):  # malformed, for others to say so
            return messages
        firsts: dict[Hashable, int] = {}
        lasts: dict[Hashable, int] = {}
        for number, (start, end) in enumerate(pairwise(starts)):
            kind = tuple(kinds[start:end])
            firsts.setdefault(kind, number)
            lasts[kind] = number
        both = self.firsts or words.any
        kept = set(firsts.values()) if both and not fewer else set[int]()
        if both or not fewer:
            kept |= set(lasts.values())
        turns = [messages[starts[n] : starts[n + 1]] for n in sorted(kept)]
        return [*messages[: starts[0]], *chain.from_iterable(turns), *messages[starts[-1] :]]

    def count(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return how many of what the template numbers are in some messages."""
        return 0 if self.counted is None else self.counted.number_in(messages)


def _kinds(messages: Sequence[Mapping[str, Any]], words: Words) -> list[Hashable]:
    """Return the kinds of messages; the usual ones take no call."""
    if words.any:
        return [_kind(entry, words) for entry in messages]
    return [
        (entry["role"], entry.get("name"), len(entry), not text or text.isspace())
        if type(text := entry.get("content")) is str and entry.keys() <= _PLAIN
        else _kind(entry, words)
        for entry in messages
    ]


def _kind(entry: Mapping[str, Any], words: Words) -> Hashable:
    """Return what a template may tell from a message."""
    content = entry.get("content")
    if type(content) is str:
        said = words.kind(content)
    elif isinstance(content, list):
        said = tuple([_part(part, words) for part in cast("list[Any]", content)])
    else:
        said = None
    more = [_value(key, value, words) for key, value in entry.items() if key not in _PLAIN]
    return entry["role"], entry.get("name"), len(entry), said, *more


def _part(part: Mapping[str, Any], words: Words) -> Hashable:
    text: Any = part.get("text")
    return part.get("type"), words.kind(text) if isinstance(text, str) else None


def _value(key: str, value: Any, words: Words) -> Hashable:  # noqa: ANN401  # JSON data
    if key == "tool_calls":
        called: list[Mapping[str, Any]] = [call.get("function", call) for call in value or ()]
        return tuple([(one.get("name"), type(one.get("arguments")).__name__) for one in called])
    return key, words.kind(value) if isinstance(value, str) else repr(value)


def _texts(entry: Mapping[str, Any]) -> list[str]:
    content = entry.get("content")
    found = [content] if type(content) is str else []
    if isinstance(content, list):
        texts = (part.get("text") for part in cast("list[Any]", content))
        found = [text for text in texts if isinstance(text, str)]
    if entry.keys() <= _PLAIN:
        return found
    return [*found, *[text for text in entry.values() if isinstance(text, str)]]


def extrapolate(longer: str, shorter: str, *, step: int, more: int) -> str:
    """Return a text whose numbers continue those of two texts.

    Args:
        longer: The text after some counted messages or calls.
        shorter: The same text after `step` fewer.
        step: Number of counted messages or calls between the two.
        more: Number of them between `longer` and the result.

    Raises:
        TemplateError: The texts differ in more than numbers, or a number does not grow with the
            count.
    """
    ours, theirs = _DIGITS.split(longer), _DIGITS.split(shorter)
    if not step or len(ours) != len(theirs) or ours[::2] != theirs[::2]:
        raise TemplateError("the shortened conversations differ in more than numbers")
    for place in range(1, len(ours), 2):
        if ours[place] != theirs[place]:
            if int(ours[place]) - int(theirs[place]) != step:
                raise TemplateError("a number does not grow with the shortened conversation")
            ours[place] = str(int(ours[place]) + more)
    return "".join(ours)


def _are_unique(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether no id of a call occurs in two replies, since templates look ids up."""
    called = [calls for entry in messages if (calls := entry.get("tool_calls"))]
    ids = [name for calls in called for call in calls if (name := call.get("id")) is not None]
    return len(set(ids)) == len(ids)
