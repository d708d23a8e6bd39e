"""Rules for every recorded trajectory, checked from the record alone."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.trajectories import Context, Reply, build, example, picture

from envkit.errors import FaultKind
from envkit.messages import message
from envkit.trajectory import (
    Branch,
    FaultPlace,
    FaultRecord,
    Problem,
    Rule,
    Segment,
    SegmentKind,
    StopReason,
    Trajectory,
    check_trajectory,
)
from envkit.trajectory.checks import replies
from envkit.trajectory.segment import LOGPROB_SLACK
from envkit.trajectory.sequence import Origin


def _rules(trajectory: Trajectory) -> set[Rule]:
    return {problem.rule for problem in check_trajectory(trajectory)}


def _found(trajectory: Trajectory) -> list[tuple[Rule, str]]:
    return [(problem.rule, problem.message) for problem in check_trajectory(trajectory)]


def _only(trajectory: Trajectory, rule: Rule) -> list[str]:
    """Return the messages of one rule."""
    return [message for found, message in _found(trajectory) if found is rule]


def _segment(trajectory: Trajectory, index: int, **changes: Any) -> Trajectory:
    segments = list(trajectory.segments)
    segments[index] = replace(segments[index], **changes)
    return replace(trajectory, segments=tuple(segments))


def _turn(trajectory: Trajectory, index: int, **changes: Any) -> Trajectory:
    turns = list(trajectory.turns)
    turns[index] = replace(turns[index], **changes)
    return replace(trajectory, turns=tuple(turns))


def line(count: int, **values: Any) -> Trajectory:
    """Return turns of three sampled tokens each, with four tokens of context before each."""
    played = [Reply(observation=Context() if n + 1 < count else None) for n in range(count)]
    return build(played, **values)


def test_check_accepts_a_reply_that_an_abort_cut_in_two() -> None:
    whole = example()
    reply = whole.segments[-1]

    def part(start: int, end: int, reward: float | None) -> Segment:
        return replace(
            reply,
            wire_ids=reply.wire_ids[start:end],
            train_ids=reply.train_ids[start:end],
            loss_mask=reply.loss_mask[start:end],
            logprobs=reply.logprobs[start:end],
            reward=reward,
        )

    cut = replace(whole, segments=(*whole.segments[:-1], part(0, 1, None), part(1, 3, 1.0)))
    assert check_trajectory(cut) == ()
    wrong = replace(whole, segments=(*whole.segments[:-1], part(0, 1, 1.0), part(1, 3, 1.0)))
    assert _rules(wrong) == {Rule.REWARD}


def test_check_accepts_episodes_that_ended_early() -> None:
    fault = FaultRecord(where=FaultPlace.RESET, kind=FaultKind.CRASHED, message="gone")
    lost = build((), stop_reason=StopReason.ENV_FAULT, fault=fault)
    assert check_trajectory(lost) == ()
    assert check_trajectory(replace(lost, segments=(), messages=())) == ()
    heard = example(stop_reason=StopReason.ENGINE_FAULT)
    unheard = replace(heard, segments=heard.segments[:-2])
    assert check_trajectory(unheard) == ()


def test_check_refuses_a_trailing_observation() -> None:
    trajectory = build((Reply(observation=Context()),), stop_reason=StopReason.ABORTED)
    assert _rules(trajectory) == {Rule.LEDGER}


def test_check_refuses_a_placeholder_where_no_image_is() -> None:
    prompt = Context(text_ids=(1, 9_000, 2))
    answered = Reply(observation=Context(images=(picture(0),)))
    assert _rules(build((answered, Reply()), prompt=prompt)) == {Rule.IMAGES}
    expanded = replace(build((Reply(),)).segments[0], train_ids=(11, 11, 12, 13))
    assert _rules(replace(build((Reply(),)), segments=(expanded, *build((Reply(),)).segments[1:])))


def test_check_refuses_a_completed_ending_without_a_completed_step() -> None:
    assert _rules(build((Reply(reward=None),))) == {Rule.STOP}


def test_problem_names_its_line_and_its_rule() -> None:
    trajectory = _turn(line(1), 0, prompt_tokens=3)
    (problem,) = check_trajectory(trajectory)
    assert (problem.episode_id, problem.line) == ("episode-0", None)
    assert str(problem) == f"[prefix] {problem.message}"
    there = Problem(rule=Rule.PREFIX, message="wrong", line=3)
    assert str(there) == "line 3: [prefix] wrong"
    assert there.episode_id is None


def test_replies_are_the_model_segments_of_each_turn() -> None:
    trajectory = line(2)
    found = replies(trajectory)
    assert found == {0: [trajectory.segments[1]], 1: [trajectory.segments[3]]}
    cut = _segment(trajectory, 3, turn=0)
    assert replies(cut) == {0: [cut.segments[1], cut.segments[3]]}


def test_check_accepts_lines_trees_and_text_without_a_ledger() -> None:
    for trajectory in (line(1), line(3), branched(), forked(), example()):
        assert _found(trajectory) == []
    text = replace(line(2), segments=())
    assert _found(text) == []


def test_check_refuses_a_ledger_that_does_not_start_with_a_prompt() -> None:
    trajectory = line(1)
    headless = replace(trajectory, segments=trajectory.segments[1:])
    assert (
        Rule.LEDGER,
        "a ledger must start with a prompt, got a segment of kind model",
    ) in _found(headless)
    assert "segment 0 (model) must have turn 0, got -1" in _only(
        _segment(headless, 0, turn=-1), Rule.LEDGER
    )
    wrong = _segment(trajectory, 0, kind=SegmentKind.OBSERVATION)
    assert _found(wrong) == [
        (Rule.LEDGER, "a ledger must start with a prompt, got a segment of kind observation")
    ]


@pytest.mark.parametrize("number", [-1, 0, 2])
def test_check_refuses_turn_records_with_gaps(number: int) -> None:
    found = _only(_turn(line(2), 1, turn=number), Rule.LEDGER)
    assert found == [f"turn records must be numbered from 0 without gaps, got {[0, number]}"]


@pytest.mark.parametrize("calls", [(0, 0), (1, 2), (None, 1), (0, None), (-1, 0)])
def test_check_refuses_calls_with_gaps(calls: tuple[int | None, int | None]) -> None:
    numbered = line(2)
    for index, call in enumerate(calls):
        numbered = _turn(numbered, index, call=call)
    known = [call for call in calls if call is not None]
    expected = f"calls must be numbered from 0 without gaps or not at all, got {known}"
    assert _only(numbered, Rule.LEDGER) == [expected]


def test_check_accepts_calls_in_any_order() -> None:
    swapped = _turn(_turn(line(2), 0, call=1), 1, call=0)
    assert (_found(swapped), swapped.call_order, line(2).call_order) == ([], (1, 0), (0, 1))


@pytest.mark.parametrize(
    ("index", "turn", "upcoming"),
    [(0, 1, 0), (1, 1, 0), (2, 0, 1), (2, 2, 1), (3, 0, 1), (3, 2, 1)],
)
def test_check_refuses_a_segment_of_another_turn(index: int, turn: int, upcoming: int) -> None:
    trajectory = _segment(line(2), index, turn=turn)
    kind = trajectory.segments[index].kind
    found = _only(trajectory, Rule.LEDGER)
    assert found == [f"segment {index} ({kind}) must have turn {upcoming}, got {turn}"]


def test_check_accepts_replies_of_one_or_two_turns_without_an_observation_between() -> None:
    trajectory = line(2)
    first, second = trajectory.segments[1], trajectory.segments[3]
    touching = (*trajectory.segments[:2], replace(second, turn=1))
    records = _turn(_turn(trajectory, 0, observation_tokens=0), 1, prompt_tokens=7)
    assert _found(replace(records, segments=touching)) == []
    skipped = (trajectory.segments[0], first, replace(second, turn=2))
    found = _only(replace(trajectory, segments=skipped), Rule.LEDGER)
    assert found == ["segment 2 (model) must have turn 1, got 2"]


@pytest.mark.parametrize("missing", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("reason", [StopReason.ABORTED, StopReason.ENGINE_FAULT])
def test_check_compares_the_numbers_of_replies_and_turn_records(
    reason: StopReason, missing: int
) -> None:
    trajectory = line(3, stop_reason=reason)
    if missing < 0:  # turn records
        changed = replace(trajectory, turns=trajectory.turns[:missing])
    else:
        changed = replace(trajectory, segments=trajectory.segments[: 6 - 2 * missing])
    allowed = (-1, 0, 1) if reason.is_fault else (0, 1)
    replied, recorded = 3 - max(missing, 0), 3 + min(missing, 0)
    text = f"the ledger has {replied} replies, but {recorded} turns are recorded"
    assert _only(changed, Rule.LEDGER) == ([] if missing in allowed else [text])


def branched(at: int = 2) -> Trajectory:
    """Return three turns, of which the last one branches off before the second observation."""
    trajectory = line(3)
    length = sum(one.token_count for one in trajectory.segments[:at])
    branch = Branch(segment=4, parent=0, at=at, reason="branch")
    tree = replace(trajectory, branches=(branch,))
    return _turn(_turn(tree, 2, prompt_tokens=length + 4), 1, observation_tokens=0)


def forked(segments: int = 2, turns: int = 1) -> Trajectory:
    """Return two turns of which the first one belongs to another episode."""
    trajectory = _segment(line(2), 1, loss_mask=(0, 0, 0))
    origin = Origin(episode_id="parent", segments=segments, turns=turns, root="parent")
    return replace(trajectory, origin=origin)


@pytest.mark.parametrize(
    ("segments", "turns", "messages"),
    [
        (0, 1, ["a fork must share 1 to 4 segments of its parent, got 0"]),
        (1, 0, []),
        (3, 2, []),
        (2, -1, ["a fork can share at most 2 turns, got -1"]),
        (2, 3, ["a fork can share at most 2 turns, got 3"]),
    ],
)
def test_check_bounds_what_a_fork_shares(segments: int, turns: int, messages: list[str]) -> None:
    assert _only(forked(segments, turns), Rule.TREE) == messages


@pytest.mark.parametrize(("segments", "count"), [(4, 0), (5, 1)])
def test_check_lets_a_fork_share_at_most_all_segments(segments: int, count: int) -> None:
    trajectory = _segment(forked(segments), 3, loss_mask=(0, 0, 0))
    assert len(_only(trajectory, Rule.TREE)) == count


def test_check_refuses_tokens_with_two_owners() -> None:
    for mask in ((0, 0, 1), (1, 0, 0)):
        found = _only(_segment(forked(), 1, loss_mask=mask), Rule.TREE)
        assert found == [
            "segment 1 belongs to episode 'parent' and must have mask 0 here, or its tokens have "
            "two owners"
        ]
    assert len(_only(forked(4), Rule.TREE)) == 1  # segment 3


def test_check_refuses_a_fork_of_itself() -> None:
    fork = forked()
    assert fork.origin is not None
    itself = replace(fork, origin=replace(fork.origin, episode_id=fork.episode_id))
    assert _only(itself, Rule.TREE) == ["an episode cannot be forked from itself"]


def test_check_refuses_branches_that_do_not_fit_and_says_nothing_else() -> None:
    tree = branched()
    far = replace(tree, branches=(replace(tree.branches[0], at=5),), reward=None)
    ((rule, text),) = _found(far)
    assert rule is Rule.TREE
    assert "can share at most 4 segments" in text
    count = len(tree.messages)
    for index in (count - 1, count):
        known = replace(tree, branches=(replace(tree.branches[0], history=(index,)),))
        assert len(_only(known, Rule.TREE)) == (index == count)


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_check_compares_recorded_lengths_with_the_ledger(turn: int, wrong: int) -> None:
    trajectory = line(3)
    before, length = trajectory.turns[turn], 4 + 7 * turn
    prompt = _turn(trajectory, turn, prompt_tokens=length + wrong)
    assert _found(prompt) == [
        (
            Rule.PREFIX,
            f"turn {turn} was sampled from {length + wrong} tokens, but {length} are in the "
            "ledger before it",
        )
    ]
    sampled = _turn(trajectory, turn, response_tokens=3 + wrong)
    assert _found(sampled) == [
        (Rule.PREFIX, f"turn {turn} records {3 + wrong} sampled tokens, got 3 in the ledger")
    ]
    answered = _turn(trajectory, turn, observation_tokens=before.observation_tokens + wrong)
    expected = (
        Rule.PREFIX,
        f"segment {2 * turn + 2} of sequence 0 has 4 tokens, but turn {turn} records "
        f"{4 + wrong} for its observation",
    )
    assert _found(answered) == ([] if turn == 2 else [expected])


def test_check_compares_the_length_before_the_first_part_of_a_reply() -> None:
    trajectory = line(2)
    reply = trajectory.segments[3]
    parts = [
        replace(reply, wire_ids=ids, train_ids=ids, loss_mask=None, logprobs=(-1.0,) * len(ids))
        for ids in (reply.train_ids[:1], reply.train_ids[1:])
    ]
    parts[0] = replace(parts[0], reward=None)
    cut = replace(trajectory, segments=(*trajectory.segments[:3], *parts))
    assert _found(cut) == []
    assert len(_only(_turn(cut, 1, prompt_tokens=12), Rule.PREFIX)) == 1


@pytest.mark.parametrize("at", [2, 3, 4])
def test_check_counts_the_context_of_a_branch_from_its_first_token(at: int) -> None:
    tree = branched(at)
    turned = _turn(tree, 1, observation_tokens=4) if at == 4 else tree
    assert _found(turned) == []
    wrong = _turn(tree, 2, prompt_tokens=tree.turns[2].prompt_tokens + 1)
    assert len(_only(wrong, Rule.PREFIX)) == 1


def test_check_compares_the_length_before_a_reply_that_starts_a_branch() -> None:
    trajectory = line(3)
    segments = (*trajectory.segments[:4], trajectory.segments[5])
    branch = Branch(segment=4, parent=0, at=3, reason="branch")
    tree = replace(trajectory, segments=segments, branches=(branch,))
    tree = _turn(_turn(tree, 2, prompt_tokens=11), 1, observation_tokens=0)
    assert _found(tree) == []
    assert len(_only(_turn(tree, 2, prompt_tokens=12), Rule.PREFIX)) == 1


def test_check_compares_later_observations_of_a_branch() -> None:
    trajectory = line(4)
    branch = Branch(segment=4, parent=0, at=2, reason="branch")
    tree = replace(trajectory, branches=(branch,))
    tree = _turn(tree, 1, observation_tokens=0)
    tree = _turn(_turn(tree, 2, prompt_tokens=11), 3, prompt_tokens=18)
    assert _found(tree) == []
    (text,) = _only(_turn(tree, 2, observation_tokens=5), Rule.PREFIX)
    assert text.startswith("segment 4 of sequence 1 has 4 tokens, but turn 2 records 5")


@pytest.mark.parametrize("bad", [np.nextafter(LOGPROB_SLACK, 1), math.inf, -math.inf, math.nan])
def test_check_refuses_a_log_probability_beyond_the_slack(bad: float) -> None:
    trajectory = _segment(line(2), 3, logprobs=(-1.0, float(bad), -2.0))
    assert _found(trajectory) == [
        (Rule.LOGPROBS, f"segment 3 has a log-probability of {float(bad)!r}")
    ]
    assert _found(_segment(line(2), 3, logprobs=(0.0, LOGPROB_SLACK, -1e300))) == []


def test_check_compares_images_of_an_observation_with_its_turn_record() -> None:
    trajectory = example()
    for turn, count in ((0, 1), (0, 3), (1, 1)):
        recorded = trajectory.turns[turn].image_count
        found = _found(_turn(trajectory, turn, image_count=count))
        text = f"turn {turn} records {count} new images, got {recorded} in the ledger"
        assert found == [(Rule.IMAGES, text)]
    assert _found(_turn(trajectory, 2, image_count=1)) == []  # no observation follows


def test_check_compares_images_after_the_last_part_of_a_reply() -> None:
    trajectory = example()
    first, reply, *rest = trajectory.segments
    parts = [
        replace(reply, wire_ids=ids, train_ids=ids, loss_mask=None, logprobs=(-1.0,) * len(ids))
        for ids in (reply.train_ids[:1], reply.train_ids[1:])
    ]
    cut = replace(trajectory, segments=(first, replace(parts[0], reward=None), parts[1], *rest))
    assert _found(cut) == []
    assert len(_only(_turn(cut, 0, image_count=1), Rule.IMAGES)) == 1


def test_check_compares_no_images_across_the_start_of_a_branch() -> None:
    tree = branched()
    assert _found(_turn(tree, 1, image_count=1)) == []
    assert len(_only(_turn(tree, 0, image_count=1), Rule.IMAGES)) == 1


def test_check_compares_images_of_the_first_sequence_with_the_first_of_the_messages() -> None:
    trajectory = example()
    shown = message("user", "more", (picture(5),))
    assert _found(replace(trajectory, messages=(*trajectory.messages, shown))) == []
    assert _found(replace(trajectory, messages=(shown, *trajectory.messages))) == [
        (Rule.IMAGES, "the 3 images of the ledger are not the first images of the messages")
    ]
    rewritten = build(
        (
            Reply(observation=Context(images=(picture(1),)), starts_sequence=True),
            Reply(),
        ),
        prompt=Context(images=(picture(0),)),
    )
    assert _found(rewritten) == []


@pytest.mark.parametrize("reason", [StopReason.ABORTED, StopReason.ENV_FAULT])
def test_check_refuses_a_reward_after_a_fault_or_an_abort(reason: StopReason) -> None:
    trajectory = line(2, stop_reason=reason)
    assert _found(trajectory) == []
    found = _found(replace(trajectory, reward=0.0))
    assert found == [
        (Rule.REWARD, f"an episode that ended with {reason} must have no reward, got 0.0")
    ]


def test_check_refuses_an_ended_episode_without_a_reward() -> None:
    found = _found(replace(line(2), reward=None))
    assert found == [
        (Rule.REWARD, "an episode that ended with terminated must have a reward, got None")
    ]


@pytest.mark.parametrize(
    ("turn_reward", "reward", "is_sum"),
    [
        (0.0, 0.9e-9, True),
        (0.0, -0.9e-9, True),
        (0.0, 1.1e-9, False),
        (1e6, 1e6 + 0.9e-3, True),
        (1e6, 1e6 + 1.1e-3, False),
        (math.inf, math.inf, False),
        (math.nan, math.nan, False),
        (0.1, 0.1, True),
    ],
)
def test_check_compares_a_reward_with_the_sum_up_to_rounding(
    turn_reward: float, reward: float, is_sum: bool
) -> None:
    trajectory = build((Reply(reward=None, observation=Context()), Reply(reward=turn_reward)))
    found = _only(replace(trajectory, reward=reward), Rule.REWARD)
    text = f"the reward must be the sum of the turns' rewards, {turn_reward}, got {reward}"
    assert found[:1] == ([] if is_sum else [text])


def test_check_refuses_a_reward_that_is_not_on_the_last_part_of_its_reply() -> None:
    trajectory = line(2)
    found = _found(_segment(trajectory, 1, reward=None))
    assert found == [(Rule.REWARD, "turn 0 records the reward 0.0, got [None] in the ledger")]
    both = _turn(_segment(trajectory, 1, reward=None), 0, reward=None)
    assert _found(both) == []


def test_check_wants_a_fault_record_exactly_if_a_fault_ended_the_episode() -> None:
    fault = FaultRecord(where=FaultPlace.STEP, kind=FaultKind.CRASHED, message="gone")
    faulted = line(2, stop_reason=StopReason.ENV_FAULT, fault=fault)
    assert _found(faulted) == []
    assert _found(replace(faulted, fault=None)) == [
        (Rule.FAULT, "the episode ended with env_fault, but no fault is recorded")
    ]
    assert _found(replace(line(2), fault=fault)) == [
        (Rule.FAULT, "a fault is recorded, but the episode ended with terminated")
    ]


@pytest.mark.parametrize("reason", [StopReason.TERMINATED, StopReason.ENV_TRUNCATED])
def test_check_wants_a_completed_last_step_of_a_completed_episode(reason: StopReason) -> None:
    assert _found(line(2, stop_reason=reason)) == []
    unfinished = build((Reply(observation=Context()), Reply(reward=None)), stop_reason=reason)
    text = f"{reason} needs a completed step, but the last turn has none"
    assert _found(unfinished) == [(Rule.STOP, text)]
    nothing = replace(line(1, stop_reason=reason), turns=(), segments=())
    assert _only(nothing, Rule.STOP) == [text]
    cut = build((Reply(reward=None),), stop_reason=StopReason.MAX_TURNS)
    assert _found(cut) == []


def test_check_wants_a_cut_reply_where_the_tokens_of_a_turn_ended_the_episode() -> None:
    text = "turn_tokens needs a last reply with finish reason 'length', got"
    reason = StopReason.TURN_TOKENS
    assert _found(build((Reply(finish_reason="length"),), stop_reason=reason)) == []
    assert _found(line(1, stop_reason=reason)) == [(Rule.STOP, f"{text} 'stop'")]
    nothing = replace(line(1, stop_reason=reason), turns=(), segments=())
    assert _only(nothing, Rule.STOP) == [f"{text} None"]
