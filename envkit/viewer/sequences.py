"""The tree of an episode as JSON data: which turns the model sampled from which history.

A sequence is a stretch of turns whose prompts extend each other. Each is an object:

| key | |
| --- | --- |
| `parent` | index of the sequence that it continues; null for the first |
| `branch_turn` | how many turns of the path up to its parent come before it |
| `reason` | why it starts, as text; empty for the first |
| `prompt` | what the model saw then, null if it shares its parent's history |
| `reward` | of the episode that ends here; null if that is the reward of the whole |
| `turns` | its own |
| `final` | what the environment said after its last reply |

A prompt has `images` and `tokens`, a count: its ids are the first of the context of its first turn.
A sequence without a child ends a branch. Sequences with equal `parent` and `branch_turn` are
siblings. A sequence follows its parent in the list.
"""

from typing import Any, Final

from envkit.images import Image
from envkit.trajectory.plain import Keep
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.conversation import Conversation

_REWRITTEN: Final = "the chat template renders earlier replies differently"


def sequences(trajectory: Trajectory, said: Conversation, keep: Keep) -> list[dict[str, Any]]:
    """Return the sequences of an episode; a linear one without a rewrite has one.

    Args:
        trajectory: What to show.
        said: Its turns.
        keep: Called with each image of a prompt.
    """
    groups = trajectory.sequences()
    starts = [0, *(group[0].turn for group in groups[1:])]
    ends = [*starts[1:], len(said.turns)]
    found: list[dict[str, Any]] = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        is_last = number == len(starts) - 1
        found.append(
            {
                "parent": number - 1 if number else None,
                "branch_turn": start,
                "reason": _REWRITTEN if number else "",
                "prompt": _prompt(groups[number], keep) if number else None,
                "reward": None,
                "turns": said.turns[start:end],
                "final": said.final if is_last else [],
            }
        )
    return found


def _prompt(segments: tuple[Segment, ...], keep: Keep) -> dict[str, Any]:
    """Return what a sequence was rendered from: its prompt alone, not what came later."""
    rendered = [one for one in segments if one.kind is SegmentKind.PROMPT]
    images: list[Image] = [image for one in rendered for image in one.images]
    for image in images:
        keep(image)
    return {
        "images": [image.sha256 for image in images],
        "tokens": sum(len(one.train_ids) for one in rendered),
    }
