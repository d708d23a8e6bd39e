"""One misbehaving episode of a run costs that episode alone: it is a typed fault, never a reward.

The attacks are in `fakes/hostile_attacks.py`. Whatever an environment raises or returns, `collect`
delivers every episode, the others are untouched, and the whole run can be stored and verified.
"""

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.hostile_attacks import (
    ATTACKS,
    CONTROLS_OF_THE_TEST,
    IMAGE_ATTACKS,
    close_coroutines,
    giving,
)
from fakes.hostile_envs import BAD_TASK, Attack, Ends, HostileRun
from fakes.hostile_values import PLANTED
from fakes.playing import play_hostile

from envkit.env import Turn
from envkit.rollout import Limits, RolloutConfig, ScriptedEngine, collect
from envkit.trajectory import Trajectory, TrajectoryWriter, verify_file

EPISODES = 24
BY_ID = {str(attack): attack for attack in (*ATTACKS, *IMAGE_ATTACKS)}
ONE_OF_A_KIND = """
step-exception-own_thread step-system_exit_0-own_thread step-system_exit_none-own_thread
step-keyboard_interrupt-own_thread step-generator_exit-own_thread step-cancelled-own_thread
step-stop_iteration-own_thread step-base_group-own_thread step-group-own_thread
step-mute-own_thread step-recursion-own_thread step-contract-own_thread
step-configuration-own_thread step-fault_without_text-own_thread
step-fault_nonsense_kind-own_thread step-system_exit_0-wrapped
format_observation-system_exit_0-wrapped step-system_exit_0-pool astep-exception-async
astep-system_exit_0-async astep-cancelled-async astep-generator_exit-async
astep-stop_async_iteration-async astep-cancels_its_task-async astep_call-exception-async
build-exception-own_thread build-system_exit_0-own_thread
build-hangs-own_thread reset-system_exit_0-own_thread reset-hangs-own_thread
reset-answer_none-own_thread reset-text_surrogate-own_thread reset-info_deep-own_thread
step-answer_four-own_thread step-answer_coroutine-own_thread step-answer_generator-own_thread
step-hangs-own_thread step-hangs-pool astep-hangs-async step-thread_raises-own_thread
step-spoils_later-own_thread step-reward_nan-own_thread step-reward_none-own_thread
step-reward_huge-own_thread step-reward_numpy-own_thread step-reward_decimal-own_thread
step-terminated_none-own_thread step-truncated_int-own_thread step-text_none-own_thread
step-text_surrogate-own_thread step-extra_key-own_thread step-lacks_text-own_thread
step-info_set-own_thread step-info_nan-own_thread step-info_cyclic-own_thread
step-info_huge_number-own_thread step-info_bad_repr-own_thread step-info_bad_mapping-own_thread
format_observation-exception-own_thread format_observation-none-own_thread
format_observation-image_in_system-own_thread format_observation-content_surrogate-own_thread
system_prompt-exception-own_thread system_prompt-surrogate-own_thread tools-objects-own_thread
tools-change-own_thread task-set-own_thread task-exception-own_thread
capabilities-exception-own_thread step_key-exception-own_thread unwrapped-none-own_thread
snapshot-system_exit_0-own_thread restore-cancelled-own_thread get_state-gives_set-own_thread
shorten-exception-own_thread close-system_exit_0-own_thread close-hangs-own_thread
aclose-cancelled-async on_turn-max_turns_text-own_thread
"""

pytestmark = [
    # A hostile environment returns a coroutine where none is allowed; nothing can await it.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # One of its own threads also ends with an exception.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def play(attack: Attack, *, member: int | None = None, **options: Any) -> list[Trajectory]:
    """Play a run in which one episode misbehaves; fail the test if the run ends early.

    Args:
        attack: What happens.
        member: Which member of the bad task's group misbehaves, once; None is every one of them.
        options: Of `_collect`.
    """
    run = HostileRun(attack=attack, member=member)
    try:
        played = play_hostile(_collect(run, **options))
    finally:
        run.released.set()
        close_coroutines()
    assert run.reached or attack.ends is Ends.EITHER, "the attack did not happen"
    if attack.name != "hangs":  # a hung call closes its environment when it returns
        assert run.open_envs == 0, "environments were left open"
    return played


async def _collect(
    run: HostileRun,
    *,
    episodes: int = EPISODES,
    group_size: int = 1,
) -> AsyncGenerator[Trajectory]:
    attack, count = run.attack, 0
    codec = vision_codec() if attack.has_images else text_codec()
    tight = Limits(max_response_tokens=12) if attack.place == "shorten" else Limits()
    async for trajectory in collect(
        run.build,
        ScriptedEngine(codec, lambda context: "go"),
        codec,
        episodes=episodes,
        group_size=group_size,
        concurrency=8 if group_size == 1 else 1,  # members in order
        tasks=[{"number": number} for number in range(episodes // group_size)],
        config=RolloutConfig(limits=tight, retries=attack.retries),
    ):
        yield trajectory
        count += 1
        if count == episodes:
            run.released.set()


def check(played: list[Trajectory], attack: Attack, *, episodes: int = EPISODES) -> None:
    """What must hold of every run, whatever one of its episodes did."""
    assert len(played) == episodes
    assert len({one.episode_id for one in played}) == episodes
    faulted = [one for one in played if one.is_faulted]
    assert len(faulted) <= 1, [one.fault for one in faulted]
    if attack.ends is not Ends.EITHER:
        assert len(faulted) == (attack.ends is Ends.FAULT)
    for one in faulted:
        check_fault(one)
        assert attack.place == "build" or one.metadata["group"] == BAD_TASK
    for one in played:
        if not one.is_faulted:
            assert one.reward is not None
            assert math.isfinite(one.reward)
            assert one.trained_token_count > 0
    untouched = [one for one in played if one not in faulted and one.metadata["group"] != BAD_TASK]
    assert {one.reward for one in untouched} == {0.5 if attack.place == "shorten" else 1.0}


def check_fault(one: Trajectory) -> None:
    """What must hold of the record of an episode that a failure ended."""
    assert one.fault is not None
    assert one.fault.message.strip()
    assert one.reward is None
    assert one.trained_token_count == 0
    assert all(row.reward is None and not any(row.loss_mask) for row in one.steps(merge=True))


def store(played: list[Trajectory], folder: Path) -> None:
    """Write the run as a rollout does, and verify what was written."""
    with TrajectoryWriter(folder) as writer:
        for one in played:
            writer.write(one)
    report = verify_file(folder)
    assert report.is_sound, str(report)
    assert report.trajectories == len(played)


def pick(names: str) -> Any:
    """Return a parametrisation over some attacks."""
    return pytest.mark.parametrize("attack", [BY_ID[name] for name in names.split()], ids=str)


def test_names_of_attacks_are_different() -> None:
    assert len(BY_ID) == len(ATTACKS) + len(IMAGE_ATTACKS)


@pytest.mark.parametrize("attack", CONTROLS_OF_THE_TEST, ids=str)
def test_an_attack_that_does_nothing_changes_nothing(attack: Attack) -> None:
    check(play(attack, episodes=12), attack, episodes=12)


@pick(" ".join(ONE_OF_A_KIND.split()[::3]))  # the slow test below takes all
def test_one_hostile_episode_costs_that_episode_alone(attack: Attack, tmp_path: Path) -> None:
    played = play(attack, episodes=12)
    check(played, attack, episodes=12)
    store(played, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("attack", [BY_ID[name] for name in BY_ID], ids=str)
def test_every_hostile_episode_costs_that_episode_alone(attack: Attack, tmp_path: Path) -> None:
    played = play(attack, episodes=16)
    check(played, attack, episodes=16)
    store(played, tmp_path / "run")


@pick("step-image_broken-own_thread step-image_exiting-own_thread reset-image_missing-own_thread")
def test_an_image_that_fails_to_load_costs_its_episode_alone(
    attack: Attack, tmp_path: Path
) -> None:
    played = play(attack, episodes=12)
    check(played, attack, episodes=12)
    store(played, tmp_path / "run")


GROUP_ATTACKS = """
step-exception-own_thread step-system_exit_0-own_thread step-cancelled-own_thread
step-reward_nan-own_thread step-info_set-own_thread format_observation-none-own_thread
reset-system_exit_0-own_thread reset-answer_none-own_thread astep-generator_exit-async
"""


@pick(GROUP_ATTACKS)
def test_one_hostile_member_leaves_its_siblings_alone(attack: Attack, tmp_path: Path) -> None:
    played = play(attack, group_size=4, member=2)
    check(played, attack)
    siblings = [one for one in played if one.metadata["group"] == BAD_TASK]
    assert len(siblings) == 4
    assert sum(one.reward == 1.0 for one in siblings) >= 3
    store(played, tmp_path / "run")


@pick("reset-text_surrogate-own_thread reset-text_none-own_thread system_prompt-number-own_thread")
def test_a_first_member_that_faults_does_not_fault_its_siblings(attack: Attack) -> None:
    played = play(attack, group_size=4, member=0)
    assert len(played) == EPISODES
    siblings = [one for one in played if one.metadata["group"] == BAD_TASK]
    first = next(one for one in siblings if one.metadata["member"] == 0)
    if first.is_faulted:  # otherwise its observation was accepted, and the others differ from it
        assert sum(one.is_faulted for one in siblings) == 1


def test_a_member_that_starts_differently_faults_alone_and_the_run_verifies(
    tmp_path: Path,
) -> None:
    other = Attack(name="other", place="on_reset", act=giving(lambda: Turn("Something else.")))
    played = play(other, group_size=4, member=2)
    check(played, other)
    store(played, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("reset-exception-own_thread", "reset"),
        ("step-exception-own_thread", "step"),
        ("step-cancelled-own_thread", "step"),
        ("astep-exception-async", "step"),
        ("format_observation-exception-own_thread", "reset"),  # of the first observation
        ("step_key-exception-own_thread", "step"),
        ("step-answer_none-own_thread", "step"),
        ("step-reward_nan-own_thread", "step"),
    ],
)
def test_fault_says_where_and_shows_the_traceback(name: str, where: str) -> None:
    attack = BY_ID[name]
    (fault,) = [one.fault for one in play(attack, episodes=8) if one.fault is not None]
    assert fault.where == where
    assert fault.traceback
    if "exception" in name:
        assert PLANTED in fault.message
        assert "hostile_attacks.py" in fault.traceback  # the line of the author's code


def test_builds_that_fail_for_good_are_faults_of_their_episodes() -> None:
    attack = replace(BY_ID["build-exception-own_thread"], is_once=False)
    played = play(attack, episodes=8)
    assert len(played) == 8
    faulted = [one for one in played if one.is_faulted]
    assert 0 < len(faulted) < 8
    for one in faulted:
        check_fault(one)
        assert one.fault is not None
        assert one.fault.where == "build"
        assert PLANTED in one.fault.message


@pick("step-cancelled-own_thread astep-cancelled-async")
def test_the_callers_cancellation_still_ends_a_run(attack: Attack) -> None:
    run = HostileRun(attack=replace(attack, is_once=False))
    played: list[Trajectory] = []

    async def take() -> None:
        async for trajectory in _collect(run):
            played.append(trajectory)

    async def cancel() -> bool:
        task = asyncio.create_task(take())
        while len(played) < 10:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task}, timeout=120.0)
        return task.cancelled()

    assert asyncio.run(cancel())
    run.released.set()
    assert 10 <= len(played) < EPISODES
    assert run.open_envs == 0
