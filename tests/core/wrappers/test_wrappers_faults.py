"""`FaultPlan` and `InjectFaults`: a pure function of seed and call, which a rollout survives."""

import copy
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes.codecs import text_codec
from fakes.envs import AsyncEchoEnv, EchoEnv, register_toys
from fakes.playing import collected
from hypothesis import given, settings
from hypothesis import strategies as st

import envkit
from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import (
    Backoff,
    RetryBudget,
    ScriptedEngine,
    play,
)
from envkit.trajectory import StopReason, Trajectory
from envkit.wrappers import InjectFaults


def dealt(plan: FaultPlan, calls: int = 400) -> list[str | None]:
    return [plan.decide("step", n, attempt=0) for n in range(calls)]


@settings(deadline=None)
@given(rate=st.floats(0, 1), seed=st.integers(0, 9), worst=st.none() | st.integers(0, 3))
def test_a_plan_survives_json_and_deals_the_same_faults(
    rate: float, seed: int, worst: int | None
) -> None:
    plan = FaultPlan(
        {"step": rate, "*": 0.5},
        seed=seed,
        kinds={"step": ["garbage", "429"]},
        schedule={("step", 7, 0): "slow", ("reset", "a", 2): "crashed"},
        worst_attempts=worst,
    )

    again = FaultPlan.from_json(json.loads(json.dumps(plan.to_json())))

    assert dealt(again) == dealt(plan)
    assert again.decide("reset", "a", attempt=2) == "crashed"
    assert again.decide("step", 7, attempt=0) == "slow"


def test_the_share_of_faults_is_the_rate_and_kinds_are_even() -> None:
    plan = FaultPlan(0.3, kinds=("a", "b"))
    found = dealt(plan, 4000)

    assert 0.27 < 1 - found.count(None) / 4000 < 0.33
    assert 0.8 < found.count("a") / found.count("b") < 1.25


def test_another_seed_and_another_attempt_fail_other_calls() -> None:
    assert dealt(FaultPlan(0.5, seed=1)) != dealt(FaultPlan(0.5, seed=2))
    attempts = [FaultPlan(0.5).decide("step", 1, attempt=n) for n in range(64)]
    assert None in attempts
    assert set(attempts) > {None}


def test_worst_attempts_bounds_how_often_a_call_fails() -> None:
    plan = FaultPlan(1.0, worst_attempts=2)

    assert [plan.draw("step", 1) is None for _ in range(4)] == [False, False, True, True]
    assert plan.draw("step", 2) is not None  # another call has its own attempts


def test_a_scope_takes_its_own_rate_and_kinds() -> None:
    plan = FaultPlan({"search": 1.0}, kinds={"search": ["429"]})

    assert plan.decide("search", 1) == "429"
    assert plan.decide("step", 1) is None


def test_threads_that_ask_in_any_order_get_the_same_faults() -> None:
    plan, reference = FaultPlan(0.4, seed=3), FaultPlan(0.4, seed=3)

    def drawn(number: int) -> str | None:
        return plan.draw("step", number, attempt=0)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(drawn, range(500)))

    assert found == [reference.decide("step", n, attempt=0) for n in range(500)]
    assert plan.injected.total() == len(plan.log) == len([kind for kind in found if kind])
    assert {(entry.key[0], entry.kind) for entry in plan.log} == {
        (n, kind) for n, kind in enumerate(found) if kind
    }


def test_a_copy_is_the_plan_itself() -> None:
    plan = FaultPlan(0.5)

    assert copy.deepcopy({"plan": plan})["plan"] is plan
    assert copy.copy(plan) is plan


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rate": 1.5}, "must be 0 to 1, got 1.5"),
        ({"rate": {"step": -0.1}}, "rate of 'step'"),
        ({"rate": 0.1, "kinds": ()}, "at least one, got none"),
        ({"rate": 0.1, "worst_attempts": -1}, "at least 0, got -1"),
    ],
)
def test_a_plan_refuses_what_it_cannot_keep(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        FaultPlan(**arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


FAST = RetryBudget(
    backoff=Backoff(initial_s=0.001, maximum_s=0.002),
    max_env_retries_per_turn=6,
    max_env_retries_per_episode=30,
)


def slow_learner(context: PolicyContext) -> str:
    return context.task["word"] if context.turn == 2 else f"no {context.turn}"


async def played(plan: FaultPlan, episodes: int = 24) -> list[Trajectory]:
    register_toys()
    codec = text_codec()
    stream = collected(
        lambda: InjectFaults(envkit.make("toy-echo-v0"), plan),
        ScriptedEngine(codec, slow_learner), codec,
        episodes=episodes, concurrency=8, retries=FAST, seed=3,
    )  # fmt: skip
    return sorted([t async for t in stream], key=lambda t: t.seed or 0)


async def test_a_rollout_under_faults_plays_the_episodes_of_an_undisturbed_one() -> None:
    plan = FaultPlan(0.3, seed=1, kinds=("transient", "crashed", "delay"), worst_attempts=4)
    calm, rough = await played(FaultPlan(0.0)), await played(plan)

    assert plan.injected["transient"] > 3
    assert plan.injected["crashed"] > 3
    assert [t.task for t in rough] == [t.task for t in calm]
    assert [t.messages for t in rough] == [t.messages for t in calm]
    assert all(t.reward == 1.0 for t in rough)
    assert sum(sum(turn.env_retries.values()) for t in rough for turn in t.turns) > 3


async def test_the_same_seed_meets_the_same_faults_in_another_run() -> None:
    plans = [FaultPlan(0.3, seed=5, worst_attempts=4) for _ in range(2)]
    runs = [await played(plan) for plan in plans]

    logs = [{(e.scope, e.key, e.attempt, e.kind) for e in plan.log} for plan in plans]
    assert logs[0] == logs[1] != set()
    retries = [[turn.env_retries for t in run for turn in t.turns] for run in runs]
    assert retries[0] == retries[1]


@pytest.mark.parametrize("kind", [FaultKind.PERMANENT, FaultKind.GRADER])
async def test_a_fault_that_no_retry_recovers_gives_no_reward(kind: FaultKind) -> None:
    codec = text_codec()
    plan = FaultPlan(schedule={("step", 7, 1, 0): kind})
    engine = ScriptedEngine(codec, slow_learner)

    trajectory = await play(InjectFaults(EchoEnv(), plan), engine, codec, seed=7, retries=FAST)

    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.reward is None
    assert trajectory.fault is not None
    assert trajectory.fault.kind == kind.value


async def test_an_asynchronous_environment_in_the_wrapper_recovers_too() -> None:
    codec = text_codec()
    plan = FaultPlan(schedule={("step", 7, 1, 0): "transient", ("reset", 7, 0): "crashed"})
    env = InjectFaults(AsyncEchoEnv(), plan)

    trajectory = await play(
        lambda: env, ScriptedEngine(codec, slow_learner), codec, seed=7, retries=FAST
    )

    assert trajectory.reward == 1.0
    assert [turn.env_retries for turn in trajectory.turns] == [{}, {"transient": 1}, {}]


def test_half_of_the_failed_steps_have_taken_effect() -> None:
    turns = list[int]()
    for seed in range(40):
        env = InjectFaults(EchoEnv(), FaultPlan({"step": 1.0}, seed=seed))
        env.reset(seed=1)
        with pytest.raises(EnvFault, match="injected fault"):
            env.step("no")
        turns.append(env.unwrapped.turn)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    assert 10 < turns.count(1) < 30


def test_a_delay_answers_late_and_right() -> None:
    env = InjectFaults(EchoEnv(), FaultPlan(1.0, kinds=("delay",)), delay_s=0.05)
    started = time.perf_counter()

    observation, _ = env.reset(seed=1)

    assert time.perf_counter() - started >= 0.05
    assert observation == EchoEnv().reset(seed=1).observation


def test_kinds_that_no_environment_fails_with_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"got \['429'\]"):
        InjectFaults(EchoEnv(), FaultPlan(0.1, kinds=("429",)))
    InjectFaults(EchoEnv(), FaultPlan({"search": 0.1}, kinds={"search": ["429"]}))
