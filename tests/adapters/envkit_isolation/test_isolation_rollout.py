"""Rollouts of isolated environments: the same trajectories, recovered crashes, no lost run."""

import functools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.hearing import Hearing, thinking_codec
from fakes.isolated_envs import Harmful, dies_once
from fakes.processes import children, is_alive, wait_until_gone

from envkit import rollout
from envkit.env import Policy, PolicyContext
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.tokens import ChatCodec
from envkit.trajectory import StopReason, Trajectory
from envkit_isolation import isolated
from envkit_isolation.process import close_supervisors
from envkit_isolation.supervisor import descendants

QUICK = rollout.RetryBudget(
    step_timeout_s=0.5,
    reset_timeout_s=30,
    backoff=rollout.Backoff(initial_s=0.001, maximum_s=0.002),
    max_env_retries_per_turn=1,
    max_episode_restarts=0,
)
PATIENT = replace(QUICK, step_timeout_s=60)


@pytest.fixture(scope="module", autouse=True)
def _no_supervisor_left() -> Iterator[None]:
    yield
    close_supervisors()


def content_of(trajectory: Trajectory) -> list[Any]:
    """Return all that a trainer or a reader of the record could tell apart."""
    return [
        trajectory.stop_reason,
        trajectory.reward,
        trajectory.train_ids(),
        trajectory.loss_mask(),
        trajectory.messages,
        trajectory.task,
        trajectory.initial_observation_hash,
        [
            (turn.response_text, turn.observation_hash, turn.reward, turn.info)
            for turn in trajectory.turns
        ],
        [image.png_bytes() for segment in trajectory.segments for image in segment.images],
    ]


def policy_of(factory: Any, name: str = "oracle") -> Policy:
    env = factory()
    try:
        return env.oracle() if name == "oracle" else env.policies[name]()
    finally:
        env.close()


@pytest.mark.parametrize("env_id", ["canary-v0", pytest.param("geo3k-v0", marks=pytest.mark.slow)])
async def test_isolated_crash_is_recovered_to_the_trajectory_without_isolation(
    env_id: str, tmp_path: Path
) -> None:
    codec, source, mark = vision_codec(), rollout.EnvSource(env_id), tmp_path / "died"
    direct = await rollout.play(
        source, rollout.ScriptedEngine(codec, policy_of(source)), codec, seed=11
    )
    factory = isolated(functools.partial(dies_once, env_id, str(mark)))
    engine = rollout.ScriptedEngine(codec, policy_of(factory))
    crashed = await rollout.play(factory, engine, codec, retries=PATIENT, seed=11)
    assert crashed.fault is None
    assert direct.reward == 1.0
    assert crashed.turns[1].env_retries == {"crashed": 1}
    assert content_of(crashed) == content_of(direct)
    assert wait_until_gone([int(mark.read_text())]) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["oracle", "noisy-oracle"])
async def test_isolated_policies_of_several_agents_run_in_the_worker(policy: str) -> None:
    codec, source = vision_codec(), rollout.EnvSource("refine-v0")
    sides: list[tuple[Literal["none", "process"], Any]] = [
        ("none", source),
        ("process", isolated(source)),
    ]
    played = [
        [
            content_of(trajectory)
            async for trajectory in rollout.collect(
                source.env_id,
                rollout.ScriptedEngine(codec, policy_of(factory, policy)),
                codec,
                episodes=1,
                config=rollout.RolloutConfig(seed=3, isolation=isolation),
            )
        ]
        for isolation, factory in sides
    ]
    assert len(played[0]) > 1
    assert played[0] == played[1]


async def hang_or_exit(codec: ChatCodec, reply: str) -> Trajectory:
    engine = rollout.ScriptedEngine(codec, lambda context: reply if context.turn == 1 else "fine")
    return await rollout.play(isolated(Harmful), engine, codec, retries=QUICK, seed=5)


@pytest.mark.slow
async def test_isolated_hang_costs_its_episode_and_leaves_nothing() -> None:
    codec = text_codec()
    before = threading.active_count()
    hung = await hang_or_exit(codec, "hang")
    assert hung.stop_reason is StopReason.ENV_FAULT
    assert hung.fault is not None
    assert hung.fault.kind == "timeout"
    assert hung.reward is None
    workers = [pid for child in children() for pid in descendants(child, limit=99)]
    assert [pid for pid in workers if is_alive(pid)] == []
    for thread in threading.enumerate():
        if thread.name.startswith("envkit-pool"):
            thread.join(120)
    assert threading.active_count() <= before


@pytest.mark.slow
async def test_isolated_exits_cost_only_the_episodes_they_happen_in() -> None:
    codec = text_codec()

    def policy(context: PolicyContext) -> str:
        harm = ("exit", "sys.exit", "kill")[context.seed % 3]
        return harm if context.turn == 1 and context.seed % 2 else "fine"

    found = [
        trajectory
        async for trajectory in rollout.collect(
            Harmful,
            rollout.ScriptedEngine(codec, policy),
            codec,
            episodes=8,
            concurrency=2,
            config=rollout.RolloutConfig(retries=PATIENT, seed=1, isolation="process"),
        )
    ]
    assert len(found) == 8
    reasons = {trajectory.stop_reason for trajectory in found}
    assert reasons == {StopReason.ENV_FAULT, StopReason.ENV_TRUNCATED}
    for trajectory in found:
        assert (trajectory.reward is None) == trajectory.is_faulted


@pytest.mark.slow
async def test_isolated_oracle_is_refused_for_another_environment() -> None:
    factory = isolated(rollout.EnvSource("canary-v0"))
    env = factory()
    try:
        with pytest.raises(AttributeError, match="'dialect' of the environment is in its worker"):
            _ = cast(Any, env).dialect
        with pytest.raises(UnknownNameError, match="oracle"):
            env._policy("orakle")
        direct = rollout.EnvSource("canary-v0")()
        context = PolicyContext(env=cast(Any, direct), task={}, turn=0, messages=[], seed=0)
        with pytest.raises(ConfigurationError, match="isolated environment"):
            env.oracle()(context)
    finally:
        env.close()


async def test_a_worker_hears_how_each_reply_ended() -> None:
    def say(context: PolicyContext) -> str:
        return "gold and many more words than the limit allows" if context.turn % 2 else "gold"

    codec = thinking_codec()
    records: list[Trajectory] = []
    for build in (Hearing, isolated(Hearing)):
        engine = rollout.ScriptedEngine(codec, say)
        sampling = rollout.Sampling(max_new_tokens=6)
        records.append(await rollout.play(build, engine, codec, sampling=sampling, seed=1))
    plain, apart = records
    assert [turn.info["finish"] for turn in apart.turns] == ["stop", "length"] * 2
    assert [turn.info["thinking"] != "" for turn in apart.turns] == [True] * 4
    assert [turn.parse_error for turn in apart.turns] == [None, "cut"] * 2
    assert content_of(apart) == content_of(plain)
