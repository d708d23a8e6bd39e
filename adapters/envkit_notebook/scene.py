"""View of an episode for the front end, as JSON data: steps, tokens, certificate.

A step is an observation, a reply and its outcome. Everything is data: the front end shows text as
plain text, whatever it contains.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from envkit.errors import StorageError
from envkit.messages import Message, text_of
from envkit.text import utf8
from envkit.tokens import ChatCodec
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory
from envkit.viewer.episodes import episode
from envkit.viewer.turn_text import (
    episode_facts,
    history_lines,
    rewritten,
    role_words,
    speaker,
    summary,
    turn_facts,
    warnings,
)
from envkit_notebook.images import ImageStore
from envkit_notebook.outcome import Outcome, pretty

_SHORTEST_RUN: Final = 4
"""Runs of equal ids shown as one, outside replies: the placeholders of an image."""

View = dict[str, Any]
"""JSON data for the front end."""


def steps_of(
    messages: Sequence[Message], outcomes: Sequence[Outcome], store: ImageStore
) -> list[View]:
    """Return the steps of a conversation; the last may still wait for a reply.

    Args:
        messages: The conversation.
        outcomes: One per answered reply, in order.
        store: Keeps the images.
    """
    steps: list[View] = []
    reads: list[View] = []
    for entry in messages:
        if entry["role"] != "assistant":
            reads.append(store.message_view(entry))
            continue
        number = len(steps)
        outcome = outcomes[number].to_view() if number < len(outcomes) else None
        steps.append(
            {
                "turn": number,
                "reads": reads,
                "reply": utf8(text_of(entry)),
                "outcome": outcome,
            }
        )
        reads = []
    if reads:
        steps.append({"turn": len(steps), "reads": reads, "reply": None, "outcome": None})
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Speller:
    """Decodes token ids to text."""

    codec: ChatCodec | None = None
    """None decodes nothing."""

    def __call__(self, token: int) -> str | None:
        """Return a token's text; None if unknown."""
        if self.codec is None:
            return None
        # Twice, because decoding drops the stop token at the end of a reply.
        ids = (token, token) if token in self.codec.stop_ids else (token,)
        return utf8(self.codec.decode(ids))


def episode_view(
    trajectory: Trajectory,
    store: ImageStore,
    *,
    recorded: Certificate | None = None,
    codec: ChatCodec | None = None,
) -> View:
    """Return the full view of a recorded episode.

    Args:
        trajectory: The episode.
        store: Keeps the images.
        recorded: The file's certificate; None for a trajectory in memory.
        codec: Decodes the tokens; None shows ids.
    """
    outcomes = [Outcome.of_record(record) for record in trajectory.turns]
    steps = steps_of(trajectory.messages, outcomes, store)
    data = _data(trajectory, recorded)
    _add_facts(steps, data)
    spell = Speller(codec=codec)
    for step in steps:
        step["tokens"] = [
            _segment_view(segment, spell)
            for segment in trajectory.segments
            if segment.turn == step["turn"]
        ]
    certificate = data["certificate"]
    return {
        "title": utf8(data["title"]),
        "facts": [utf8(fact) for fact in episode_facts(data, trajectory.step_count)],
        "origin": _origin(trajectory),
        "first": 0 if trajectory.origin is None else trajectory.origin.turns,
        "task": pretty(trajectory.task),
        "proof": {
            "seal": certificate["seal"],
            "status": utf8(certificate["status"]),
            "holds": certificate["kind"] != "bad",
        },
        "problems": [utf8(text) for text in warnings(data)],
        "steps": steps,
    }


def _data(trajectory: Trajectory, recorded: Certificate | None) -> View:
    """Return what the browser's page shows; a foreign part that JSON cannot hold is named."""
    try:
        return episode(trajectory, recorded, number=1).data
    except StorageError as error:
        return {
            "title": trajectory.env_id,
            "env": trajectory.env_id,
            "seed": None if trajectory.seed is None else str(trajectory.seed),
            "reward": trajectory.reward,
            "stop": trajectory.stop_reason.value,
            "fault": None,
            "problems": [],
            "certificate": {"seal": "", "status": str(error), "kind": "bad"},
            "has_ledger": True,
            "sequences": [],
        }


def _add_facts(steps: Sequence[View], data: View) -> None:
    """Add to each step what the browser says of its turn."""
    shown = iter(steps)
    for number, sequence in enumerate(data["sequences"]):
        for place, turn in enumerate(sequence["turns"]):
            step = next(shown, None)
            if step is None:
                return
            step["summary"] = utf8(summary(turn))
            step["speaker"] = utf8(speaker(turn))
            step["facts"] = [[name, utf8(text)] for name, text in turn_facts(turn)]
            if number and not place:
                step["start"] = _start(sequence)
            if turn["purpose"] is not None and step["reads"]:
                step["reads"][-1]["who"] = role_words("question")


def _start(sequence: View) -> View:
    prompt = sequence["prompt"]
    saw = [] if prompt is None else [[who, utf8(text)] for who, text in history_lines(prompt)]
    return {"lines": [utf8(line) for line in rewritten(sequence)], "saw": saw}


def _origin(trajectory: Trajectory) -> str | None:
    origin = trajectory.origin
    if origin is None:
        return None
    return utf8(
        f"Forked from episode {origin.episode_id} at turn {origin.turns + 1}. "
        "The turns before it belong to that episode; only it trains them."
    )


def _segment_view(segment: Segment, spell: Speller) -> View:
    """Return a segment's tokens as columns; equal ids in a row count as one outside replies."""
    is_reply = segment.kind is SegmentKind.MODEL
    runs = list(_runs(segment.train_ids, is_reply=is_reply))
    return {
        "kind": segment.kind.value,
        "ids": [token for token, _ in runs],
        "counts": [count for _, count in runs],
        "texts": [spell(token) for token, _ in runs],
        "mask": list(segment.loss_mask) if is_reply else [],
        "logprobs": [round(value, 4) for value in segment.logprobs] if is_reply else [],
        "length": segment.token_count,
        "wire_length": len(segment.wire_ids),
    }


def _runs(ids: Sequence[int], *, is_reply: bool) -> Iterator[tuple[int, int]]:
    for token, group in groupby(ids):
        count = sum(1 for _ in group)
        if count >= _SHORTEST_RUN and not is_reply:
            yield token, count
        else:
            yield from ((token, 1) for _ in range(count))
