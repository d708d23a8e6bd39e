"""Segments, trajectories and their rows."""

from dataclasses import replace
from itertools import chain, pairwise

import pytest
from fakes.trajectories import Context, Reply, build, example, picture, quick, trajectories
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, LedgerFault
from envkit.tokens.encoded import Encoded, ImageFeatures
from envkit.trajectory import Ledger, Segment, SegmentKind, StopReason, Trajectory
from envkit.trajectory.sequence import sequences_of


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


@quick
@given(
    st.lists(
        st.sampled_from(["start", "observe", "unobserve", "reply", "drop", "replay", "read"]),
        max_size=20,
    )
)
def test_ledger_gives_the_ids_of_the_current_sequence_whenever_they_are_read(
    steps: list[str],
) -> None:
    ledger, turn = Ledger(), 0
    context = Encoded(wire_ids=(1, 2), train_ids=(1, 2), images=(), features=())
    feature = ImageFeatures(tensors={}, token_count=2)
    shown = Encoded(wire_ids=(9,), train_ids=(9, 9), images=(picture(1),), features=(feature,))
    for step in ["start", *steps]:
        if step == "start":
            ledger.start(context, turn=turn)
        elif step == "observe":
            ledger.add_observation(context, turn=turn)
        elif step == "unobserve":
            counts = ledger.train_length, ledger.response_tokens, len(ledger.images)
            ledger.add_observation(shown, turn=turn)
            assert ledger.wire_ids[-1] == 9
            ledger.drop_observation()
            assert (ledger.train_length, ledger.response_tokens, len(ledger.images)) == counts
        elif step == "reply":
            for count in (0, 3):  # an abort cuts a reply in two
                ledger.add_reply(
                    range(count),
                    [-1.0] * count,
                    turn=turn,
                    finish_reason="stop",
                    weight_version=None,
                    extras={},
                )
            turn += 1
        elif step == "drop":
            ledger.drop_reply(turn - 1)
        elif step == "replay":
            again = Ledger()
            again.replay(ledger.segments, ledger.branches)
            ledger = again
        else:
            assert ledger.wire_ids is ledger.wire_ids
        if step == "read" or len(steps) % 2:
            sequence = sequences_of(ledger.segments, ledger.branches)[-1].segments
            assert tuple(ledger.wire_ids) == tuple(i for part in sequence for i in part.wire_ids)
    sequence = sequences_of(ledger.segments, ledger.branches)[-1].segments
    assert tuple(ledger.wire_ids) == tuple(i for part in sequence for i in part.wire_ids)
