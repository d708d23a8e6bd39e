"""The tree of an episode as JSON data: which turns the model sampled from which history.

A sequence is a run of turns whose prompts extend each other. Each is an object:

| key | |
| --- | --- |
| `parent` | index of the sequence that it continues; null for the first |
| `branch_turn` | number of turns before it on the path through its parent |
| `reason` | why it starts, as text; empty for the first |
| `prompt` | what the model saw at its start; null if it shares its parent's history |
| `reward` | reward of the episode that ends here; null if it equals the whole episode's reward |
| `turns` | its own turns |
| `final` | the environment's messages after its last reply |

A prompt is an object too:

| key | |
| --- | --- |
| `tokens` | number of tokens; their ids are the first ones in the context of its first turn |
| `before` | number of tokens that the model saw before, including the last reply |
| `images` | its images |
| `dropped` | images that the model saw before and no longer sees |
| `history` | the conversation from which it was rendered; empty if not recorded |

An image is its SHA-256 and the turn, from 1, before which it was first seen. An entry of a history
is a message with `role`, `text` and `images` that the policy wrote, or a number of unchanged
messages, `kept` or `dropped`, with `turns`, their first and last turn.

A sequence without children ends a branch. Sequences with equal `parent` and `branch_turn` are
siblings. Parents come before their children in the list.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from envkit.errors import LedgerFault
from envkit.messages import images_of, text_of
from envkit.trajectory.plain import Keep
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import TEMPLATE, Branch, TokenSequence
from envkit.trajectory.trajectory import AGENT, Trajectory
from envkit.viewer.conversation import Conversation

_REASONS: Final = {TEMPLATE: "the chat template renders earlier replies differently"}


def sequences(trajectory: Trajectory, said: Conversation, keep: Keep) -> list[dict[str, Any]]:
    """Return the sequences of an episode; a linear episode without rewrites has one.

    Args:
        trajectory: The trajectory to show.
        said: Its conversation.
        keep: Called with each image of a prompt.
    """
    found: list[dict[str, Any]] = []
    is_agents = AGENT in trajectory.metadata
    try:
        tree = trajectory.sequences() or (TokenSequence(segments=(), owned=0),)
    except LedgerFault:  # an invalid tree, which is among the episode's problems
        tree = (TokenSequence(segments=trajectory.segments, owned=0),)
    starts = [0, *(one.segments[one.at].turn for one in tree[1:])]
    ends = [*starts[1:], len(said.turns)]
    for number, (one, start, end) in enumerate(zip(tree, starts, ends, strict=True)):
        reason = one.reason or ""
        earlier = () if one.parent is None else tree[one.parent].segments
        is_rewritten = number > 0 and not one.at
        if is_agents:  # its conversations need not have seen each other's images
            _show_own_images(one, said.turns)
        found.append(
            {
                "parent": one.parent,
                "branch_turn": start,
                "reason": _REASONS.get(reason, reason.replace("_", " ")),
                "prompt": _prompt(trajectory, one, earlier, keep) if is_rewritten else None,
                "reward": None,
                "turns": said.turns[start:end],
                "final": said.final if number == len(tree) - 1 else [],
            }
        )
    return found


def _show_own_images(sequence: TokenSequence, turns: Sequence[dict[str, Any]]) -> None:
    """Show beside a turn the last image that its own sequence has."""
    shown: str | None = None
    for segment in sequence.segments:
        if segment.images:
            shown = segment.images[-1].sha256
        if segment.kind is SegmentKind.MODEL and segment.turn < len(turns):
            turns[segment.turn]["shown"] = shown


def _prompt(
    trajectory: Trajectory, sequence: TokenSequence, earlier: Sequence[Segment], keep: Keep
) -> dict[str, Any]:
    """Return the prompt at the start of a sequence, without later segments."""
    prompt = sequence.segments[0]
    seen: dict[str, int] = {}
    for segment in trajectory.segments:
        for image in segment.images:
            seen.setdefault(image.sha256, segment.turn + 1)
            keep(image)
    images = [image.sha256 for image in prompt.images]
    gone = [image.sha256 for segment in earlier for image in segment.images]
    for sha256 in Counter(images).elements():
        if sha256 in gone:
            gone.remove(sha256)
    return {
        "tokens": prompt.token_count,
        "before": sum(segment.token_count for segment in earlier),
        "images": [[sha256, seen[sha256]] for sha256 in images],
        "dropped": [[sha256, seen[sha256]] for sha256 in gone],
        "history": [] if sequence.branch is None else _history(trajectory, sequence.branch),
    }


def _history(trajectory: Trajectory, branch: Branch) -> list[dict[str, Any]]:
    """Return the conversation that a branch started from, including the dropped messages."""
    if not branch.history:
        return []
    messages, found = trajectory.messages, list[dict[str, Any]]()
    replies = [entry["role"] == "assistant" for entry in messages]

    def add(kind: str, start: int, end: int) -> None:
        if start < end and (kind == "kept" or branch.parent is not None):
            turns = [1 + sum(replies[:start]), 1 + sum(replies[: end - 1])]
            found.append({kind: end - start, "turns": turns})

    start = place = 0  # the first of the messages that are kept together, and the next one
    for entry in branch.history:
        if isinstance(entry, int):
            if entry != place:
                add("kept", start, place)
                add("dropped", place, entry)
                start = entry
            place = entry + 1
            continue
        add("kept", start, place)
        images = [image.sha256 for image in images_of([entry])]
        found.append({"role": entry["role"], "text": text_of(entry), "images": images})
        start = place = place + 1
    add("kept", start, place)
    add("dropped", place, branch.message_count or place)
    return found
