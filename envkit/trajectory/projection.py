"""Projections: a trajectory as training rows, whole or by turn, and the exact merge of rows.

Every adapter takes its rows from here and only renames them, so ids, mask, log-probabilities and
rewards are the same in every trainer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from envkit.errors import ConfigurationError, LedgerFault
from envkit.trajectory.row import Row
from envkit.trajectory.segment import Segment, SegmentKind

if TYPE_CHECKING:  # Trajectory.steps stands on this module
    from envkit.trajectory.trajectory import Trajectory

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTally:
    """What a merge found where one row followed another of the same trajectory."""

    merged: int = 0
    """Rows whose prompt began with everything before them, and were joined to it."""
    forked: int = 0
    """Rows whose prompt differed, and stayed rows of their own."""
    drifted_tokens: int = 0
    """Tokens that the forks' prompts did not keep of what came before them."""


def whole_row(trajectory: "Trajectory", *, filler_id: int) -> Row:
    """Return the trajectory as one row.

    A trajectory in which the model sampled nothing becomes a placeholder: its prompt as far as
    there is one, and one filler token with mask 0. A faulted one has mask 0 everywhere.

    Args:
        trajectory: Of one sequence.
        filler_id: A token of the model's vocabulary that may stand where there is none, such as
            the end-of-sequence token.

    Raises:
        ConfigurationError: The template rewrote the history, so the trajectory is more than one
            sequence; use `step_rows(merge=True)`.
    """
    if len(trajectory.sequences()) > 1:
        raise ConfigurationError(
            "this trajectory is more than one sequence, because the template rewrote its history, "
            "and cannot be one training row; use step_rows(merge=True)"
        )
    return step_rows(trajectory, filler_id=filler_id, merge=True)[0]


def step_rows(trajectory: "Trajectory", *, filler_id: int, merge: bool = False) -> tuple[Row, ...]:
    """Return the trajectory as at least one row; the last one is marked and carries the reward.

    Args:
        trajectory: Any, faulted ones included.
        filler_id: As for `whole_row`.
        merge: False gives a row for each turn, with everything before it as its prompt. True gives
            one row for each run of turns whose prompts extend each other exactly.
    """
    rows = rows_of(trajectory, merge=merge)
    return rows or (_placeholder(trajectory, filler_id),)


def rows_of(trajectory: "Trajectory", *, merge: bool) -> tuple[Row, ...]:
    """Return the rows of the trajectory's turns; none where the model sampled nothing."""
    reward = None if trajectory.is_faulted else trajectory.reward
    rows: list[Row] = []
    for sequence in trajectory.sequences():
        columns = _Columns(sequence, is_trained=not trajectory.is_faulted)
        spans = list(_turn_spans(sequence))
        if merge and spans:
            spans = [(spans[0][0], spans[-1][1])]
        rows += [columns.row(first, last) for first, last in spans]
    if not rows:
        return ()
    others = None if reward is None else 0.0
    rows = [replace(row, reward=others, is_last=False) for row in rows[:-1]] + rows[-1:]
    rows[-1] = replace(rows[-1], reward=reward)
    return tuple(rows)


def merge_rows(rows: Sequence[Row]) -> tuple[tuple[Row, ...], MergeTally]:
    """Join the rows of one trajectory where a prompt begins with exactly what came before it.

    One differing token or picture forks: the row stays a row of its own. Nothing is realigned, so
    no sampled token is given up.

    Args:
        rows: Of one trajectory, in order.

    Raises:
        LedgerFault: A row other than the last one is marked as the last.
    """
    if any(row.is_last for row in rows[:-1]):
        raise LedgerFault("merge_rows takes the rows of one trajectory: only the last is marked")
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
            drifted += len(held) - _common(held, row.prompt_ids)
            forked += 1
            merged.append(row)
    return tuple(merged), MergeTally(merged=clean, forked=forked, drifted_tokens=drifted)


class _Columns:
    """The columns of one sequence, flattened once; rows are slices of them."""

    def __init__(self, sequence: Sequence[Segment], *, is_trained: bool) -> None:
        self._sequence = sequence
        self._starts = [0, *accumulate(len(segment.train_ids) for segment in sequence)]
        self._ids = _flat(segment.train_ids for segment in sequence)
        self._mask = _flat(segment.loss_mask for segment in sequence)
        if not is_trained:
            self._mask = (0,) * len(self._mask)
        self._is_trained = is_trained
        self._logprobs = _flat(segment.logprobs for segment in sequence)
        self._pictures = [0, *accumulate(len(segment.images) for segment in sequence)]
        self._images = _flat(segment.images for segment in sequence)
        self._features = _flat(segment.features for segment in sequence)

    def row(self, first: int, last: int) -> Row:
        """Return the row whose response runs from segment `first` to segment `last`."""
        start, end = self._starts[first], self._starts[last + 1]
        pictures = self._pictures[last + 1]
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
            images=self._images[:pictures],
            features=self._features[:pictures],
            reward=None,
            turn_rewards=tuple(rewards),
            turns=tuple(turns),
            weight_versions=tuple(versions),
            is_last=True,
        )


def _turn_spans(sequence: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    """Yield first and last segment of each reply; an abort and a resume leave more than one."""
    first: int | None = None
    for number, segment in enumerate(sequence):
        if segment.kind is not SegmentKind.MODEL:
            continue
        first = number if first is None else first
        following = sequence[number + 1] if number + 1 < len(sequence) else None
        if (
            following is None
            or following.kind is not SegmentKind.MODEL
            or following.turn != segment.turn
        ):
            yield first, number
            first = None


def _placeholder(trajectory: "Trajectory", filler_id: int) -> Row:
    return Row(
        prompt_ids=_flat(segment.train_ids for segment in trajectory.segments) or (filler_id,),
        response_ids=(filler_id,),
        loss_mask=(0,),
        logprobs=(0.0,),
        images=_flat(segment.images for segment in trajectory.segments),
        features=_flat(segment.features for segment in trajectory.segments),
        reward=None if trajectory.is_faulted else trajectory.reward,
        turns=(),
        is_last=True,
        is_placeholder=True,
    )


def _extends(held: Row, row: Row) -> bool:
    """Return whether the row's pictures begin with those held."""
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


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))


def _flat(parts: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    joined: list[T] = []
    for part in parts:
        joined += part  # copies a block; four times as fast as a tuple of an iterator
    return tuple(joined)
