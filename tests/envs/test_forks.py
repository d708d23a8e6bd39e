"""Forks of environments with screens: desktops by snapshot, browsers by replay in fresh pages."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fakes.codecs import vision_codec
from fakes.needs import BROWSER

from envkit.env import Policy, PolicyContext
from envkit.rollout import AtTurns, EpisodeSpec, Player, ScriptedEngine, play_tree
from envkit.trajectory import StopReason, Trajectory, check_trajectory
from envkit_browser.miniwob import MiniwobEnv
from envkit_browser.miniwob.policies import oracle as miniwob_oracle
from envkit_browser.pages import PageEnv
from envkit_desktop import ComputerUseEnv
from envkit_desktop.policies import oracle as desktop_oracle

CLICK = '{"action": "click", "x": %d, "y": %d}'
DONE = '{"action": "terminate", "status": "success"}'


async def grow(
    env: Any, policy: Policy, branching: AtTurns, spec: EpisodeSpec
) -> tuple[Trajectory, ...]:
    codec = vision_codec()
    player = Player(ScriptedEngine(codec, policy), codec)
    try:
        return await play_tree(env, player, branching=branching, spec=spec)
    finally:
        await player.aclose()


def by_sampling_seed(good: Callable[[PolicyContext], str], bad: str) -> Policy:
    """Return a policy that is right in about every second branch."""
    return lambda context: good(context) if context.seed % 2 else bad


def assert_same_as_trunk(leaves: tuple[Trajectory, ...]) -> None:
    """Check that branches which reply as the trunk did see what the trunk saw."""
    trunk, *forks = leaves
    assert trunk.fault is None, trunk.fault
    for fork in forks:
        assert fork.fault is None, fork.fault
        assert fork.own_turns
        assert [turn.observation_hash for turn in fork.turns] == [
            turn.observation_hash for turn in trunk.turns
        ]
        assert fork.reward == trunk.reward
        assert [one.sha256 for one in fork.images()] == [one.sha256 for one in trunk.images()]
        assert check_trajectory(fork) == ()


class Counted(ComputerUseEnv):
    """Counts its steps."""

    steps = 0

    def on_turn(self, response_text: str) -> Any:
        type(self).steps += 1
        return super().on_turn(response_text)


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.slow
async def test_desktop_is_forked_by_snapshot_without_a_replayed_step(is_single: bool) -> None:
    Counted.steps = 0
    spec = EpisodeSpec(seed=3)
    env = Counted(level=3) if is_single else lambda: Counted(level=3)
    leaves = await grow(env, desktop_oracle(), AtTurns(turns=(1, 2), width=3), spec)
    assert len(leaves) == 9
    assert_same_as_trunk(leaves)
    assert leaves[0].reward == 1.0
    assert len(leaves[0].turns) > 2
    assert Counted.steps == sum(len(leaf.own_turns) for leaf in leaves)


@pytest.mark.slow
async def test_desktop_branches_that_act_otherwise_end_otherwise() -> None:
    policy = by_sampling_seed(desktop_oracle(), DONE)
    spec = EpisodeSpec(seed=3, member=1)
    leaves = await grow(ComputerUseEnv, policy, AtTurns(turns=(0, 1), width=4), spec)
    assert [leaf.fault for leaf in leaves] == [None] * len(leaves)
    assert {leaf.reward for leaf in leaves} == {0.0, 1.0}
    for leaf in leaves:
        is_right = leaf.turns[-1].response_text != DONE or len(leaf.turns) > 1
        assert leaf.reward in ((0.0, 1.0) if is_right else (0.0,))


async def solved(task: Mapping[str, Any]) -> list[str]:
    """Return replies that solve a task. The oracle that finds them reads the page as it goes."""
    env = MiniwobEnv(mix="all")
    policy, replies, is_over = miniwob_oracle(), list[str](), False
    try:
        await env.areset(seed=0, options={"task": dict(task)})
        while not is_over:
            context = PolicyContext(env=env, task=env.task, turn=len(replies), messages=(), seed=0)
            replies.append(policy(context))
            step = await env.astep(replies[-1])
            is_over = step.terminated or step.truncated
    finally:
        await env.aclose()
    return replies


@BROWSER.mark
@pytest.mark.parametrize("name", ["click-menu-2", "email-inbox-delete"])
@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.slow
async def test_miniwob_is_forked_by_replay_in_a_fresh_page(name: str, is_single: bool) -> None:
    env = MiniwobEnv(mix="all") if is_single else lambda: MiniwobEnv(mix="all")
    task = {"name": name, "seed": 3}
    spec = EpisodeSpec(seed=0, task=task)
    replies = await solved(task)

    def policy(context: PolicyContext) -> str:
        return replies[context.turn]

    try:
        leaves = await grow(env, policy, AtTurns(turns=(1, 2), width=2), spec)
    finally:
        if isinstance(env, MiniwobEnv):
            await env.aclose()
    assert len(leaves) == (4 if len(replies) > 2 else 2)
    assert_same_as_trunk(leaves)
    assert leaves[0].reward == 1.0


COUNTER = {
    "html": (
        "<body style='margin:0'><button style='width:200px;height:80px' "
        "onclick='window.count = (window.count || 0) + 1; this.textContent = window.count'>"
        "go</button>"
    ),
    "goal": "Press the button three times.",
    "check": "window.count === 3 ? 1 : 0",
}


@BROWSER.mark
@pytest.mark.slow
async def test_page_of_a_branch_has_the_clicks_of_its_own_history() -> None:
    def policy(context: PolicyContext) -> str:
        if context.turn == 3:
            return DONE
        return CLICK % ((20, 20) if context.turn != 1 or context.seed % 2 else (500, 400))

    leaves = await grow(
        lambda: PageEnv(tasks=[COUNTER]),
        policy,
        AtTurns(turns=(1,), width=4),
        EpisodeSpec(seed=0),
    )
    assert len(leaves) == 4
    for leaf in leaves:
        assert leaf.stop_reason is StopReason.TERMINATED, leaf.fault
        hits = sum(turn.response_text == CLICK % (20, 20) for turn in leaf.turns)
        assert leaf.reward == float(hits == 3)
    assert {leaf.reward for leaf in leaves} == {0.0, 1.0}
