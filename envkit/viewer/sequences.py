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

A prompt has `images` and `tokens`, a count: its ids are the first ones in the context of its first
turn. A sequence without children ends a branch. Sequences with equal `parent` and `branch_turn` are
siblings. Parents come before their children in the list.
"""

from typing import Any, Final

from envkit.trajectory.plain import Keep
from envkit.trajectory.sequence import TEMPLATE, TokenSequence
from envkit.trajectory.trajectory import Trajectory
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
    tree = trajectory.sequences() or (TokenSequence(segments=(), owned=0),)
    starts = [0, *(one.segments[one.at].turn for one in tree[1:])]
    ends = [*starts[1:], len(said.turns)]
    for number, (one, start, end) in enumerate(zip(tree, starts, ends, strict=True)):
        reason = one.reason or ""
        found.append(
            {
                "parent": one.parent,
                "branch_turn": start,
                "reason": _REASONS.get(reason, reason.replace("_", " ")),
                "prompt": _prompt(one, keep) if number and not one.at else None,
                "reward": None,
                "turns": said.turns[start:end],
                "final": said.final if number == len(tree) - 1 else [],
            }
        )
    return found


def _prompt(sequence: TokenSequence, keep: Keep) -> dict[str, Any]:
    """Return the prompt at the start of a sequence, without later segments."""
    prompt = sequence.segments[0]
    for image in prompt.images:
        keep(image)
    return {"images": [image.sha256 for image in prompt.images], "tokens": prompt.token_count}
