"""`MixEnv`: one environment made of several, which keeps the contract."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fakes.codecs import vision_codec
from fakes.command import run_envkit
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.playing import collected, play_one

import envkit
from envkit.env import Env
from envkit.errors import ConfigurationError, DatasetError, UnknownNameError
from envkit.faults import FaultPlan
from envkit.rollout import (
    Backoff,
    Interrupt,
    RetryBudget,
    ScriptedEngine,
    resume,
)
from envkit.trajectory import StopReason, check_trajectory, load
from envkit.wrappers import InjectFaults, Member, MixEnv

MEMBERS: list[dict[str, Any]] = [
    {"id": "toy-echo-v0", "weight": 1.0},
    {"id": "toy-adder-v0", "weight": 2.0},
    {"id": "toy-dots-v0", "weight": 1.0, "kwargs": {"rounds": 2}},
]


@pytest.fixture(autouse=True)
def _toys() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_toys()
    if "envkit/toy-mix-v0" not in gymnasium.registry:
        envkit.register("toy-mix-v0", entry_point=MixEnv, kwargs={"members": MEMBERS})


def mix() -> MixEnv:
    return MixEnv(MEMBERS)


def test_members_are_drawn_by_weight_with_the_seed() -> None:
    env, again = mix(), mix()
    drawn = [env.reset(seed=seed).info["member"] for seed in range(800)]

    assert [again.reset(seed=seed).info["member"] for seed in range(100)] == drawn[:100]
    shares = {name: count / 800 for name, count in Counter(drawn).items()}
    assert shares == pytest.approx(
        {"toy-echo-v0": 0.25, "toy-adder-v0": 0.5, "toy-dots-v0": 0.25}, abs=0.06
    )


@pytest.mark.parametrize("name", ["toy-mix-v0"])
def test_a_mixture_by_its_id_keeps_the_contract(name: str) -> None:
    report = envkit.check_env(envkit.make(name), episodes=6)

    assert {"determinism", "independence", "snapshot", "replay", "oracle"} <= set(report.passed)
    json.dumps(dict(envkit.spec(name).kwargs))


def test_prompt_tools_and_turns_are_those_of_the_member() -> None:
    env = mix()
    assert env.tools == ()
    assert env.max_turns == 5
    found = dict[str, tuple[Any, ...]]()
    for seed in range(20):
        member = env.reset(seed=seed).info["member"]
        found[member] = (env.system_prompt, [spec.name for spec in env.tools], env.max_turns)

    assert found == {
        "toy-echo-v0": ("Answer with the word only.", [], 3),
        "toy-adder-v0": (None, ["add"], 4),
        "toy-dots-v0": (None, [], 5),
    }


async def test_a_rollout_solves_every_member_also_under_faults() -> None:
    plan = FaultPlan(0.25, kinds=("transient", "crashed"), worst_attempts=3)
    codec = vision_codec()
    stream = collected(
        lambda: InjectFaults(mix(), plan), ScriptedEngine(codec, mix().oracle()), codec,
        episodes=24, group_size=2, concurrency=4, seed=1,
        retries=RetryBudget(
            backoff=Backoff(initial_s=0.001, maximum_s=0.002),
            max_env_retries_per_turn=8, max_env_retries_per_episode=40,
        ),
    )  # fmt: skip
    trajectories = [t async for t in stream]

    assert plan.injected.total() > 10
    assert {t.reward for t in trajectories} == {1.0}
    assert {t.task["member"] for t in trajectories} == {str(entry["id"]) for entry in MEMBERS}
    for trajectory in trajectories:
        assert check_trajectory(trajectory) == ()
        first = trajectory.messages[0]
        assert (first["role"] == "system") == (trajectory.task["member"] == "toy-echo-v0")


async def test_an_aborted_episode_resumes_in_its_member() -> None:
    codec, interrupt = vision_codec(), Interrupt()
    oracle = mix().oracle()
    seed = next(n for n in range(50) if mix().reset(seed=n).info["member"] == "toy-dots-v0")

    def reply(context: Any) -> str:
        if context.turn == 1:
            interrupt.fire(StopReason.ABORTED)
        return oracle(context)

    engine = ScriptedEngine(codec, reply)
    first = await play_one(mix(), engine, codec, seed=seed, interrupt=interrupt)
    whole = await resume(first, mix(), ScriptedEngine(codec, oracle), codec)

    assert first.stop_reason is StopReason.ABORTED
    assert whole.reward == 1.0
    assert len(whole.turns) == 2


def test_promises_are_those_that_all_members_keep() -> None:
    both = MixEnv([{"id": "toy-echo-v0"}, {"id": "toy-async-echo-v0"}])

    assert mix().capabilities.thread_safe
    assert not both.capabilities.thread_safe
    assert both.capabilities.snapshot
    both.reset(seed=1)
    both.close()


def test_wrong_members_and_tasks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="different names"):
        MixEnv([])
    with pytest.raises(ConfigurationError, match="different names"):
        MixEnv([Member(id="toy-echo-v0"), Member(id="toy-echo-v0")])
    with pytest.raises(ConfigurationError, match="fields id, weight, kwargs and name"):
        MixEnv([{"id": "toy-echo-v0", "wieght": 2}])
    with pytest.raises(ConfigurationError, match="greater than 0, got 0"):
        MixEnv([{"id": "toy-echo-v0", "weight": 0}])
    with pytest.raises(UnknownNameError, match="toy-ecko"):
        MixEnv([{"id": "toy-ecko-v0"}])
    with pytest.raises(DatasetError, match="with a name of"):
        mix().reset(options={"task": {"member": "other", "task": {}}})


def test_two_members_of_one_id_have_names() -> None:
    env: Env = MixEnv(
        [
            Member(id="toy-dots-v0", name="short", kwargs={"rounds": 1}),
            Member(id="toy-dots-v0", name="long", kwargs={"rounds": 4}),
        ]
    )
    assert {env.reset(seed=seed).info["member"] for seed in range(20)} == {"short", "long"}


@pytest.mark.slow
def test_rollout_plays_a_registered_mixture_and_verifies_it(tmp_path: Path) -> None:
    outcome = run_envkit(
        "rollout", "toy-mix-v0", "--policy", "oracle", "--model", tiny_model_dir("qwen2_5_vl"),
        "-n", 8, "--group", 2, "--out", tmp_path / "run", "-q",
    )  # fmt: skip
    verified = run_envkit("verify", tmp_path / "run")

    assert (outcome.code, verified.code) == (0, 0), outcome.err + verified.out
    assert {t.reward for t in load(tmp_path / "run")} == {1.0}
