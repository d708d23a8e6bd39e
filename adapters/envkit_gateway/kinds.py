"""Kinds of sequences: the agent's own conversation, a sub-agent's, or a side request."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from envkit.messages import Message, text_of
from envkit_gateway.messages import AgentCall, said_key
from envkit_gateway.turn import OpenSequence

MAIN: Final = "main"
"""Kind of a sequence: the conversation that the agent began with."""
SUB_AGENT: Final = "sub-agent"
"""Kind of a sequence with another system prompt, or with a sub-agent's header."""
SIDE: Final = "side"
"""Kind of a sequence without tools in a session with tools that shares neither a reply nor a task
with the others: titles, judges of something else."""
_LEAST_QUOTE: Final = 20
"""Characters of a reply that are a quote where they occur in a text; fewer may occur by chance."""


class Train(StrEnum):
    """Which sequences of an episode are trained."""

    RULE = "rule"
    """Main conversation and sub-agents. A request without tools belongs to a conversation if one
    quotes a reply of the other, as last answers, summaries and plans do, or if it begins with the
    conversation's system prompt and first user message."""
    MAIN = "main"
    """Only the conversation that the agent began with; not what it handed off."""
    ALL = "all"
    """Side requests too."""

    def leaves_out(self, kind: str) -> bool:
        """Return whether replies of a kind of sequence have mask 0."""
        return kind == SIDE if self is Train.RULE else self is Train.MAIN and kind != MAIN


def kinds_of(sequences: Sequence[OpenSequence]) -> dict[int, str]:
    """Return the kind of each sequence, by its identity.

    Args:
        sequences: The sequences of a session, in the order in which they began.
    """
    has_tools = any(sequence.has_tools for sequence in sequences)
    # In a session without tools every sequence may be the conversation.
    rest = [sequence for sequence in sequences if has_tools and not sequence.has_tools]
    known = [sequence for sequence in sequences if sequence.has_tools or not has_tools]
    kinds: dict[int, str] = {}
    for sequence in known:
        main = known[0]
        is_main = (sequence.system, sequence.label) == (main.system, main.label)
        kinds[id(sequence)] = MAIN if is_main else SUB_AGENT
    quotes = {id(sequence): _Quotes(sequence) for sequence in sequences} if rest else {}
    for kind in (MAIN, SUB_AGENT):
        members = [sequence for sequence in known if kinds[id(sequence)] == kind]
        while members and rest:  # what quotes a reply of a new member is a member too
            one = quotes[id(members.pop())]
            for sequence in [*rest]:
                if one.belongs_with(quotes[id(sequence)]):
                    kinds[id(sequence)] = kind
                    rest.remove(sequence)
                    members.append(sequence)
    return kinds | {id(sequence): SIDE for sequence in rest}


class _Quotes:
    """The replies of a sequence, and what others said in it."""

    def __init__(self, sequence: OpenSequence) -> None:
        self._trunk, self._sequence = sequence.trunk, sequence
        self._replies, self._quoted = set[str](), set[str]()
        self._texts: list[str] = []
        heard: list[str] = []
        own = {turn.said - 1 for turn in sequence.turns if turn.reply is not None}
        messages = sequence.record.messages
        first = 0 if sequence.trunk is None else sequence.trunk.said
        asked = next((text_of(one) for one in messages if one["role"] == "user"), "")
        self._opening = (sequence.system, asked) if sequence.system else None
        for place in sorted({*range(first, len(messages))} - own):
            entry, before = messages[place], messages[max(place - 1, 0) : place]
            heard.append(text_of(entry))
            if entry["role"] == "assistant":
                self._quoted.update(_keys(heard[-1], _calls_of(entry), before))
        for turn in sequence.turns:
            if turn.reply is not None:
                said = turn.reply.message
                before = messages[max(turn.said - 2, 0) : turn.said - 1]
                self._replies.update(_keys(said.text, said.calls, before))
                self._texts += [said.text.strip()] if _is_long(said.text) else []
                self._texts += [call.id for call in said.calls]
        self._heard = "\0".join(heard)

    def belongs_with(self, other: "_Quotes") -> bool:
        """Return whether one of the two continues or quotes the other, or both have one task."""
        has_same_task = self._opening is not None and self._opening == other._opening
        return has_same_task or self._continues(other) or other._continues(self)

    def _continues(self, other: "_Quotes") -> bool:
        return (
            (self._trunk is not None and self._trunk.sequence is other._sequence)
            or not self._quoted.isdisjoint(other._replies)
            or any(text in self._heard for text in other._texts)
        )


def _is_long(text: str) -> bool:
    return len(text.strip()) >= _LEAST_QUOTE


def _keys(text: str, calls: Sequence[AgentCall], before: Sequence[Message]) -> Iterator[str]:
    """Yield what identifies a reply; short words do only together with what they answer."""
    said = said_key(text, calls)
    if calls:  # some clients drop the words beside a call
        yield said_key("", calls)
    elif _is_long(text):
        yield said
    if before and before[-1]["role"] != "assistant":
        yield f"{text_of(before[-1])}\0{said}"


def _calls_of(entry: Message) -> list[AgentCall]:
    return [
        AgentCall(id="", name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in entry.get("tool_calls", ())
    ]
