"""The tree of sequences in a trajectory, and the owner of each sampled token.

A sequence is a run of tokens that fits in one context of the model. The first one starts with the
prompt. Every other one is a branch: it shares the first `at` segments of an earlier sequence and
adds its own, or it starts with a new prompt because the history was rewritten (`at` is 0). The
sequence that recorded a sampled token owns it; in every other sequence it is context with mask 0. A
forked episode starts with segments of another trajectory, which owns them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from envkit.errors import LedgerFault
from envkit.messages import Message
from envkit.trajectory.segment import Segment, SegmentKind, column_of

TEMPLATE: Final = "template"
"""Reason of a branch that starts because the chat template rewrote the history ("rerender")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Where a sequence other than the first one starts, and why."""

    segment: int
    """Index of the branch's first new segment in the trajectory's segments."""
    parent: int | None
    """Index of the sequence that it continues or replaces. None for an unrelated conversation,
    such as a sub-agent's."""
    at: int = 0
    """Number of segments that it shares with its parent, from the parent's start."""
    reason: str = TEMPLATE
    """Why it started: the name of a history policy, "template", or any string from the caller."""
    message_count: int | None = None
    """Number of the trajectory's messages before it started; None if not recorded."""
    history: tuple[int | Message, ...] = ()
    """The conversation that the model saw at its start. Each entry is the index of an unchanged
    message of the trajectory, or a message that a policy wrote. Empty if not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The trajectory that a forked episode continues."""

    episode_id: str
    """Id of the parent, which owns the shared tokens."""
    segments: int
    """Number of leading segments that belong to the parent; all have mask 0."""
    turns: int
    """Number of leading turns that belong to the parent; their rewards count in both episodes."""
    root: str
    """Id of the oldest ancestor, which is not a fork. Its server has the shared tokens cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """One sequence of a trajectory, complete from its first token."""

    segments: tuple[Segment, ...]
    """Shared segments first; model segments that another sequence owns have mask 0."""
    owned: int
    """Index in `segments` of the first segment that this sequence owns."""
    parent: int | None = None
    at: int = 0
    reason: str | None = None
    """None for the first sequence."""
    branch: Branch | None = None
    """The recorded start of the sequence; None for the first one."""

    @property
    def own(self) -> tuple[Segment, ...]:
        """The segments that no other sequence owns."""
        return self.segments[self.owned :]

    def train_ids(self) -> tuple[int, ...]:
        """Return every token of the context, placeholders expanded."""
        return column_of(self.segments, "train_ids")


def sequences_of(
    segments: Sequence[Segment], branches: Sequence[Branch] = (), *, shared: int = 0
) -> tuple[TokenSequence, ...]:
    """Split a ledger into its sequences; usually one.

    Args:
        segments: Segments of one trajectory, in order.
        branches: Where sequences start. A later prompt without a branch also starts one, as in
            records of earlier versions.
        shared: Number of leading segments that belong to another trajectory.

    Raises:
        LedgerFault: A branch starts outside the ledger, its parent does not come before it, or it
            shares a segment that its parent does not have.
    """
    if not segments:
        return ()
    starts = _starts(segments, branches)
    ends = [*(one.segment for one in starts), len(segments)]
    first = tuple(segments[: ends[0]])
    found = [TokenSequence(segments=first, owned=min(shared, len(first)))]
    for number, branch in enumerate(starts):
        _check(branch, found, segments, number + 1)
        trunk = () if branch.parent is None else found[branch.parent].segments[: branch.at]
        own = tuple(segments[branch.segment : ends[number + 1]])
        foreign = max(0, min(shared - branch.segment, len(own)))
        found.append(
            TokenSequence(
                segments=(*(one.as_context() for one in trunk), *own),
                owned=len(trunk) + foreign,
                parent=branch.parent,
                at=branch.at,
                reason=branch.reason,
                branch=branch,
            )
        )
    return tuple(found)


def branch_history(branch: Branch, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the conversation that a branch started from; empty if it was not recorded.

    Args:
        branch: A branch of a trajectory.
        messages: The trajectory's messages.

    Raises:
        LedgerFault: The branch refers to a message that the trajectory does not have.
    """
    for entry in branch.history:
        if isinstance(entry, int) and not 0 <= entry < len(messages):
            raise LedgerFault(
                f"the branch at segment {branch.segment} refers to message {entry}, but the "
                f"trajectory has only {len(messages)}"
            )
    return tuple(messages[one] if isinstance(one, int) else one for one in branch.history)


def _starts(segments: Sequence[Segment], branches: Sequence[Branch]) -> list[Branch]:
    """Return all branches in order, including those that older records omit."""
    named = {branch.segment: branch for branch in branches}
    if len(named) != len(branches):
        raise LedgerFault("two branches start at the same segment")
    prompts = {n for n, one in enumerate(segments) if n > 0 and one.kind is SegmentKind.PROMPT}
    whole = sorted(prompts | named.keys())
    return [
        named.get(place, Branch(segment=place, parent=number)) for number, place in enumerate(whole)
    ]


def _check(
    branch: Branch, found: Sequence[TokenSequence], segments: Sequence[Segment], number: int
) -> None:
    for rule, holds in _rules(branch, found, segments):
        if not holds:
            raise LedgerFault(f"sequence {number}: {rule}, got {_shown(branch)}")


def _rules(
    branch: Branch, found: Sequence[TokenSequence], segments: Sequence[Segment]
) -> Iterator[tuple[str, bool]]:
    count = len(segments)
    yield f"a branch must start at a segment from 1 to {count - 1}", 0 < branch.segment < count
    parent = branch.parent
    known = parent is None or 0 <= parent < len(found)
    yield "the parent of a branch must be an earlier sequence", known
    length = 0 if parent is None else len(found[parent].segments)
    yield f"it can share at most {length} segments with its parent", 0 <= branch.at <= length
    is_prompt = segments[branch.segment].kind is SegmentKind.PROMPT
    yield (
        "a branch must start with a prompt if it shares nothing, and only then",
        is_prompt == (not branch.at),
    )


def _shown(branch: Branch) -> str:
    return f"segment={branch.segment}, parent={branch.parent}, at={branch.at}"
