"""Training rows of a ledger, one per trajectory or per turn, and the exact merge of rows.

Every adapter gets its rows from here and only renames fields, so ids, mask, log-probabilities and
rewards are the same in every trainer. A row is a prompt and a response: everything before its first
model token is the prompt, and the response ends with a model token. Axes: R response ids.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

from envkit.errors import LedgerFault
from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures, Tensors, join_features
from envkit.trajectory.segment import Segment, SegmentKind, column_of
from envkit.trajectory.sequence import TokenSequence

T = TypeVar("T")


class RewardPlacement(StrEnum):
    """Placement of rewards in a per-token reward column."""

    LAST = "last"
    """The trajectory's reward on the last token of its last row, 0.0 elsewhere."""
    TURNS = "turns"
    """Each turn's reward on the last token of its reply."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training row of a trajectory."""

    prompt_ids: tuple[int, ...]
    """Train ids before the first model token of the row, image placeholders expanded."""
    response_ids: tuple[int, ...]  # (R,), never empty
    loss_mask: tuple[int, ...]  # (R,) of 0 and 1
    logprobs: tuple[float, ...]  # (R,) sampled distribution; 0.0 for tokens not sampled
    images: tuple[Image, ...] = ()
    """Images of prompt and response, in the order of their placeholders."""
    features: tuple[ImageFeatures, ...] = field(default=(), repr=False, compare=False)
    """Processor outputs of `images`; empty in a trajectory that was loaded from a file."""
    reward: float | None
    """The trajectory's reward on the last row, 0.0 on the others; None after a fault or an
    abort."""
    turn_rewards: tuple[tuple[int, float], ...] = ()
    """For each rewarded turn, the index of its last token in `response_ids`, and its reward."""
    turns: tuple[int, ...]
    """Indices of the turns whose replies the row trains on."""
    weight_versions: tuple[str | None, ...] = ()
    """One for each run of sampled tokens; None if the engine did not report it."""
    segments: tuple[Segment, ...] = field(default=(), repr=False, compare=False)
    """Segments of the response, in order; empty in a placeholder and after `merge_rows`."""
    is_last: bool
    is_placeholder: bool = False
    """Whether the row represents a trajectory without sampled tokens; it has mask 0 everywhere."""

    @cached_property
    def tensors(self) -> Tensors:
        """The processor's outputs for `images`, concatenated once per key."""
        return join_features(self.features)

    def token_rewards(self, placement: RewardPlacement = RewardPlacement.LAST) -> list[float]:
        """Return the reward of each response token, (R,); all 0.0 if there is no reward."""
        rewards = [0.0] * len(self.response_ids)
        if self.reward is None:
            return rewards
        if placement is RewardPlacement.LAST:
            rewards[-1] = self.reward
            return rewards
        for index, reward in self.turn_rewards:
            rewards[index] = reward
        return rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTally:
    """How many rows of a trajectory a merge joined, and how many it could not."""

    merged: int = 0
    """Rows whose prompt starts with all tokens before them, and that were joined."""
    forked: int = 0
    """Rows whose prompt differs, and that stayed separate."""
    drifted_tokens: int = 0
    """Earlier tokens from the first difference on, over all forked rows."""

    def __add__(self, other: "MergeTally") -> "MergeTally":
        return MergeTally(
            merged=self.merged + other.merged,
            forked=self.forked + other.forked,
            drifted_tokens=self.drifted_tokens + other.drifted_tokens,
        )


def rows_of(
    sequences: Sequence[TokenSequence], reward: float | None, *, is_trained: bool, merge: bool
) -> tuple[Row, ...]:
    """Return the rows of a ledger's turns; none if the model sampled nothing.

    Rows without a trained token are left out if any row has one.

    A row's response has only tokens that its sequence owns, and the observations between them.
    Tokens shared with another sequence are part of the prompt, so no token is trained twice.

    Args:
        sequences: Sequences of one trajectory, in order.
        reward: The trajectory's reward, for the last row.
        is_trained: False masks every token and leaves out the turns' rewards.
        merge: False gives one row per turn, with everything before it as its prompt. True gives
            one row for each run of turns whose prompts extend each other exactly. Replies with mask
            0 at the start of a run become prompt, and those at its end are left out.
    """
    rows: list[Row] = []
    untrained: list[Row] = []  # the last one of the last sequence with replies
    end: tuple[int, int] | None = None  # of the last row: its sequence, and segments of that one
    for number, sequence in enumerate(sequences):
        spans = list(_turn_spans(sequence))
        trained = [one for one in spans if not is_trained or _has_trained(sequence, *one)]
        columns = _Columns(sequence.segments, is_trained=is_trained)
        if not trained:  # such a row would only change a trainer's denominator
            untrained = [columns.row(*one) for one in spans[-1:]] or untrained
            continue
        if not merge:
            rows += [columns.row(*one) for one in trained]
            continue
        first, last = trained[0][0], trained[-1][1]
        row = columns.row(first, last)
        # A branch after the last trained reply of the row before continues it, such as one that
        # asks again after a rejected reply. An earlier branch would repeat trained tokens.
        if end is not None and sequence.parent == end[0] and sequence.at >= end[1]:
            rows[-1] = _continued(rows[-1], row, sequence.segments[end[1] : last + 1])
        else:
            rows.append(row)
        end = (number, last + 1)
    return with_reward(rows or untrained, reward)


def with_reward(rows: Sequence[Row], reward: float | None) -> tuple[Row, ...]:
    """Return the rows of one trajectory with its reward on the last one, which is marked."""
    others = None if reward is None else 0.0
    return (
        *(replace(row, reward=others, is_last=False) for row in rows[:-1]),
        *(replace(row, reward=reward, is_last=True) for row in rows[-1:]),
    )


def placeholder_row(segments: Sequence[Segment], reward: float | None, *, filler_id: int) -> Row:
    """Return the row of a ledger in which the model sampled nothing.

    Args:
        segments: The prompt, if any.
        reward: The trajectory's reward.
        filler_id: The only id of the response, with mask 0, and of a missing prompt.
    """
    return Row(
        prompt_ids=column_of(segments, "train_ids") or (filler_id,),
        response_ids=(filler_id,),
        loss_mask=(0,),
        logprobs=(0.0,),
        images=_flat(segment.images for segment in segments),
        features=_flat(segment.features for segment in segments),
        reward=reward,
        turns=(),
        is_last=True,
        is_placeholder=True,
    )


def merge_rows(rows: Sequence[Row]) -> tuple[tuple[Row, ...], MergeTally]:
    """Join each row whose prompt starts with exactly the tokens and images before it.

    A row with one differing token or image stays separate. Nothing is realigned, so no sampled
    token is lost.

    Args:
        rows: Rows of one trajectory, in order.

    Raises:
        LedgerFault: A row other than the last one is marked as the last.
    """
    if any(row.is_last for row in rows[:-1]):
        raise LedgerFault(
            "merge_rows takes the rows of one trajectory: only the last one may have is_last"
        )
    merged: list[Row] = []
    clean = forked = drifted = 0
    for row in rows:
        if not merged:
            merged.append(row)
            continue
        held = merged[-1].prompt_ids + merged[-1].response_ids
        if row.prompt_ids[: len(held)] == held and _extends(merged[-1], row):
            merged[-1] = _joined(merged[-1], row, len(held))
            clean += 1
        else:
            drifted += len(held) - shared_prefix(held, row.prompt_ids)
            forked += 1
            merged.append(row)
    return tuple(merged), MergeTally(merged=clean, forked=forked, drifted_tokens=drifted)


class _Columns:
    """The columns of one sequence, flattened once; each row is a slice."""

    def __init__(self, sequence: Sequence[Segment], *, is_trained: bool) -> None:
        self._sequence = sequence
        self._starts = [0, *accumulate(segment.token_count for segment in sequence)]
        self._ids = column_of(sequence, "train_ids")
        self._mask = column_of(sequence, "loss_mask") if is_trained else (0,) * len(self._ids)
        self._is_trained = is_trained
        self._logprobs = column_of(sequence, "logprobs")
        self._image_ends = list(accumulate(len(segment.images) for segment in sequence))
        self._images = _flat(segment.images for segment in sequence)
        self._features = _flat(segment.features for segment in sequence)

    def row(self, first: int, last: int) -> Row:
        """Return the row whose response runs from segment `first` to segment `last`."""
        start, end = self._starts[first], self._starts[last + 1]
        images = self._image_ends[last]
        turns: dict[int, None] = {}
        rewards: list[tuple[int, float]] = []
        versions: list[str | None] = []
        for number in range(first, last + 1):
            segment = self._sequence[number]
            if segment.kind is not SegmentKind.MODEL:
                continue
            turns[segment.turn] = None
            versions.append(segment.weight_version)
            if segment.reward is not None and self._is_trained:
                rewards.append((self._starts[number + 1] - 1 - start, segment.reward))
        return Row(
            prompt_ids=self._ids[:start],
            response_ids=self._ids[start:end],
            loss_mask=self._mask[start:end],
            logprobs=self._logprobs[start:end],
            images=self._images[:images],
            features=self._features[:images],
            reward=None,
            turn_rewards=tuple(rewards),
            turns=tuple(turns),
            weight_versions=tuple(versions),
            segments=tuple(self._sequence[first : last + 1]),
            is_last=True,
        )


def _turn_spans(sequence: TokenSequence) -> Iterator[tuple[int, int]]:
    """Yield the first and last segment of each reply that the sequence owns."""
    segments = sequence.segments
    first: int | None = None
    for number in range(sequence.owned, len(segments)):
        segment = segments[number]
        if segment.kind is not SegmentKind.MODEL:
            continue
        first = number if first is None else first
        # A reply that was aborted and resumed has more than one segment.
        following = segments[number + 1] if number + 1 < len(segments) else None
        if (
            following is None
            or following.kind is not SegmentKind.MODEL
            or following.turn != segment.turn
        ):
            yield first, number
            first = None


def _has_trained(sequence: TokenSequence, first: int, last: int) -> bool:
    return any(any(segment.loss_mask) for segment in sequence.segments[first : last + 1])


def _continued(held: Row, row: Row, segments: Sequence[Segment]) -> Row:
    """Return the row of a branch joined to the row whose last trained reply it shares.

    Args:
        held: The earlier row.
        row: The branch's.
        segments: Those of the branch from the end of the earlier row to that of its own.
    """
    joined = _joined(held, row, len(held.prompt_ids) + len(held.response_ids))
    return replace(joined, segments=(*held.segments, *segments))


def _extends(held: Row, row: Row) -> bool:
    """Return whether the row's images start with those held."""
    return row.images[: len(held.images)] == held.images


def _joined(held: Row, row: Row, length: int) -> Row:
    between = row.prompt_ids[length:]
    offset = len(held.response_ids) + len(between)
    return Row(
        prompt_ids=held.prompt_ids,
        response_ids=held.response_ids + between + row.response_ids,
        loss_mask=held.loss_mask + (0,) * len(between) + row.loss_mask,
        logprobs=held.logprobs + (0.0,) * len(between) + row.logprobs,
        images=row.images,
        features=row.features,
        reward=row.reward,
        turn_rewards=held.turn_rewards
        + tuple((offset + n, value) for n, value in row.turn_rewards),
        turns=held.turns + row.turns,
        weight_versions=held.weight_versions + row.weight_versions,
        is_last=row.is_last,
    )


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the number of equal ids before the first difference."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(left), len(right)))


def _flat(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    joined: list[T] = []
    for part in parts:
        joined += part  # copies a block; four times as fast as building a tuple from an iterator
    return tuple(joined)
