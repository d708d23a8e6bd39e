"""Shorten a conversation to the turns that can change what follows it.

Templates that read earlier turns keep a few facts about them: which kinds of messages there were
and in which order, a switch that a text contained, how many calls were made. A digest therefore
keeps the first and the last turn of every kind, in order. Two turns are of one kind if their messages have the same roles, forms and calls, and contain the same
of the template's own words. A number that grows with the dropped turns is read off two renders of
different length. Calibration proves the digest against full renders of long conversations; ids of
calls that occur twice, and templates that reject the shortened conversation, get a full render.
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

    def count(self, messages: Iterable[Mapping[str, Any]]) -> int:
        """Return how many there are in some messages."""
        if self is Counted.CALLS:
            return sum(len(entry.get("tool_calls") or ()) for entry in messages)
        role = {"users": "user", "tools": "tool", "replies": "assistant"}[self]
        return sum(entry["role"] == role for entry in messages)


class Words:
    """The words of a template that a text may contain."""

    def __init__(self, words: Iterable[str]) -> None:
        """Keep the words; white space around them does not matter."""
        self._by_character: dict[str, list[str]] = {}
        for word in sorted({word.strip() for word in words} - {""}):
            rarest = _RARE.search(word)
            self._by_character.setdefault(rarest[0] if rarest else word[0], []).append(word)

    def kind(self, text: str) -> Hashable:
        """Return which words a text contains and where, and whether it is blank."""
        found: list[Hashable] = []
        for character, words in self._by_character.items():
            if character in text:
                for word in words:
                    if word in text:
                        bare = text.strip()
                        found.append((word, bare.startswith(word), bare.endswith(word)))
        if found:
            return tuple(found)
        return not text or text.isspace()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Digest:
    """How to shorten the conversations of one template."""

    words: Words
    counted: Counted | None = None
    """None: the template numbers nothing."""

    def shorten(self, messages: Sequence[M], *, fewest: bool = False) -> Sequence[M]:
        """Return the messages that can change what follows the last one, a reply.

        Args:
            messages: A conversation, or the part of it that the template reads.
            fewest: Keep only the last turn of every kind, to see which numbers grow with the first.
        """
        starts = [i for i, entry in enumerate(messages) if entry["role"] == "assistant"]
        if len(starts) <= _FEWEST or not _are_unique(messages):
            return messages
        kind_of = self._kind
        firsts: dict[Hashable, int] = {}
        lasts: dict[Hashable, int] = {}
        for number, (start, end) in enumerate(pairwise(starts)):
            kind = tuple([kind_of(entry) for entry in messages[start:end]])
            firsts.setdefault(kind, number)
            lasts[kind] = number
        kept = set(lasts.values()) if fewest else {*firsts.values(), *lasts.values()}
        turns = [messages[starts[n] : starts[n + 1]] for n in sorted(kept)]
        return [*messages[: starts[0]], *chain.from_iterable(turns), *messages[starts[-1] :]]

    def count(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return how many of what the template numbers are in some messages."""
        return 0 if self.counted is None else self.counted.count(messages)

    def _kind(self, entry: Mapping[str, Any]) -> Hashable:
        content = entry.get("content")
        if type(content) is str:
            said = self.words.kind(content)
        elif isinstance(content, list):
            said = tuple([self._part(part) for part in cast("list[Any]", content)])
        else:
            said = None
        kind = (entry["role"], entry.get("name"), said)
        if entry.keys() <= _PLAIN:
            return kind
        return (*kind, *(self._value(*item) for item in entry.items() if item[0] not in _PLAIN))

    def _value(self, key: str, value: Any) -> Hashable:  # noqa: ANN401  # JSON data
        if key == "tool_calls":
            return tuple([self._call(call) for call in value or ()])
        return key, self.words.kind(value) if isinstance(value, str) else repr(value)

    def _part(self, part: Mapping[str, Any]) -> Hashable:
        text: Any = part.get("text")
        return part.get("type"), self.words.kind(text) if isinstance(text, str) else None

    def _call(self, call: Mapping[str, Any]) -> Hashable:
        function: Mapping[str, Any] = call.get("function", call)
        given: Any = function.get("arguments")
        if isinstance(given, str):
            return function.get("name"), self.words.kind(given)
        return function.get("name"), type(given), self.words.kind(repr(given))


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
    seen: set[Any] = set()
    for entry in messages:
        for call in entry.get("tool_calls") or ():
            name = call.get("id")
            if name is not None and name in seen:
                return False
            seen.add(name)
    return True
