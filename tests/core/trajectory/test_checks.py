"""Rules for every recorded trajectory, checked from the record alone."""

from dataclasses import replace

from fakes.trajectories import Context, Reply, build, example, picture

from envkit.errors import FaultKind
from envkit.trajectory import (
    FaultPlace,
    FaultRecord,
    Rule,
    Segment,
    StopReason,
    Trajectory,
    check_trajectory,
)


def _rules(trajectory: Trajectory) -> set[Rule]:
    return {problem.rule for problem in check_trajectory(trajectory)}


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
