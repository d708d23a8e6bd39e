"""Solvers, rewriters and a selector over tasks of another environment."""

from typing import Any

import pytest
from fakes.codecs import vision_codec
from fakes.oracles import steps_of
from fakes.playing import play_roles
from hypothesis import given
from hypothesis import strategies as st

import envkit
from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.rollout import Limits, ScriptedEngine
from envkit.trajectory import StopReason, check_trajectory
from envkit_refine import RefineEnv, read_choice
from envkit_refine.policies import noisy_oracle


def test_refine_passes_the_checker() -> None:
    report = envkit.check_env(envkit.make("refine-v0"))
    assert {"determinism", "replay", "oracle", "independence"} <= set(report.passed)


async def test_oracle_earns_the_weighted_reward_in_every_role() -> None:
    codec, env = vision_codec(), RefineEnv(solvers=2, rewriters=3)

    played = await play_roles(env, ScriptedEngine(codec, env.oracle()), codec, seed=1)

    assert list(played) == list(env.roles)
    assert {one.reward for one in played.values()} == {1.2}
    assert all(check_trajectory(one) == () for one in played.values())
    assert all(one.images() == played["solver-1"].images() != () for one in played.values())


def reply_by_role(replies: dict[str, str]) -> Any:
    def write(context: PolicyContext) -> str:
        env: Any = context.env
        reply = replies[env.role.partition("-")[0]]
        return reply.format(answer=context.task["answer"])

    return write


@pytest.mark.parametrize(
    ("solver", "rewriter", "selector", "expected"),
    [
        ("\\boxed{{{answer}}}", "\\boxed{{{answer}}}", "Judgment: 1", (1.2, 1.2, 1.2)),
        ("\\boxed{{{answer}}}", "no idea", "Judgment: 1", (0.8, 0.0, 0.0)),
        ("no idea", "\\boxed{{{answer}}}", "either", (0.0, 0.8, 0.0)),
    ],
)
async def test_rewards_are_weighted_by_the_outcome(
    solver: str, rewriter: str, selector: str, expected: tuple[float, ...]
) -> None:
    codec = vision_codec()
    policy = reply_by_role({"solver": solver, "rewriter": rewriter, "selector": selector})

    played = await play_roles(
        RefineEnv(solvers=1, rewriters=1), ScriptedEngine(codec, policy), codec, seed=4
    )

    assert tuple(one.reward for one in played.values()) == pytest.approx(expected)
    assert bool(played["selector"].turns[0].parse_error) == (selector == "either")


async def test_later_roles_read_solutions_without_thoughts_and_are_not_asked_for_nothing() -> None:
    codec = vision_codec()
    policy = reply_by_role(
        {"solver": "<think>secret</think>open", "rewriter": "<think>all</think>", "selector": "x"}
    )

    played = await play_roles(
        RefineEnv(solvers=2, rewriters=1), ScriptedEngine(codec, policy), codec, seed=4
    )

    assert list(played) == ["solver-1", "solver-2", "rewriter-1"]
    shown = str(played["rewriter-1"].messages[0])
    assert "open" in shown
    assert "secret" not in shown
    assert {one.reward for one in played.values()} == {0.0}


async def test_solver_that_is_cut_off_leaves_the_others_to_play() -> None:
    codec = vision_codec()
    engine = ScriptedEngine(codec, RefineEnv().oracle())
    endless = ScriptedEngine(codec, lambda context: "word " * 200)

    played = await play_roles(
        RefineEnv,
        engine,
        codec,
        engines={"solver-2": endless},
        seed=1,
        limits=Limits(max_tokens_per_turn=60),
    )

    assert played["solver-2"].stop_reason is StopReason.TURN_TOKENS
    assert played["solver-2"].reward == 0.0
    assert played["selector"].reward == 1.2


async def test_control_tokens_of_one_role_do_not_reach_the_prompt_of_the_next() -> None:
    codec = vision_codec()
    policy = reply_by_role(
        {
            "solver": "<|vision_start|><|image_pad|><|vision_end|><|im_end|>\\boxed{{{answer}}}",
            "rewriter": "<|image_pad|> \\boxed{{{answer}}}",
            "selector": "Judgment: 1",
        }
    )

    played = await play_roles(
        RefineEnv(solvers=1, rewriters=1), ScriptedEngine(codec, policy), codec, seed=4
    )

    later = [one for role, one in played.items() if role != "solver-1"]
    assert all(len(one.images()) == 1 for one in later if not one.is_faulted)


def test_tasks_of_another_environment_can_be_refined() -> None:
    env = RefineEnv(task_env="canary-v0", task_env_kwargs={"turns": 1}, solvers=1, rewriters=1)
    _, info = env.reset(seed=2)
    assert list(info["agents"]) == ["solver-1"]
    steps = steps_of(env, seed=2)
    assert (len(steps), steps[-1].terminated) == (3, True)
    assert sum(step.reward for step in steps) == pytest.approx(3 * 1.2)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be 1 to 64"):
        RefineEnv(solvers=0)
    with pytest.raises(UnknownNameError):
        RefineEnv(task_env="geo4k-v0")
    with pytest.raises(ConfigurationError, match="cannot be built"):
        RefineEnv(task_env="geo3k-v0", task_env_kwargs={"colour": "red"})
    with pytest.raises(ConfigurationError, match="one agent"):
        RefineEnv(task_env="refine-v0", task_env_kwargs={})
    with pytest.raises(ConfigurationError, match="0 to 1"):
        noisy_oracle(2.0)


@given(st.text(max_size=200), st.integers(0, 5))
def test_choice_is_an_index_or_none_whatever_is_written(reply: str, count: int) -> None:
    chosen = read_choice(reply, count)
    assert chosen is None or 0 <= chosen < count


def test_last_judgment_counts() -> None:
    assert read_choice("Judgment: 1? No.\n**Judgment: 2**", 2) == 1
    assert read_choice("judgment:3", 2) is None
