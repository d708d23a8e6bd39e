"""The core as an adapter: every way to its columns must agree.

The rows come from a different path than the suite's expected rows: the whole row from the
trajectory's own columns, merged rows from an exact merge of single rows.
"""

from collections.abc import Sequence
from typing import Final

from envkit.trajectory import RewardPlacement, SegmentKind, Trajectory, merge_rows, step_rows
from envkit_conformance.delivered import Content, DeliveredRow, Projection, Shape


def _whole(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
    ids = trajectory.train_ids()
    segments, shared = trajectory.segments, len(trajectory.segments) - len(trajectory.own_segments)
    kinds = [segment.kind for segment in segments]
    if SegmentKind.MODEL in kinds[shared:]:
        before = segments[: kinds.index(SegmentKind.MODEL, shared)]
        start = sum(segment.token_count for segment in before)
        columns = (ids[start:], trajectory.loss_mask()[start:], trajectory.logprobs()[start:])
    else:
        start, columns = len(ids), ((filler_id,), (0,), (0.0,))
    response, mask, logprobs = columns
    row = DeliveredRow(
        prompt_ids=ids[:start] or (filler_id,),
        response_ids=response,
        loss_mask=mask,
        logprobs=logprobs,
        reward=trajectory.reward,
        tensors=trajectory.tensors(),
        images=trajectory.images(),
        is_unscorable=trajectory.reward is None,
    )
    return (row,)


def _steps(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
    rows = step_rows(trajectory, filler_id=filler_id)
    return [DeliveredRow.of(row, placement=RewardPlacement.TURNS, with_images=True) for row in rows]


def _merged(trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
    rows, _ = merge_rows(step_rows(trajectory, filler_id=filler_id))
    return [DeliveredRow.of(row, placement=RewardPlacement.LAST) for row in rows]


PROJECTIONS: Final = (
    Projection(
        name="core-whole",
        shape=Shape.WHOLE,
        deliver=_whole,
        cannot_carry=frozenset({Content.SEQUENCES}),
    ),
    Projection(
        name="core-steps",
        shape=Shape.STEPS,
        deliver=_steps,
        reward_placement=RewardPlacement.TURNS,
    ),
    Projection(name="core-merged", shape=Shape.MERGED, deliver=_merged),
)
