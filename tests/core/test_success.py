"""What success is: declared by an environment, recorded with the trajectory, read everywhere."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from fakes.agents import GuessEnv, guess_engine
from fakes.codecs import text_codec
from fakes.envs import EchoEnv, register_toys
from fakes.playing import collected, play_one, play_roles, resume_one
from fakes.trajectories import Reply, build
from gymnasium.wrappers import TransformReward
from hypothesis import given
from hypothesis import strategies as st

import envkit
from envkit.checker import check_env
from envkit.collection import Collection
from envkit.env import Capabilities, Env, Turn
from envkit.errors import ConfigurationError, ContractError
from envkit.metrics import EpisodeFacts, aggregate
from envkit.metrics.table import summary_rows
from envkit.rollout import ScriptedEngine
from envkit.success import OWN_REWARD
from envkit.trajectory import (
    REWARD_THRESHOLD,
    StopReason,
    Trajectory,
    fork_before,
    load,
    save,
    success_of,
    threshold_of,
)
from envkit.viewer.rows import episode_row
from envkit.wrappers import Curriculum, LevelProgress, RescaleReward, ShapeReward
from envkit.wrappers.mixture import MixEnv

THRESHOLDS = st.sampled_from([-110.0, -1.0, -0.0, 0.0, 0.5, 1.0, 475.0]) | st.floats(-1e6, 1e6)
NO_THRESHOLD = [math.nan, math.inf, -math.inf, True, "1.0", [1.0], 10**400, np.float64("nan")]


class PaysEnv(Env):
    """Pays `pay` in two halves for any reply, and reports `verdicts` if it has any."""

    capabilities = Capabilities(replay_safe=True, deterministic=True)

    def __init__(
        self,
        *,
        pay: float = 1.0,
        verdicts: Any = (),
        max_turns: int = 2,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, render_mode=render_mode)
        self._pay, self._verdicts = pay, verdicts

    def on_reset(self, task: Any) -> Turn:
        return Turn("Say anything.")

    def on_turn(self, response_text: str) -> Turn:
        known = self.turn < len(self._verdicts)
        info = {"is_success": self._verdicts[self.turn]} if known else {}
        return Turn("Next.", reward=self._pay / 2, done=self.turn == 1, info=info)


class MaybeEnv(PaysEnv):
    """Registered without a threshold."""


@pytest.fixture(autouse=True)
def _registered() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_toys({"toy-pays-v0": PaysEnv})
    envkit.register("toy-maybe-v0", MaybeEnv)


async def played(env: Any, **options: Any) -> Trajectory:
    codec = text_codec()
    return await play_one(env, ScriptedEngine(codec, lambda _: "x"), codec, seed=1, **options)


# ---- declaring


@pytest.mark.parametrize("value", NO_THRESHOLD)
def test_threshold_that_is_not_a_finite_number_is_refused_everywhere(value: Any) -> None:
    for declare in (
        lambda: envkit.EnvSpec(id="a-v0", entry_point="a:B", reward_threshold=value),
        lambda: envkit.register("toy-nan-v0", EchoEnv, reward_threshold=value),
        lambda: envkit.make("toy-pays-v0", reward_threshold=value),
        lambda: Curriculum(envkit.make("toy-pays-v0"), LevelProgress([1]), reward_threshold=value),
    ):
        with pytest.raises(ConfigurationError, match="reward_threshold must be a finite number"):
            declare()
    assert "envkit/toy-nan-v0" not in gymnasium.registry


@pytest.mark.parametrize("value", [-110, 0, np.float32(0.5), 1.0])
def test_spec_of_a_made_environment_has_the_threshold_in_force(value: Any) -> None:
    declared = envkit.make("toy-pays-v0")
    assert declared.spec is not None
    assert declared.spec.reward_threshold == declared.reward_threshold == 1.0
    theirs = gymnasium.make("envkit/toy-pays-v0")
    assert theirs.spec is not None
    assert theirs.spec.reward_threshold == 1.0
    made = envkit.make("toy-pays-v0", reward_threshold=value)
    assert made.spec is not None
    assert made.spec.reward_threshold == made.reward_threshold == value
    assert type(made.reward_threshold) is float
    assert envkit.spec("toy-pays-v0").reward_threshold == 1.0
    assert envkit.make("toy-maybe-v0").reward_threshold is None
    assert PaysEnv().reward_threshold is None


def test_gymnasium_sees_the_threshold_of_a_plugin_that_it_loads() -> None:
    for env_id in ("envkit/canary-v0", "envkit/geo3k-v0"):
        spec = gymnasium.make(env_id).spec
        assert spec is not None
        assert spec.reward_threshold == 1.0


def test_members_of_a_collection_have_their_own_thresholds() -> None:
    def of(threshold: Any) -> Collection:
        return Collection(
            entry_point="a:B", argument="name", members=list, reward_threshold=threshold
        )

    assert [of(t).threshold_of("x-v1") for t in (None, -2.0)] == [None, -2.0]
    assert of({"x-v1": 3.0}.get).threshold_of("x-v1") == 3.0
    assert of({"x-v1": 3.0}.get).threshold_of("y-v1") is None


# ---- the verdict


@given(threshold=THRESHOLDS, share=st.sampled_from([-1.0, 0.0, 1.0]))
def test_return_from_the_threshold_on_is_success(threshold: float, share: float) -> None:
    """One of the next floats above and below would be rounding; a millionth is not."""
    step = max(1.0, abs(threshold)) * 1e-6
    rewards = (threshold / 4, threshold - threshold / 4 + share * step)
    one = build([Reply(reward=reward) for reward in rewards])
    assert success_of(one) is None
    declared = replace(one, metadata={REWARD_THRESHOLD: threshold})
    assert success_of(declared) is (share >= 0)
    assert success_of(one, threshold=threshold) is (share >= 0)
    facts = EpisodeFacts.of(declared)
    assert facts.success is (share >= 0)
    assert EpisodeFacts.from_json(facts.to_json()) == facts
    assert episode_row(declared, number=1).is_solved is (share >= 0)


@pytest.mark.parametrize("count", [3, 7, 10, 49])
def test_equal_shares_of_a_reward_add_up_to_its_threshold(count: int) -> None:
    one = build([Reply(reward=1 / count)] * count, metadata={REWARD_THRESHOLD: 1.0})
    assert success_of(one) is True
    short = build([Reply(reward=1 / count)] * (count - 1), metadata={REWARD_THRESHOLD: 1.0})
    assert success_of(short) is False


@pytest.mark.parametrize(
    ("infos", "verdict"),
    [
        (({"is_success": False},), False),
        (({"is_success": True}, {"is_success": False}), False),
        (({"is_success": True}, {}), True),  # the latest that was reported
        (({"is_success": True}, {"is_success": None}), True),
        (({}, {}), True),  # the threshold
        (({"is_success": "no"},), True),  # another program's file: not a verdict
        (({"is_success": 0.5},), True),
    ],
)
def test_term_of_the_environment_comes_before_its_threshold(infos: Any, verdict: bool) -> None:
    one = build([Reply(reward=2.0, info=info) for info in infos], metadata={REWARD_THRESHOLD: 1.0})
    assert success_of(one) is verdict
    assert success_of(one, threshold=99.0) is False  # the caller's threshold comes first


@pytest.mark.parametrize("reason", [StopReason.ENV_FAULT, StopReason.ABORTED])
def test_episode_without_a_reward_is_neither_success_nor_failure(reason: StopReason) -> None:
    known: dict[str, Any] = {"metadata": {REWARD_THRESHOLD: -5.0}, "stop_reason": reason}
    one = build([Reply(reward=1.0, info={"is_success": True})], **known)
    assert success_of(one) is None
    assert success_of(one, threshold=-5.0) is None
    assert not {"success/rate", "success/episodes"} & set(aggregate([one]))


def test_truncated_episode_is_judged_by_its_return() -> None:
    known: dict[str, Any] = {"metadata": {REWARD_THRESHOLD: 1.0}}
    known["stop_reason"] = StopReason.MAX_TURNS
    assert success_of(build([Reply(reward=0.5)], **known)) is False
    assert success_of(build([Reply(reward=1.5)], **known)) is True


@pytest.mark.parametrize("junk", ["1.0", True, None, math.nan, 10**400, [], {}])
def test_metadata_that_is_not_a_threshold_is_none(junk: object) -> None:
    one = build([Reply(reward=1.0)], metadata={REWARD_THRESHOLD: junk})
    assert threshold_of(one) is None
    assert success_of(one) is None


def test_metrics_name_the_episodes_that_success_is_about(tmp_path: Any) -> None:
    rewards = (0.0, 1.0, 1.0)
    declared: dict[str, Any] = {"metadata": {REWARD_THRESHOLD: 1.0}}
    judged = [build([Reply(reward=r)], episode_id=str(r), **declared) for r in rewards]
    others = [build([Reply(reward=1.0)], episode_id=f"old-{n}") for n in range(2)]
    save([*judged, *others], tmp_path / "run.jsonl")
    metrics = aggregate(load(tmp_path / "run.jsonl"))
    assert metrics["success/rate"] == pytest.approx(2 / 3)
    assert metrics["success/episodes"] == 3
    assert metrics["reward/mean"] == pytest.approx(4 / 5)
    text = dict(summary_rows(metrics))["reward"]
    assert text.endswith("solved 66.7% of 3; no reward threshold is declared for 2")
    undeclared = dict(summary_rows(aggregate(others)))["reward"]
    assert undeclared.endswith("no reward threshold is declared, so success is undefined")
    assert "%" not in undeclared


# ---- playing


async def test_rollout_records_the_threshold_that_was_in_force() -> None:
    one = await played(envkit.make("toy-pays-v0", reward_threshold=-3))
    assert (threshold_of(one), success_of(one)) == (-3.0, True)
    other = await played(envkit.make("toy-pays-v0", pay=0.5), metadata={"mine": 1})
    assert other.metadata == {"mine": 1, REWARD_THRESHOLD: 1.0}
    assert success_of(other) is False
    undeclared = await played(envkit.make("toy-maybe-v0"), metadata={"mine": 1})
    assert undeclared.metadata == {"mine": 1}
    assert success_of(undeclared) is None


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ((np.bool_(False), np.bool_(True)), True),
        ((True, np.float32(0.0)), False),
        ((1, 0), False),
        ((None, 1.0), True),
    ],
)
async def test_rollout_stores_the_term_as_a_bool(verdicts: Any, found: bool) -> None:
    one = await played(envkit.make("toy-maybe-v0", verdicts=verdicts))
    assert one.turns[-1].info["is_success"] is found
    assert success_of(one) is found


@pytest.mark.parametrize("value", ["yes", 2, 0.5, math.nan, [True], np.array([True, False])])
async def test_term_that_is_not_a_verdict_is_the_authors_fault(value: Any) -> None:
    one = await played(envkit.make("toy-maybe-v0", verdicts=(value,)))
    assert one.stop_reason is StopReason.ENV_FAULT
    assert one.fault is not None
    assert "info['is_success'] must be a bool" in one.fault.message
    assert (one.reward, success_of(one)) == (None, None)
    env = MaybeEnv(verdicts=(value,))
    env.reset(seed=1)
    with pytest.raises(ContractError, match="is_success"):
        env.step("x")
    with pytest.raises(ContractError, match=r"info\['is_success'\] must be a bool"):
        check_env(MaybeEnv(verdicts=(value,)))


def _triple(reward: Any) -> float:
    return 3.0 * float(reward) + 1


def _grows(env: Env) -> float:
    return 7.0 + env.turn


WRAPS: dict[str, list[Any]] = {
    "none": [],
    "scaled": [partial(RescaleReward, scale=10.0)],
    "negated": [partial(RescaleReward, scale=-1.0, shift=-5.0)],
    "clipped": [partial(RescaleReward, high=0.1)],
    "shaped": [partial(ShapeReward, potential=_grows)],
    "gymnasium": [partial(TransformReward, func=_triple)],
    "stacked": [partial(RescaleReward, scale=0.0), partial(RescaleReward, shift=1.0)],
}


def wrapped_pays(name: str, pay: float) -> Any:
    def build() -> Any:
        env: Any = envkit.make("toy-pays-v0", pay=pay)
        for wrap in WRAPS[name]:
            env = wrap(env)
        return env

    return build


@pytest.mark.parametrize("pay", [0.5, 1.0])
@pytest.mark.parametrize("name", WRAPS)
async def test_wrappers_change_the_reward_and_not_the_verdict(name: str, pay: float) -> None:
    one = await played(wrapped_pays(name, pay))
    assert success_of(one) is (pay >= 1.0)
    changed = one.reward != pay
    assert changed is (name != "none")
    assert all((OWN_REWARD in turn.info) is changed for turn in one.turns)


async def test_environment_without_a_known_own_reward_keeps_what_wrappers_return() -> None:
    class Own(PaysEnv):
        def step(self, action: str) -> Any:
            return super().step(action)._replace(reward=0.25)

    own: Any = gymnasium.wrappers.TimeLimit(Own(), 5)
    one = await played(own)
    assert one.reward == 0.5


async def test_member_of_a_mixture_has_its_own_threshold() -> None:
    members = [
        {"id": "toy-pays-v0", "kwargs": {"pay": 0.25, "reward_threshold": 0.25}, "name": "easy"},
        {"id": "toy-pays-v0", "kwargs": {"pay": 0.25}, "name": "hard"},
        {"id": "toy-maybe-v0", "name": "open"},
    ]
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda _: "x")
    env = lambda: MixEnv(members)  # noqa: E731
    found = {
        one.reset_info["member"]: (threshold_of(one), success_of(one))
        async for one in collected(env, engine, codec, episodes=40, seed=3)
    }
    assert found == {"easy": (0.25, True), "hard": (1.0, False), "open": (None, None)}


def _fine_all(roles: Mapping[str, Trajectory]) -> dict[str, float]:
    return dict.fromkeys(roles, -4.0)


async def test_roles_are_judged_by_their_own_rewards_before_adjustment() -> None:
    envkit.register("toy-judged-guess-v0", GuessEnv, reward_threshold=0.5)
    codec = text_codec()
    for adjust in (None, _fine_all):
        env = envkit.make("toy-judged-guess-v0")
        roles = await play_roles(env, guess_engine(), codec, seed=1, adjust_rewards=adjust)
        assert {name: success_of(one) for name, one in roles.items()} == {
            "asker": True, "keeper": True,
        }  # fmt: skip
        assert (roles["asker"].reward == -4.0) is (adjust is not None)


async def test_fork_is_judged_by_its_whole_branch_and_todays_threshold() -> None:
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda _: "x")
    whole = await played(envkit.make("toy-pays-v0", verdicts=(True, True)))
    fork = fork_before(whole, 1, episode_id="fork")
    assert success_of(fork) is None  # nothing is decided before it ends
    env = envkit.make("toy-pays-v0", reward_threshold=2.0)
    played_on = await resume_one(fork, env, engine, codec)
    assert played_on.reward == 1.0
    assert threshold_of(played_on) == 2.0
    assert success_of(played_on) is True  # the latest term that was reported, before the fork
    plain = fork_before(await played(envkit.make("toy-pays-v0")), 1, episode_id="plain")
    for threshold, verdict in ((2.0, False), (1.0, True)):
        env = envkit.make("toy-pays-v0", reward_threshold=threshold)
        assert success_of(await resume_one(plain, env, engine, codec)) is verdict


async def test_curriculum_needs_a_declared_success() -> None:
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda _: "x")
    progress = LevelProgress([1.0, 2.0], window=2)
    open_env = lambda: Curriculum(envkit.make("toy-maybe-v0"), progress, argument="pay")  # noqa: E731
    one = await play_one(open_env, engine, codec, seed=1)
    assert one.fault is not None
    assert "no reward threshold is declared: pass reward_threshold=REWARD" in one.fault.message
    assert progress.count == 0


@pytest.mark.parametrize(("verdicts", "level"), [((True, False), 1.0), ((False, True), 2.0)])
async def test_curriculum_takes_the_term_and_the_reward_inside_wrappers(
    verdicts: Any, level: float
) -> None:
    codec = text_codec()
    engine = ScriptedEngine(codec, lambda _: "x")
    progress = LevelProgress([1.0, 2.0], window=2)
    env = lambda: Curriculum(  # noqa: E731
        envkit.make("toy-maybe-v0", verdicts=verdicts), progress, argument="pay"
    )
    runs = collected(env, engine, codec, episodes=2, seed=1, concurrency=1)
    assert len([one async for one in runs]) == 2
    assert progress.level == level
    scaled = LevelProgress([1.0, 2.0], window=2)
    inside = lambda: Curriculum(  # noqa: E731
        RescaleReward(envkit.make("toy-pays-v0"), scale=0.0), scaled, argument="pay"
    )
    runs = collected(inside, engine, codec, episodes=2, seed=1, concurrency=1)
    assert len([one async for one in runs]) == 2
    assert scaled.level == 2.0
