"""Training rows: which tokens a row has and carries, which rows join, and where rewards stand."""

from dataclasses import replace
from typing import Any

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
    Row,
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    call_rows,
    merge_rows,
    step_rows,
    whole_row,
)
from envkit.trajectory.projection import MergeTally, placeholder_row, rows_of
from envkit.trajectory.sequence import sequences_of

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


PROMPT, MODEL, OBSERVATION = SegmentKind.PROMPT, SegmentKind.MODEL, SegmentKind.OBSERVATION


def part(kind: SegmentKind, turn: int, *ids: int, mask: int = 1, **values: Any) -> Segment:
    """Return a segment; the log-probability of a sampled id is the negative id."""
    is_model = kind is MODEL
    return Segment(
        kind=kind,
        turn=turn,
        wire_ids=ids,
        train_ids=ids,
        loss_mask=(mask,) * len(ids) if is_model else None,
        logprobs=tuple(map(float, (-one for one in ids))) if is_model else None,
        **values,
    )


def view(kind: SegmentKind, turn: int, *ids: int, image: int) -> Segment:
    feature = ImageFeatures(tensors={}, token_count=1)
    return part(kind, turn, *ids, images=(picture(image),), features=(feature,))


def line(*masks: int) -> tuple[Segment, ...]:
    """Return a prompt (10, 11), replies (20, 21), (30, 31), ... and observations 25, 35, ..."""
    segments = [part(PROMPT, 0, 10, 11)]
    for turn, mask in enumerate(masks):
        first = 10 * (turn + 2)
        if turn:
            segments.append(part(OBSERVATION, turn, first - 5))
        version = str(turn)
        reward = turn + 0.5
        segments.append(
            part(MODEL, turn, first, first + 1, mask=mask, reward=reward, weight_version=version)
        )
    return tuple(segments)


def rows(
    segments: tuple[Segment, ...],
    *branches: Branch,
    merge: bool,
    reward: float | None = 4.0,
    is_trained: bool = True,
    shared: int = 0,
) -> tuple[Row, ...]:
    sequences = sequences_of(segments, branches, shared=shared)
    return rows_of(sequences, reward, is_trained=is_trained, merge=merge)


def test_row_of_each_turn_has_everything_before_it_as_its_prompt() -> None:
    first, second = rows(line(1, 1), merge=False)
    assert first == Row(
        prompt_ids=(10, 11),
        response_ids=(20, 21),
        loss_mask=(1, 1),
        logprobs=(-20.0, -21.0),
        reward=0.0,
        turn_rewards=((1, 0.5),),
        turns=(0,),
        weight_versions=("0",),
        is_last=False,
    )
    assert second == Row(
        prompt_ids=(10, 11, 20, 21, 25),
        response_ids=(30, 31),
        loss_mask=(1, 1),
        logprobs=(-30.0, -31.0),
        reward=4.0,
        turn_rewards=((1, 1.5),),
        turns=(1,),
        weight_versions=("1",),
        is_last=True,
    )
    assert [one.segments for one in (first, second)] == [line(1, 1)[1:2], line(1, 1)[3:]]


MERGED = Row(
    prompt_ids=(10, 11),
    response_ids=(20, 21, 25, 30, 31),
    loss_mask=(1, 1, 0, 1, 1),
    logprobs=(-20.0, -21.0, 0.0, -30.0, -31.0),
    reward=4.0,
    turn_rewards=((1, 0.5), (4, 1.5)),
    turns=(0, 1),
    weight_versions=("0", "1"),
    is_last=True,
)


def test_merged_row_has_the_observations_between_replies_with_mask_0() -> None:
    (merged,) = rows(line(1, 1), merge=True)
    assert merged == MERGED
    assert merged.segments == line(1, 1)[1:]
    joined, tally = merge_rows(rows(line(1, 1), merge=False))
    assert joined == (MERGED,)
    assert tally == MergeTally(merged=1, forked=0, drifted_tokens=0)


def test_rejected_replies_are_context_at_the_start_and_absent_at_the_end() -> None:
    (row,) = rows(line(0, 1, 0, 1, 0), merge=True)
    assert row.prompt_ids == (10, 11, 20, 21, 25)
    assert row.response_ids == (30, 31, 35, 40, 41, 45, 50, 51)
    assert row.loss_mask == (1, 1, 0, 0, 0, 0, 1, 1)
    assert row.turns == (1, 2, 3)
    single = rows(line(0, 1, 0, 1, 0), merge=False)
    assert [one.turns for one in single] == [(1,), (3,)]


@pytest.mark.parametrize("merge", [False, True])
def test_only_the_last_reply_is_kept_of_an_episode_without_trained_tokens(merge: bool) -> None:
    (row,) = rows(line(0, 0, 0), merge=merge)
    assert row.turns == (2,)
    assert row.prompt_ids == (10, 11, 20, 21, 25, 30, 31, 35)
    assert (row.response_ids, row.loss_mask) == ((40, 41), (0, 0))
    assert (row.reward, row.is_last) == (4.0, True)


@pytest.mark.parametrize("merge", [False, True])
def test_only_the_last_sequence_with_a_reply_is_kept_without_trained_tokens(merge: bool) -> None:
    second = (part(PROMPT, 1, 60), part(MODEL, 1, 61, mask=0), part(MODEL, 2, 62, mask=0))
    segments = (*line(0), *second)
    (row,) = rows(segments, merge=merge)
    assert (row.prompt_ids, row.response_ids, row.turns) == ((60, 61), (62,), (2,))
    (row,) = rows((*segments, part(PROMPT, 3, 70)), merge=merge)  # nothing was sampled there
    assert row.response_ids == (62,)


@pytest.mark.parametrize("merge", [False, True])
def test_untrained_sequences_have_no_row_beside_trained_ones(merge: bool) -> None:
    trained = (part(PROMPT, 1, 60), part(MODEL, 1, 61))
    rejected = (part(PROMPT, 2, 70), part(MODEL, 2, 71, mask=0))
    found = rows((*line(0), *trained, *rejected), merge=merge)
    assert [one.response_ids for one in found] == [(61,)]
    assert (found[0].reward, found[0].is_last) == (4.0, True)


@pytest.mark.parametrize("merge", [False, True])
def test_ledger_without_replies_has_no_rows(merge: bool) -> None:
    assert rows((), merge=merge) == rows(line(), merge=merge) == ()


def test_rows_of_a_fault_have_mask_0_and_no_rewards() -> None:
    first, second = rows(line(1, 1), merge=False, reward=None, is_trained=False)
    assert first.loss_mask == second.loss_mask == (0, 0)
    assert first.reward is second.reward is None
    assert first.turn_rewards == second.turn_rewards == ()
    assert [first.is_last, second.is_last] == [False, True]
    (whole,) = rows(line(0, 1, 0), merge=True, reward=None, is_trained=False)
    assert whole.turns == (0, 1, 2)  # no mask decides what is a row
    assert whole.response_ids[-2:] == (40, 41)


@pytest.mark.parametrize("masks", [(1, 0), (0, 1)])
def test_reply_of_which_an_abort_left_one_trained_part_is_trained(masks: tuple[int, int]) -> None:
    segments = (
        part(PROMPT, 0, 10),
        *(part(MODEL, 0, 20 + n, mask=mask) for n, mask in enumerate(masks)),
        part(MODEL, 1, 30, 31),  # no observation between the turns
    )
    first, second = rows(segments, merge=False)
    assert (first.response_ids, first.loss_mask, first.turns) == ((20, 21), masks, (0,))
    assert (second.prompt_ids, second.response_ids) == ((10, 20, 21), (30, 31))
    (merged,) = rows(segments, merge=True)
    assert (merged.response_ids, merged.turns) == ((20, 21, 30, 31), (0, 1))
    (last,) = rows(segments[:3], merge=True)
    assert (last.response_ids, last.loss_mask) == ((20, 21), masks)


def test_rejected_reply_right_before_a_trained_one_has_no_row() -> None:
    segments = (part(PROMPT, 0, 10), part(MODEL, 0, 20, mask=0), part(MODEL, 1, 30))
    for merge in (False, True):
        (row,) = rows(segments, merge=merge)
        assert (row.prompt_ids, row.response_ids, row.turns) == ((10, 20), (30,), (1,))


def test_row_of_a_ledger_without_a_prompt_has_an_empty_one() -> None:
    (row,) = rows((part(MODEL, 0, 20, 21),), merge=False)
    assert (row.prompt_ids, row.response_ids) == ((), (20, 21))


@pytest.mark.parametrize(("shared", "turns"), [(0, (0, 1)), (1, (0, 1)), (2, (1,)), (3, (1,))])
def test_row_of_a_fork_has_only_replies_that_it_owns(shared: int, turns: tuple[int, ...]) -> None:
    found = rows(line(1, 1), merge=False, shared=shared)
    assert tuple(one.turns[0] for one in found) == turns
    (merged,) = rows(line(1, 1), merge=True, shared=shared)
    assert merged.turns == turns


@pytest.mark.parametrize(("at", "rows_found"), [(2, 2), (3, 2), (4, 1)])
def test_branch_joins_the_row_that_ends_where_it_starts(at: int, rows_found: int) -> None:
    branch = Branch(segment=4, parent=0, at=at)
    segments = (*line(1, 1), part(OBSERVATION, 2, 95), part(MODEL, 2, 90, reward=0.25))
    found = rows(segments, branch, merge=True)
    assert len(found) == rows_found
    assert found[-1].turn_rewards[-1] == (len(found[-1].response_ids) - 1, 0.25)
    assert [one.is_last for one in found] == [False] * (rows_found - 1) + [True]
    if rows_found == 1:
        assert found[0].response_ids == (*MERGED.response_ids, 95, 90)
        assert found[0].loss_mask == (*MERGED.loss_mask, 0, 1)
        assert found[0].segments == segments[1:]


def test_branch_joins_only_the_row_of_its_own_parent() -> None:
    other = (part(PROMPT, 1, 60), part(MODEL, 1, 61))
    branch = Branch(segment=4, parent=0, at=2)
    segments = (*line(1), *other, part(OBSERVATION, 2, 95), part(MODEL, 2, 90))
    found = rows(segments, branch, merge=True)
    assert [one.response_ids for one in found] == [(20, 21), (61,), (90,)]
    agent = Branch(segment=2, parent=None)
    found = rows((*line(1), *other), agent, merge=True)
    assert [one.response_ids for one in found] == [(20, 21), (61,)]


def test_branch_joins_the_row_of_its_parent_after_other_rows() -> None:
    other = (part(PROMPT, 1, 60), part(MODEL, 1, 61))
    branch = Branch(segment=4, parent=1, at=2)
    rejected = part(MODEL, 3, 91, mask=0)
    found = rows((*line(1), *other, part(MODEL, 2, 90), rejected), branch, merge=True)
    assert [one.response_ids for one in found] == [(20, 21), (61, 90)]
    assert [one.train_ids for one in found[1].segments] == [(61,), (90,)]


def test_branch_of_a_sequence_without_trained_tokens_starts_a_row() -> None:
    for at in (1, 2):
        branch = Branch(segment=2, parent=0, at=at)
        (row,) = rows((*line(0), part(MODEL, 1, 90)), branch, merge=True)
        assert (row.response_ids, row.turns) == ((90,), (1,))


def test_second_branch_joins_the_row_of_the_branch_before_it() -> None:
    branches = (Branch(segment=2, parent=0, at=2), Branch(segment=3, parent=1, at=3))
    segments = (*line(1), part(MODEL, 1, 90), part(MODEL, 2, 91))
    (row,) = rows(segments, *branches, merge=True)
    assert row.response_ids == (20, 21, 90, 91)
    assert [one.train_ids for one in row.segments] == [(20, 21), (90,), (91,)]


def test_rows_have_the_images_and_features_of_prompt_and_response() -> None:
    segments = (
        view(PROMPT, 0, 10, image=0),
        part(MODEL, 0, 20),
        view(OBSERVATION, 1, 25, image=1),
        part(MODEL, 1, 30),
    )
    first, second = rows(segments, merge=False)
    (merged,) = rows(segments, merge=True)
    joined = merge_rows((first, second))[0][0]
    both = segments[0].features + segments[2].features
    assert (first.images, first.features) == ((picture(0),), both[:1])
    for row in (second, merged, joined):
        assert (row.images, row.features) == ((picture(0), picture(1)), both)


def test_rewards_of_a_row_are_placed_at_its_end_or_at_the_end_of_each_turn() -> None:
    assert MERGED.token_rewards() == [0.0, 0.0, 0.0, 0.0, 4.0]
    assert MERGED.token_rewards(RewardPlacement.TURNS) == [0.0, 0.5, 0.0, 0.0, 1.5]
    unscored = replace(MERGED, reward=None)
    for placement in RewardPlacement:
        assert unscored.token_rewards(placement) == [0.0] * 5


def test_placeholder_has_the_prompt_and_one_masked_filler() -> None:
    prompt = view(PROMPT, 0, 10, 11, image=0)
    row = placeholder_row((prompt,), 2.0, filler_id=7)
    assert row == Row(
        prompt_ids=(10, 11),
        response_ids=(7,),
        loss_mask=(0,),
        logprobs=(0.0,),
        images=(picture(0),),
        reward=2.0,
        turns=(),
        is_last=True,
        is_placeholder=True,
    )
    assert row.features == prompt.features
    assert placeholder_row((), None, filler_id=7).prompt_ids == (7,)


def row(prompt: tuple[int, ...], *response: int, is_last: bool = False, **values: Any) -> Row:
    count = len(response)
    return Row(
        prompt_ids=prompt,
        response_ids=response,
        loss_mask=(1,) * count,
        logprobs=(-1.0,) * count,
        reward=0.0,
        turns=(0,),
        is_last=is_last,
        **values,
    )


@pytest.mark.parametrize(
    ("prompt", "drift"),
    [
        ((1, 2, 3, 4), None),
        ((1, 2, 3, 4, 5), None),
        ((1, 2, 3, 9, 5), 1),
        ((1, 2, 9, 4, 5), 2),
        ((9, 2, 3, 4, 5), 4),
        ((1, 2, 3), 1),
        ((1,), 3),
        ((), 4),
    ],
)
def test_merge_joins_exact_prefixes_and_counts_tokens_from_the_first_difference(
    prompt: tuple[int, ...], drift: int | None
) -> None:
    joined, tally = merge_rows((row((1, 2), 3, 4), row(prompt, 6, is_last=True)))
    if drift is None:
        assert tally == MergeTally(merged=1)
        assert joined[0].response_ids == (3, 4, *prompt[4:], 6)
        assert joined[0].loss_mask == (1, 1, *(0,) * len(prompt[4:]), 1)
        assert joined[0].is_last
    else:
        assert len(joined) == 2
        assert tally == MergeTally(forked=1, drifted_tokens=drift)


def test_merge_continues_the_row_after_a_fork_and_adds_up_its_tally() -> None:
    given = (
        row((1,), 2),
        row((9,), 3),
        row((9, 3), 4),
        row((9, 8), 5),
        row((9, 8, 5), 6, is_last=True),
    )
    joined, tally = merge_rows(given)
    assert [one.response_ids for one in joined] == [(2,), (3, 4), (5, 6)]
    assert tally == MergeTally(merged=2, forked=2, drifted_tokens=2 + 2)
    assert merge_rows(()) == ((), MergeTally())
    assert merge_rows(given[:1]) == (given[:1], MergeTally())


def test_merge_tallies_of_several_trajectories_add_up() -> None:
    one = MergeTally(merged=1, forked=20, drifted_tokens=300)
    other = MergeTally(merged=2, forked=40, drifted_tokens=500)
    assert one + other == MergeTally(merged=3, forked=60, drifted_tokens=800)


def test_merge_forks_where_images_do_not_extend_those_before() -> None:
    one, two = (picture(0),), (picture(0), picture(1))
    others = (picture(5), picture(1))
    for before, after, is_joined in (
        (one, two, True), (two, one, False), (one, one, True), (one, others, False),
    ):  # fmt: skip
        given = (row((1,), 2, images=before), row((1, 2), 3, is_last=True, images=after))
        joined, tally = merge_rows(given)
        assert (len(joined) == 1) is is_joined
        assert tally.drifted_tokens == 0
        assert joined[-1].images == after


def test_merge_compares_images_with_the_row_after_a_fork() -> None:
    own, other = (picture(0),), (picture(1),)
    forked = row((9,), 3, images=own)
    last = row((9, 3), 4, is_last=True, images=other)
    joined, tally = merge_rows((row((1,), 2), forked, last))
    assert [one.images for one in joined] == [(), own, other]
    assert tally.forked == 2


@pytest.mark.parametrize("last", [(True, False), (True, True), (False, True, False)])
def test_merge_refuses_a_row_after_the_last_one(last: tuple[bool, ...]) -> None:
    with pytest.raises(LedgerFault, match="only the last one may have is_last"):
        merge_rows([row((1,), 2, is_last=one) for one in last])


def test_row_is_compared_and_shown_without_features_and_segments() -> None:
    (row,) = rows(line(1, 1), merge=True)
    heavy = replace(row, features=(ImageFeatures(tensors={}, token_count=1),))
    assert heavy == replace(heavy, segments=()) == MERGED
    assert repr(heavy) == repr(MERGED)
