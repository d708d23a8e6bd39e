"""The token ledger of a running episode: append-only, checked at every append."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envkit.errors import LedgerFault
from envkit.images import Image
from envkit.messages import Message
from envkit.tokens.encoded import Encoded, ImageFeatures
from envkit.trajectory.segment import LOGPROB_SLACK, Segment, SegmentKind, column_of
from envkit.trajectory.sequence import TEMPLATE, Branch, sequences_of


class Ledger:
    """Records the tokens that the model saw and sampled.

    `wire_ids`, `images`, `features` and `train_length` describe the current sequence, which is the
    whole trajectory unless its history was rewritten.
    """

    images: list[Image]
    features: list[ImageFeatures]
    train_length: int
    _wire_ids: "array[int]"
    _joined: int  # segments that the current sequence's `_wire_ids` covers, and all before

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.response_tokens = 0
        """Tokens of replies and observations so far, images expanded, without prompts."""
        self.sampled_tokens = 0
        """Tokens of replies over all sequences; those before a fork count as in its parent."""
        self.branches: list[Branch] = []
        self._asked: tuple[list[Segment], tuple[int, ...]] = ([], ())
        """The segments of the last `reply_ids`, and its answer."""
        self._start_sequence()

    @property
    def wire_ids(self) -> "array[int]":
        """The sequence so far, one placeholder per image. Do not modify it."""
        # An array, because thousands of waiting requests each hold a whole context.
        new = self.segments[self._joined :]
        if new:
            self._wire_ids = _extended(self._wire_ids, new)
            self._joined = len(self.segments)
        return self._wire_ids

    @property
    def wire_length(self) -> int:
        """Length of `wire_ids`, without joining them."""
        return self.train_length - sum(one.token_count - 1 for one in self.features)

    def start(
        self,
        encoded: Encoded,
        *,
        turn: int,
        reason: str = TEMPLATE,
        message_count: int | None = None,
        history: tuple[int | Message, ...] = (),
    ) -> None:
        """Start a sequence with a prompt; see `Branch` for the other arguments."""
        segment = _context(SegmentKind.PROMPT, encoded, turn)
        if self.segments:
            self.branches.append(
                Branch(
                    segment=len(self.segments),
                    parent=len(self.branches),
                    reason=reason,
                    message_count=message_count,
                    history=history,
                )
            )
        self._start_sequence()
        self._append(segment)

    def add_observation(self, encoded: Encoded, *, turn: int) -> None:
        """Append the observation before reply number `turn`."""
        self._append(_context(SegmentKind.OBSERVATION, encoded, turn))
        self.response_tokens += len(encoded.train_ids)

    def add_reply(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        turn: int,
        finish_reason: str,
        weight_version: str | None,
        extras: Mapping[str, Any],
    ) -> None:
        """Append exactly the tokens that the engine sampled.

        Raises:
            LedgerFault: Ids and log-probabilities have different lengths, or a log-probability is
                not finite or above 0.
        """
        if len(token_ids) != len(logprobs):
            raise LedgerFault(
                "an engine must return one log-probability per token, got "
                f"{len(token_ids)} ids and {len(logprobs)} log-probabilities in turn {turn}"
            )
        ids = tuple(token_ids)
        segment = Segment(
            kind=SegmentKind.MODEL,
            turn=turn,
            wire_ids=ids,
            train_ids=None,
            logprobs=logprobs,
            weight_version=weight_version,
            finish_reason=finish_reason,
            extras=extras,
        )
        bad = unsound_logprob(segment)
        if bad is not None:
            raise LedgerFault(
                f"log-probabilities must be finite and at most 0, got {bad!r} in turn {turn}"
            )
        self._append(segment)
        self.response_tokens += len(ids)
        self.sampled_tokens += len(ids)

    def reply_ids(self, turn: int) -> tuple[int, ...]:
        """Return the sampled ids of a turn, joined if an abort split the reply."""
        segments = self._reply(turn)
        # A turn asks several times. By identity: equality would read every column.
        if list(map(id, segments)) != list(map(id, self._asked[0])):
            self._asked = segments, column_of(segments[::-1], "wire_ids")
        return self._asked[1]

    def before_reply(self, turn: int, count: int) -> "array[int]":
        """Return the last wire ids before a turn's reply, at most `count`."""
        end = len(self.segments) - len(self._reply(turn))
        # The request has joined these; joining the reply, too, would copy the whole sequence again.
        ids = self._wire_ids if self._joined >= end else self.wire_ids
        stop = len(ids) - sum(
            len(one.array("wire_ids")) for one in self.segments[end : self._joined]
        )
        return ids[max(0, stop - count) : stop]

    def whole_reply(self, turn: int) -> Segment | None:
        """Return the last segment of a turn's reply; None if there is none or it was aborted."""
        last = next(iter(self._reply(turn)), None)
        return None if last is None or last.finish_reason == "abort" else last

    def drop_reply(self, turn: int) -> None:
        """Remove a rejected reply, which must be the last entry."""
        for _ in self._reply(turn):
            self.sampled_tokens -= self._drop_last()

    def drop_observation(self) -> None:
        """Remove an observation that got no reply, which must be the last entry."""
        if self.segments[-1].kind is not SegmentKind.OBSERVATION:
            raise LedgerFault(
                f"the last segment must be an observation, got a {self.segments[-1].kind}"
            )
        self._drop_last()

    def replay(self, segments: Sequence[Segment], branches: Sequence[Branch] = ()) -> None:
        """Append the recorded segments of an earlier part of the episode.

        Args:
            segments: The segments in order.
            branches: Where their sequences start.
        """
        for sequence in sequences_of(segments, branches):
            if sequence.branch is not None:
                self.branches.append(sequence.branch)
            self._start_sequence(sequence.segments[: sequence.at])
            for segment in sequence.segments[sequence.at :]:
                self._append(segment)
                if segment.kind is not SegmentKind.PROMPT:
                    self.response_tokens += segment.token_count
        replies = [one for one in self.segments if one.kind is SegmentKind.MODEL]
        self.sampled_tokens = sum(one.token_count for one in replies)

    def finished(self, rewards: Mapping[int, float]) -> tuple[Segment, ...]:
        """Return the segments up to the last reply, with rewards.

        Branches that start after the last reply are removed from `branches`.

        Args:
            rewards: Reward by turn, stored on the last model segment of the turn.
        """
        segments = list(self.segments)
        # No model saw what follows the last reply. A prompt alone is kept: it shows what was asked.
        while len(segments) > 1 and segments[-1].kind is not SegmentKind.MODEL:
            segments.pop()
        self.branches = [one for one in self.branches if one.segment < len(segments)]
        seen: set[int] = set()
        for index, segment in reversed(list(enumerate(segments))):
            # A reply that an abort split has several segments, and its reward counts once.
            if segment.kind is SegmentKind.MODEL and segment.turn not in seen:
                seen.add(segment.turn)
                segments[index] = segment.with_reward(rewards.get(segment.turn))
        return tuple(segments)

    def _start_sequence(self, trunk: Sequence[Segment] = ()) -> None:
        """Start a sequence with the segments that it shares with another one."""
        self.images, self.features, self.train_length = [], [], 0
        self._wire_ids, self._joined = _extended(array("i"), trunk), len(self.segments)
        for segment in trunk:
            self._extend(segment)

    def _reply(self, turn: int) -> list[Segment]:
        """Return the segments of a turn's reply at the end of the ledger, the last one first."""
        found: list[Segment] = []
        for segment in reversed(self.segments):
            if segment.kind is not SegmentKind.MODEL or segment.turn != turn:
                break
            found.append(segment)
        return found

    def _drop_last(self) -> int:
        """Remove the last entry, which must not be a prompt; return its length."""
        dropped = self.segments.pop()
        if self._joined > len(self.segments):
            self._joined = len(self.segments)
            self._wire_ids = self._wire_ids[: len(self._wire_ids) - len(dropped.wire_ids)]
        images = len(self.images) - len(dropped.images)
        del self.images[images:], self.features[images:]
        self.train_length -= dropped.token_count
        self.response_tokens -= dropped.token_count
        return dropped.token_count

    def _append(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._extend(segment)

    def _extend(self, segment: Segment) -> None:
        """Add a segment to the current sequence."""
        self.images.extend(segment.images)
        self.features.extend(segment.features)
        self.train_length += segment.token_count


def unsound_logprob(segment: Segment) -> float | None:
    """Return the first log-probability that is not finite or above 0; None if there is none."""
    values = segment.stored("logprobs")
    if values is None:  # zeros
        return None
    unsound = values[~np.isfinite(values) | (values > LOGPROB_SLACK)]
    return next(iter(unsound.tolist()), None)


def _extended(ids: "array[int]", segments: Sequence[Segment]) -> "array[int]":
    """Return the ids and the wire ids of the segments after them, in 64 bits if one needs them."""
    columns = [segment.array("wire_ids") for segment in segments]
    if any(column.dtype.char != ids.typecode for column in columns):
        whole = np.concatenate([ids, *columns])
        return array(whole.dtype.char, whole.tobytes())
    joined = ids[:]  # numpy would let another thread run meanwhile, for milliseconds
    for column in columns:
        joined.frombytes(column.tobytes())
    return joined


def _context(kind: SegmentKind, encoded: Encoded, turn: int) -> Segment:
    count = len(encoded.train_ids)
    expanded = sum(one.token_count - 1 for one in encoded.features)
    if len(encoded.images) != len(encoded.features) or len(encoded.wire_ids) + expanded != count:
        raise LedgerFault(
            f"{len(encoded.images)} images, {len(encoded.features)} feature sets, "
            f"{len(encoded.wire_ids)} wire ids and {count} train ids do not add up in turn {turn}"
        )
    return Segment(
        kind=kind,
        turn=turn,
        wire_ids=encoded.wire_ids,
        train_ids=None if encoded.train_ids is encoded.wire_ids else encoded.train_ids,
        images=encoded.images,
        features=encoded.features,
    )
