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
"""Number of turns that are never shortened, except to see which numbers grow with them."""
_DIGITS: Final = re.compile(r"([0-9]+)")
_KNOWN: Final = frozenset({"role", "name", "content", "tool_call_id", "tool_calls"})
_KEPT_CHARACTERS: Final = 1 << 23
"""Characters of known texts that the words of one template keep at most, plus one text."""
_ENTRY: Final = 200
"""What an entry counts for on top of its text."""


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


class Found(tuple[Hashable, ...]):
    """The words that a text contains, each with whether the text starts and ends with it."""

    __slots__ = ()


class Words:
    """The words of a template that a text may contain."""

    def __init__(self, words: Iterable[str]) -> None:
        """Keep the words; white space around them does not matter."""
        self._words = sorted({word.strip() for word in words} - {""})
        self._known: dict[str, Hashable] = {}
        self._size = 0

    def kind(self, text: str) -> Hashable:
        """Return which words a text contains and where (`Found`), or whether it is blank."""
        if not self._words:
            return not text or text.isspace()
        # A conversation's texts are asked about at every turn.
        kind = self._known.get(text)
        if kind is None:
            # A server of agents sees new texts without end.
            if self._size > _KEPT_CHARACTERS:
                self._known, self._size = {}, 0
            kind = self._known[text] = self._search(text)
            self._size += len(text) + _ENTRY
        return kind

    def _search(self, text: str) -> Hashable:
        bare = text.strip()
        found = [
            (word, bare.startswith(word), bare.endswith(word))
            for word in self._words
            if word in text
        ]
        return Found(found) if found else not bare


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
            if len(starts) <= (1 if fewer else _FEWEST) or not _are_unique(
                [messages[i] for i in starts]
            ):
                return messages
            kinds = _kinds(messages, self.words)
            ends: dict[Hashable, list[int]] = {}  # numbers of the first and last turn of a kind
            for number, (start, end) in enumerate(pairwise(starts)):
                ends.setdefault(tuple(kinds[start:end]), [number, number])[1] = number
        except (AttributeError, LookupError, TypeError):  # malformed, for others to say so
            return messages
        around = *kinds[: starts[0]], *kinds[starts[-1] :]
        # A template may stop at the first or at the last text that contains its word.
        both = self.firsts or any(map(_has_words, (*ends, *around)))
        kept = {first for first, _ in ends.values()} if both and not fewer else set[int]()
        if both or not fewer:
            kept |= {last for _, last in ends.values()}
        turns = [messages[starts[n] : starts[n + 1]] for n in sorted(kept)]
        return [*messages[: starts[0]], *chain.from_iterable(turns), *messages[starts[-1] :]]

    def count(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Return how many of what the template numbers are in some messages."""
        return 0 if self.counted is None else self.counted.number_in(messages)


def _kinds(messages: Sequence[Mapping[str, Any]], words: Words) -> list[Hashable]:
    """Return what a template may tell from each message; runs over a whole conversation."""
    said, are_known = words.kind, _KNOWN.issuperset
    return [
        (
            entry["role"],
            entry.get("name"),
            len(entry),
            said(content)
            if type(content := entry.get("content")) is str
            else _said(content, words),
            (*map(_called, calls),) if (calls := entry.get("tool_calls")) else (),
            None if are_known(entry) else _others(entry, words),
        )
        for entry in messages
    ]


def _called(call: Mapping[str, Any]) -> Hashable:
    """Return the name of a call and the type of its arguments."""
    function: Mapping[str, Any] = call.get("function", call)
    arguments: object = function.get("arguments")
    return function.get("name"), type(arguments)


def _others(entry: Mapping[str, Any], words: Words) -> Hashable:
    """Return what a template may tell from the other keys of a message."""
    return tuple(
        [
            (key, words.kind(value) if isinstance(value, str) else repr(value))
            for key, value in entry.items()
            if key not in _KNOWN
        ]
    )


def _said(content: Any, words: Words) -> Hashable:  # noqa: ANN401  # JSON data
    """Return what a template may tell from the parts of a message; None if it has none."""
    if not isinstance(content, (list, tuple)):
        return None
    return tuple([_part(part, words) for part in cast("Sequence[Any]", content)])


def _part(part: Mapping[str, Any], words: Words) -> Hashable:
    text: Any = part.get("text")
    return part.get("type"), words.kind(text) if isinstance(text, str) else None


def _has_words(kind: Hashable) -> bool:
    """Return whether a turn or a message of a kind contains a word."""
    if type(kind) is Found:
        return True
    return isinstance(kind, tuple) and any(map(_has_words, cast("Iterable[Hashable]", kind)))


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
    ours, theirs = longer.split("\n"), shorter.split("\n")
    if not step or len(ours) != len(theirs):
        raise TemplateError("the shortened conversations differ in more than numbers")
    return "\n".join(
        [
            line if line == other else _continued(line, other, step=step, more=more)
            for line, other in zip(ours, theirs, strict=True)
        ]
    )


def _continued(longer: str, shorter: str, *, step: int, more: int) -> str:
    """Return a line whose numbers continue those of two lines."""
    ours, theirs = _DIGITS.split(longer), _DIGITS.split(shorter)
    if len(ours) != len(theirs) or ours[::2] != theirs[::2]:
        raise TemplateError("the shortened conversations differ in more than numbers")
    for place in range(1, len(ours), 2):
        if ours[place] != theirs[place]:
            if int(ours[place]) - int(theirs[place]) != step:
                raise TemplateError("a number does not grow with the shortened conversation")
            ours[place] = str(int(ours[place]) + more)
    return "".join(ours)


def _are_unique(replies: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether no id of a call occurs in two replies."""
    # Templates look up the call of a result by its id.
    called = [calls for entry in replies if (calls := entry.get("tool_calls"))]
    ids = [name for calls in called for call in calls if (name := call.get("id")) is not None]
    return len(set(ids)) == len(ids)
