"""Training rows: whole, by turn, merged, and where the rewards stand."""

from dataclasses import replace

import numpy as np
import pytest
from fakes.trajectories import Context, Reply, build, example, picture

from envkit.errors import ConfigurationError, FaultKind, LedgerFault
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory import (
    Branch,
    FaultPlace,
    FaultRecord,
    RewardPlacement,
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    call_rows,
    merge_rows,
    step_rows,
    whole_row,
)

FILLER = 7


def test_whole_row_of_a_fault_has_no_reward_and_trains_nothing() -> None:
    row = whole_row(example(stop_reason=StopReason.ENV_FAULT), filler_id=FILLER)
    assert row.reward is None
    assert not any(row.loss_mask)
    assert not any(row.token_rewards(RewardPlacement.TURNS))
    assert not row.is_placeholder


def test_whole_row_of_an_episode_that_never_started_is_a_placeholder() -> None:
    fault = FaultRecord(where=FaultPlace.RESET, kind=FaultKind.CRASHED, message="gone")
    trajectory = replace(
        example(stop_reason=StopReason.ENV_FAULT, fault=fault), segments=(), turns=()
    )
    row = whole_row(trajectory, filler_id=FILLER)
    assert (row.prompt_ids, row.response_ids, row.loss_mask) == ((FILLER,), (FILLER,), (0,))
    assert row.is_placeholder
    assert row.is_last


def test_whole_row_of_an_episode_without_a_reply_keeps_its_prompt_and_images() -> None:
    trajectory = example(stop_reason=StopReason.ENGINE_FAULT)
    prompt = trajectory.segments[0]
    row = whole_row(replace(trajectory, segments=(prompt,), turns=()), filler_id=FILLER)
    assert row.prompt_ids == prompt.train_ids
    assert row.images == prompt.images
    assert row.is_placeholder


def test_whole_row_refuses_a_rewritten_history() -> None:
    trajectory = build((Reply(observation=Context(), starts_sequence=True), Reply()))
    with pytest.raises(ConfigurationError, match="2 training rows"):
        whole_row(trajectory, filler_id=FILLER)
    assert len(step_rows(trajectory, filler_id=FILLER, merge=True)) == 2


def branched(trajectory: Trajectory, *, untrained: int) -> Trajectory:
    """Return three turns of which the last one branches off before the second.

    Args:
        trajectory: Three turns of one sequence.
        untrained: The turn with mask 0.
    """
    segments = list(trajectory.segments)
    place = next(
        n
        for n, one in enumerate(segments)
        if one.kind is SegmentKind.MODEL and one.turn == untrained
    )
    segments[place] = segments[place].as_context()
    start = next(n for n, one in enumerate(segments) if one.turn == 2)
    branch = Branch(segment=start, parent=0, at=2, reason="branch")
    return replace(trajectory, segments=tuple(segments), branches=(branch,))


def test_rejected_reply_at_the_end_of_a_sequence_does_not_split_the_row() -> None:
    given = build((Reply(observation=Context()), Reply(observation=Context()), Reply()))
    trajectory = branched(given, untrained=1)
    row = whole_row(trajectory, filler_id=FILLER)

    first, _, third = (s for s in given.segments if s.kind is SegmentKind.MODEL)
    assert row.turns == (0, 2)
    assert [s.turn for s in row.segments if s.kind is SegmentKind.MODEL] == [0, 2]
    assert row.response_ids == tuple(i for s in row.segments for i in s.train_ids)
    assert row.loss_mask == tuple(i for s in row.segments for i in s.loss_mask)
    assert sum(row.loss_mask) == len(first.train_ids) + len(third.train_ids)
    assert (row,) == merge_rows(step_rows(trajectory, filler_id=FILLER))[0]


def test_repeated_request_after_an_observation_does_not_split_the_row() -> None:
    given = build((Reply(observation=Context()), Reply(observation=Context()), Reply()))
    segments = list(given.segments)
    segments[3] = segments[3].as_context()  # the first sample
    del segments[4]  # the second one answers the same context
    branch = Branch(segment=4, parent=0, at=3, reason="branch")
    trajectory = replace(given, segments=tuple(segments), branches=(branch,))
    row = whole_row(trajectory, filler_id=FILLER)

    first, observation, last = segments[1], segments[2], segments[4]
    assert row.segments == (first, observation, last)
    assert row.response_ids == tuple(i for s in row.segments for i in s.train_ids)
    assert row.loss_mask == tuple(i for s in row.segments for i in s.loss_mask)
    assert (row,) == merge_rows(step_rows(trajectory, filler_id=FILLER))[0]


def test_rejected_reply_between_trained_ones_stays_context() -> None:
    given = build((Reply(observation=Context()), Reply(observation=Context()), Reply()))
    trajectory = branched(given, untrained=0)
    rows = step_rows(trajectory, filler_id=FILLER, merge=True)
    assert [row.turns for row in rows] == [(1,), (2,)]
    shared = trajectory.segments[0].train_ids + trajectory.segments[1].train_ids
    assert all(row.prompt_ids[: len(shared)] == shared for row in rows)
    assert rows == merge_rows(step_rows(trajectory, filler_id=FILLER))[0]


def test_fault_of_several_sequences_is_one_masked_row() -> None:
    given = build((Reply(observation=Context()), Reply(observation=Context()), Reply()))
    fault = FaultRecord(where=FaultPlace.STEP, kind=FaultKind.CRASHED, message="gone")
    faulted = replace(
        branched(given, untrained=1), stop_reason=StopReason.ENV_FAULT, fault=fault, reward=None
    )
    row = whole_row(faulted, filler_id=FILLER)
    assert not any(row.loss_mask)
    assert row.reward is None


@pytest.mark.parametrize("stop", [StopReason.TERMINATED, StopReason.ENV_FAULT])
def test_call_rows_of_a_loop_are_its_step_rows(stop: StopReason) -> None:
    whole = example()
    if stop.is_fault:
        whole = replace(whole, stop_reason=stop, reward=None)
    for trajectory in (whole, replace(whole, segments=(), turns=(), branches=())):
        rows = call_rows(trajectory, filler_id=FILLER)
        assert rows == step_rows(trajectory, filler_id=FILLER)


def test_call_rows_are_in_call_order_and_the_last_one_has_the_reward() -> None:
    whole = example()
    count = len(whole.turns)
    swapped = tuple(replace(one, call=count - 1 - one.turn) for one in whole.turns)
    rows = call_rows(replace(whole, turns=swapped), filler_id=FILLER)
    assert [row.turns for row in rows] == [(n,) for n in reversed(range(count))]
    assert [row.is_last for row in rows] == [False] * (count - 1) + [True]
    assert [row.reward for row in rows] == [0.0] * (count - 1) + [whole.reward]


def test_step_rows_join_a_reply_that_an_abort_had_cut_in_two() -> None:
    trajectory = example()
    first, reply, *rest = trajectory.segments
    assert reply.kind is SegmentKind.MODEL
    halves = [
        _part(reply, 0, 1, weight_version="1", reward=None),
        _part(reply, 1, len(reply.train_ids), weight_version="2"),
    ]
    cut = replace(trajectory, segments=(first, *halves, *rest))
    rows = step_rows(cut, filler_id=FILLER)
    assert len(rows) == len(trajectory.turns)
    assert rows[0].response_ids == reply.train_ids
    assert rows[0].weight_versions == ("1", "2")
    assert rows[0].turn_rewards == ((len(reply.train_ids) - 1, 0.0),)


def test_merge_rows_forks_at_one_other_token_and_counts_the_drift() -> None:
    rows = step_rows(example(), filler_id=FILLER)
    held = rows[0].prompt_ids + rows[0].response_ids
    drifted = (*held[:-2], 77, *rows[1].prompt_ids[len(held) - 1 :])
    changed = (rows[0], replace(rows[1], prompt_ids=drifted), rows[2])
    merged, tally = merge_rows(changed)
    assert (tally.merged, tally.forked) == (0, 2)
    assert tally.drifted_tokens == 2 + len(drifted) + len(rows[1].response_ids) - (len(held) - 2)
    assert merged == changed


def test_merge_rows_forks_at_another_image() -> None:
    rows = step_rows(example(), filler_id=FILLER)
    other = (picture(5), *rows[1].images[1:])
    _, tally = merge_rows((rows[0], replace(rows[1], images=other), rows[2]))
    assert tally.forked == 2


def test_merge_rows_refuses_rows_of_two_trajectories() -> None:
    rows = step_rows(example(), filler_id=FILLER)
    with pytest.raises(LedgerFault, match="one trajectory"):
        merge_rows((*rows, *rows))


def test_row_tensors_hold_the_images_of_prompt_and_response() -> None:
    def with_features(segment: Segment) -> Segment:
        features = tuple(
            ImageFeatures(tensors={"pixel_values": np.full((4, 2), n)}, token_count=4)
            for n, _ in enumerate(segment.images)
        )
        return replace(segment, features=features)

    trajectory = example()
    trajectory = replace(
        trajectory, segments=tuple(with_features(segment) for segment in trajectory.segments)
    )
    first, second, _ = step_rows(trajectory, filler_id=FILLER)
    assert first.tensors["pixel_values"].shape == (4, 2)
    assert second.tensors["pixel_values"].shape == (12, 2)


def _part(segment: Segment, start: int, end: int, **changes: object) -> Segment:
    return replace(
        segment,
        wire_ids=segment.wire_ids[start:end],
        train_ids=segment.train_ids[start:end],
        loss_mask=segment.loss_mask[start:end],
        logprobs=segment.logprobs[start:end],
        **changes,  # pyright: ignore[reportArgumentType]  # named fields of Segment
    )


@pytest.mark.parametrize("merge", [False, True])
def test_rows_know_the_segments_of_their_response(merge: bool) -> None:
    trajectory = example()
    rows = step_rows(trajectory, filler_id=FILLER, merge=merge)
    for row in rows:
        assert row.segments
        assert row.segments[0].kind is row.segments[-1].kind is SegmentKind.MODEL
        ids = tuple(token for segment in row.segments for token in segment.train_ids)
        assert ids == row.response_ids
    sampled = [s for s in trajectory.segments if s.kind is SegmentKind.MODEL]
    known = [s for row in rows for s in row.segments if s.kind is SegmentKind.MODEL]
    assert known == sampled
