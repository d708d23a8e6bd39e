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
from envkit.trajectory.certificate import Certificate, certify
from envkit.trajectory.checks import check_trajectory
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import Trajectory
from envkit_notebook.outcome import Outcome, pretty
from envkit_notebook.pictures import ImageStore

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
    spell = Speller(codec=codec)
    for step in steps:
        step["tokens"] = [
            _segment_view(segment, spell)
            for segment in trajectory.segments
            if segment.turn == step["turn"]
        ]
    fault = trajectory.fault
    return {
        "title": utf8(f"{trajectory.env_id}, seed {trajectory.seed}"),
        "facts": _facts(trajectory),
        "task": pretty(trajectory.task),
        "fault": None
        if fault is None
        else utf8(f"fault in {fault.where} ({fault.kind}): {fault.message}"),
        "proof": _proof(trajectory, recorded),
        "problems": [utf8(str(problem)) for problem in check_trajectory(trajectory)],
        "steps": steps,
    }


def _facts(trajectory: Trajectory) -> list[str]:
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    return [
        f"reward {reward}",
        trajectory.stop_reason.value,
        f"{len(trajectory.turns)} turns",
        f"{trajectory.token_count:,} tokens, {trajectory.trained_token_count:,} trained",
    ]


def _proof(trajectory: Trajectory, recorded: Certificate | None) -> View:
    """Return the certificate and whether it is valid; foreign parts may lack a hash."""
    try:
        found = certify(trajectory)
    except StorageError as error:
        return {"seal": "", "status": utf8(str(error)), "holds": False}
    difference = None if recorded is None else recorded.difference(found)
    if difference is not None:
        return {"seal": found.seal, "status": f"broken: {difference}", "holds": False}
    status = "computed now" if recorded is None else "verified"
    return {"seal": found.seal, "status": status, "holds": True}


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
