"""Segments, trajectories and their rows."""

from dataclasses import replace
from itertools import chain, pairwise

import pytest
from fakes.trajectories import Context, Reply, build, example, picture, quick, trajectories
from hypothesis import given

from envkit.errors import ConfigurationError, LedgerFault
from envkit.trajectory import (
    RewardPlacement,
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    merge_rows,
    step_rows,
)


@quick
@given(trajectories())
def test_invariant_1_columns_of_segments_and_rows_have_one_length(trajectory: Trajectory) -> None:
    for segment in trajectory.segments:
        assert len(segment.train_ids) == len(segment.loss_mask) == len(segment.logprobs)
        assert set(segment.loss_mask) <= {0, 1}
        if segment.kind is not SegmentKind.MODEL:
            assert not any(segment.logprobs)
    for row in (*trajectory.steps(), *trajectory.steps(merge=True)):
        assert len(row.response_ids) == len(row.loss_mask) == len(row.logprobs)


@quick
@given(trajectories())
def test_invariant_2_rows_hold_exactly_the_sampled_ids(trajectory: Trajectory) -> None:
    sampled = [s.train_ids for s in trajectory.segments if s.kind is SegmentKind.MODEL]
    assert [row.response_ids for row in trajectory.steps()] == sampled


@quick
@given(trajectories())
def test_invariant_4_prompts_extend_each_other_inside_a_sequence(trajectory: Trajectory) -> None:
    for sequence in trajectory.sequences():
        part = replace(trajectory, segments=sequence.segments, branches=())
        for before, after in pairwise(part.steps()):
            whole = before.prompt_ids + before.response_ids
            assert after.prompt_ids[: len(whole)] == whole


@quick
@given(trajectories())
def test_invariant_6_a_fault_has_no_reward_and_trains_nothing(trajectory: Trajectory) -> None:
    rows = (*trajectory.steps(), *trajectory.steps(merge=True))
    if trajectory.is_faulted:
        assert trajectory.reward is None
        assert all(row.reward is None for row in rows)
        assert not any(chain.from_iterable(row.loss_mask for row in rows))
    else:
        assert any(chain.from_iterable(row.loss_mask for row in rows))


@quick
@given(trajectories())
def test_invariant_10_merged_rows_equal_the_unmerged_ones_token_for_token(
    trajectory: Trajectory,
) -> None:
    single, merged = trajectory.steps(), trajectory.steps(merge=True)
    assert tuple(chain.from_iterable(row.turns for row in merged)) == tuple(
        chain.from_iterable(row.turns for row in single)
    )
    steps = {row.turns[0]: row for row in single}
    for row in merged:
        first, last = steps[row.turns[0]], steps[row.turns[-1]]
        assert row.prompt_ids == first.prompt_ids
        assert row.prompt_ids + row.response_ids == last.prompt_ids + last.response_ids
        assert row.images == last.images
        trained = [
            (token, logprob)
            for token, logprob, mask in zip(
                row.response_ids, row.logprobs, row.loss_mask, strict=True
            )
            if mask
        ]
        expected = [
            pair
            for turn in row.turns
            for pair in zip(steps[turn].response_ids, steps[turn].logprobs, strict=True)
        ]
        assert trained == ([] if trajectory.is_faulted else expected)


@quick
@given(trajectories())
def test_invariant_10_rows_are_contiguous_and_the_last_one_carries_the_reward(
    trajectory: Trajectory,
) -> None:
    for rows in (trajectory.steps(), trajectory.steps(merge=True)):
        turns = list(chain.from_iterable(row.turns for row in rows))
        assert turns == list(range(len(trajectory.turns)))
        assert [row.is_last for row in rows] == [False] * (len(rows) - 1) + [True]
        assert rows[-1].reward == trajectory.reward
        assert all(row.reward in (0.0, trajectory.reward) for row in rows[:-1])
        assert rows[-1].loss_mask[-1:] == ((0,) if trajectory.is_faulted else (1,))


@quick
@given(trajectories())
def test_invariant_10_one_last_row_carries_the_reward(trajectory: Trajectory) -> None:
    for merge in (False, True):
        rows = step_rows(trajectory, filler_id=7, merge=merge)
        assert [row.is_last for row in rows] == [False] * (len(rows) - 1) + [True]
        assert rows[-1].reward == (None if trajectory.is_faulted else trajectory.reward)
        rewards = list(chain.from_iterable(row.token_rewards() for row in rows))
        assert rewards[:-1] == [0.0] * (len(rewards) - 1)
        assert rewards[-1] == (rows[-1].reward or 0.0)


@quick
@given(trajectories())
def test_invariant_10_merging_rows_equals_merged_rows(trajectory: Trajectory) -> None:
    single = step_rows(trajectory, filler_id=7)
    merged, tally = merge_rows(single)
    assert tally.merged + tally.forked == len(single) - 1
    assert len(merged) == tally.forked + 1
    expected = step_rows(trajectory, filler_id=7, merge=True)
    if len(merged) == len(expected):  # a rewritten history may happen to begin with the old one
        assert merged == expected


@quick
@given(trajectories())
def test_rows_put_turn_rewards_on_the_last_token_of_each_reply(trajectory: Trajectory) -> None:
    for merge in (False, True):
        for row in step_rows(trajectory, filler_id=7, merge=merge):
            rewards = row.token_rewards(RewardPlacement.TURNS)
            assert len(rewards) == len(row.response_ids)
            for index, reward in row.turn_rewards:
                assert row.loss_mask[index] == 1
                assert rewards[index] == (0.0 if row.reward is None else reward)


def test_trajectory_joins_its_segments() -> None:
    trajectory = example()
    assert trajectory.train_ids()[:6] == (5, 9_000, 9_000, 9_000, 9_000, 6)
    assert len(trajectory.wire_ids()) == len(trajectory.train_ids()) - 3 - 2 * 2
    assert len(trajectory.loss_mask()) == len(trajectory.logprobs()) == len(trajectory.train_ids())
    assert sum(trajectory.loss_mask()) == 9
    assert trajectory.images() == (picture(0), picture(1), picture(0))
    assert trajectory.tensors() == {}


def test_trajectory_with_rewritten_history_refuses_to_be_one_sequence() -> None:
    trajectory = build((Reply(observation=Context(), starts_sequence=True), Reply()))
    assert len(trajectory.sequences()) == len(trajectory.steps(merge=True)) == 2
    with pytest.raises(ConfigurationError, match=r"steps\(merge=True\)"):
        trajectory.train_ids()


def test_trajectory_without_a_reply_has_no_rows() -> None:
    assert build((), stop_reason=StopReason.ENGINE_FAULT).steps() == ()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("loss_mask", (1, 1), "equal lengths"),
        ("logprobs", (-1.0,), "equal lengths"),
        ("loss_mask", (1, 2, 1), "0 or 1"),
        ("wire_ids", (1, 2), "exactly the sampled ids"),
        ("images", (picture(0),), "exactly the sampled ids"),
    ],
)
def test_segment_refuses_columns_that_do_not_line_up(
    column: str, value: tuple[object, ...], message: str
) -> None:
    reply = example().segments[1]
    with pytest.raises(LedgerFault, match=message):
        replace(reply, **{column: value})


@pytest.mark.parametrize("column", ["loss_mask", "logprobs"])
def test_segment_of_context_refuses_loss_and_logprobs(column: str) -> None:
    values = {"loss_mask": (1, 0), "logprobs": (-0.5, 0.0)}
    columns = {"loss_mask": (0, 0), "logprobs": (0.0, 0.0), column: values[column]}
    with pytest.raises(LedgerFault, match="only model segments"):
        Segment(
            kind=SegmentKind.OBSERVATION,
            turn=0,
            wire_ids=(1, 2),
            train_ids=(1, 2),
            loss_mask=tuple(int(v) for v in columns["loss_mask"]),
            logprobs=columns["logprobs"],
        )


def test_stop_reasons_are_faults_truncations_or_neither() -> None:
    assert not any(reason.is_fault and reason.is_truncation for reason in StopReason)
    assert not StopReason.TERMINATED.is_truncation
    assert not StopReason.ABORTED.is_fault
    assert StopReason.MAX_TURNS.is_truncation
    assert StopReason.LEDGER_FAULT.is_fault
