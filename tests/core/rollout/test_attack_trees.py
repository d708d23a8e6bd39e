"""Trees under attack: odd branchings and numbers, replays that fail, records that leak."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.agents import GuessEnv
from fakes.branching import Saved, Screens
from fakes.codecs import vision_codec
from fakes.templates import make_codec
from fakes.trees import (
    ONE_RETRY,
    SavedSums,
    SlowSums,
    Sums,
    digit,
    drifts,
    fails,
    grow,
    make_player,
    nothing,
    planned,
    sleeps,
)

from envkit.errors import ConfigurationError, FaultKind
from envkit.rollout import (
    AtTurns,
    ByEntropy,
    EpisodeSpec,
    GenerateRequest,
    Generation,
    Limits,
    Player,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.trajectory import (
    FaultPlace,
    SegmentKind,
    StopReason,
    Trajectory,
    check_trajectory,
    save,
    verify_file,
)


@dataclass
class Chosen:
    """A third party's branching, which returns whatever it was given."""

    turns: Any
    width: Any = 2

    def turns_of(self, trunk: Trajectory) -> Any:
        if isinstance(self.turns, Exception):
            raise self.turns
        return self.turns


def refused_before_the_first_reply() -> tuple[Player, list[str]]:
    """Return a player, and the requests that reach its engine."""
    seen: list[str] = []

    def latency(request: GenerateRequest) -> float:
        seen.append(request.request_id)
        return 0.0

    return make_player(latency=latency), seen


def own_turns(leaves: tuple[Trajectory, ...]) -> int:
    return sum(len(leaf.own_turns) for leaf in leaves)


@pytest.mark.parametrize(
    "turns",
    [[2, 1], (1, 1, 2, 2), np.array([2, 1, 1]), iter([1, 2]), {1, 2, 99}, [np.int64(1), 2, 4]],
    ids=["list", "tuple", "array", "iterator", "set", "numpy integers"],
)
async def test_turns_in_any_order_and_repeated_fork_once_each(turns: Any) -> None:
    expected = await grow()
    leaves = await grow(branching=Chosen(turns))
    assert [leaf.episode_id for leaf in leaves] == [leaf.episode_id for leaf in expected]
    assert [leaf.train_ids() for leaf in leaves] == [leaf.train_ids() for leaf in expected]


@pytest.mark.parametrize("turns", [[], [4], [99], {10**30}])
async def test_turns_after_the_end_fork_nothing(turns: Any) -> None:
    assert len(await grow(branching=Chosen(turns))) == 1


@pytest.mark.parametrize(
    "turns",
    [[-1], [1.0], [True], "12", None, 3, [[1]], [1, None], RuntimeError("no idea")],
    ids=repr,
)
async def test_what_is_no_turn_is_refused_after_the_trunk_was_delivered(turns: Any) -> None:
    delivered: list[Trajectory] = []
    with pytest.raises(ConfigurationError, match=r"Chosen\.turns_of") as caught:
        await grow(branching=Chosen(turns), on_leaf=delivered.append)
    assert [leaf.stop_reason for leaf in delivered] == [StopReason.TERMINATED]
    if isinstance(turns, Exception):
        assert caught.value.__cause__ is turns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"branching": Chosen([1], width)}, "width=") for width in (1, -3, True, 2.5, "2", None)),
        ({"branching": AtTurns}, "width="),
        ({"branching": None}, "such as AtTurns"),
        ({"branching": (1, 2)}, "such as AtTurns"),
        *(({"token_budget": value}, "token_budget") for value in (0, -1, True, 1.5, "9")),
        *(({"concurrency": value}, "concurrency") for value in (0, None, False)),
        ({"on_leaf": "later"}, "on_leaf must be a function"),
        ({"env": "canary-v0"}, "an environment, a function"),
        ({"env": None}, "an environment, a function"),
    ],
)
async def test_invalid_setting_is_refused_before_the_trunk(
    options: dict[str, Any], message: str
) -> None:
    player, seen = refused_before_the_first_reply()
    with pytest.raises(ConfigurationError, match=message):
        await grow(player=player, **options)
    assert seen == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AtTurns(turns=1), "counted from 0"),  # pyright: ignore[reportArgumentType]
        (lambda: AtTurns(turns=(True,)), "counted from 0"),
        (lambda: AtTurns(turns=(1.5,)), "counted from 0"),  # pyright: ignore[reportArgumentType]
        (lambda: AtTurns(turns="1"), "counted from 0"),  # pyright: ignore[reportArgumentType]
        (lambda: AtTurns(turns=(1,), width=True), "width=True"),
        (lambda: ByEntropy(forks=True), "forks=True"),
        (lambda: ByEntropy(forks=1.5), "forks=1.5"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_branching_refuses_what_is_no_integer(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("env", [GuessEnv, GuessEnv()], ids=["function", "instance"])
@pytest.mark.parametrize("was_played", [False, True])
async def test_several_agents_are_refused_before_the_trunk(env: Any, was_played: bool) -> None:
    player, seen = refused_before_the_first_reply()
    if was_played:  # one that once succeeded does not turn the refusal into a fault
        await player.play(env, EpisodeSpec(seed=1))
        seen.clear()
    with pytest.raises(ConfigurationError, match="one agent"):
        await grow(env, player=player)
    assert seen == []


async def test_engine_without_token_ids_is_refused_before_the_trunk() -> None:
    seen: list[str] = []

    def latency(request: GenerateRequest) -> float:
        seen.append(request.request_id)
        return 0.0

    player = Player(ScriptedEngine(make_codec("qwen3"), digit, latency=latency), None)
    with pytest.raises(ConfigurationError, match="token ledger"):
        await grow(player=player)
    assert seen == []


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_turns=3),
        Limits(max_sampled_tokens=5),
        Limits(max_response_tokens=40),
        Limits(max_context_tokens=60),
        Limits(max_tokens_per_turn=1),
    ],
    ids=lambda limits: next(k for k, v in asdict(limits).items() if v is not None),
)
async def test_fork_that_replies_like_its_trunk_ends_where_the_trunk_ended(limits: Limits) -> None:
    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, lambda _: "1"), codec, RolloutConfig(limits=limits))
    leaves = await grow(player=player, branching=AtTurns(turns=(0, 1, 2)))
    assert len(leaves) > 1
    for leaf in leaves:
        assert leaf.stop_reason is leaves[0].stop_reason is not StopReason.TERMINATED
        assert leaf.train_ids() == leaves[0].train_ids()


# Replay and restore


async def forked(
    env: Any, place: str, *calls: Any, is_retried: bool, **settings: Any
) -> Trajectory:
    """Fork once before turn 2, with calls of the environment planned; return the fork."""
    player = make_player(retries=ONE_RETRY, **settings) if is_retried else make_player(**settings)
    with planned(place, *calls):
        trunk, fork = await grow(env, player=player, branching=AtTurns(turns=(2,)))
    assert trunk.fault is None, trunk.fault
    assert fork.origin is not None
    assert fork.own_turns or fork.fault
    return fork


@pytest.mark.parametrize("kind", [FaultKind.TRANSIENT, FaultKind.TIMEOUT, FaultKind.CRASHED])
@pytest.mark.parametrize(
    ("env", "place"), [(Sums, "turn 1"), (Sums, "turn 0"), (Sums, "reset"), (SavedSums, "restore")]
)
async def test_infrastructure_fault_while_state_is_rebuilt_is_retried(
    env: type[Sums], place: str, kind: FaultKind
) -> None:
    first = () if place == "restore" else (nothing,)  # the trunk's own call
    fork = await forked(env, place, *first, fails(kind), is_retried=True)
    assert fork.fault is None, fork.fault
    assert fork.reward == sum(int(turn.response_text) for turn in fork.turns) / 10
    assert check_trajectory(fork) == ()


@pytest.mark.parametrize(("env", "place"), [(Sums, "turn 1"), (SavedSums, "restore")])
async def test_infrastructure_fault_beyond_the_budget_ends_the_fork_at_its_snapshot(
    env: type[Sums], place: str
) -> None:
    first = () if place == "restore" else (nothing,)
    trouble = fails(FaultKind.TRANSIENT)
    fork = await forked(env, place, *first, trouble, trouble, is_retried=True)
    assert fork.fault is not None
    assert (fork.fault.where, fork.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.TRANSIENT)
    assert fork.reward is None


@pytest.mark.parametrize("turn", [0, 1])
async def test_replay_that_differs_is_a_fault_that_names_the_turn(turn: int) -> None:
    fork = await forked(Sums, f"turn {turn}", nothing, drifts, is_retried=True)
    assert fork.fault is not None
    assert (fork.fault.where, fork.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.PERMANENT)
    assert f"at turn {turn}" in fork.fault.message
    assert fork.trained_token_count == 0


async def test_slow_replay_of_a_blamed_step_is_retried_and_never_truncates() -> None:
    budget = replace(ONE_RETRY, step_timeout_s=0.2)
    player = make_player(retries=budget)
    with planned("turn 1", nothing, sleeps(0.6)):
        _, fork = await grow(SlowSums, player=player, branching=AtTurns(turns=(2,)))
    assert fork.stop_reason is StopReason.TERMINATED, fork.fault
    with planned("turn 1", nothing, sleeps(0.6), sleeps(0.6)):
        player = make_player(retries=budget)
        _, fork = await grow(SlowSums, player=player, branching=AtTurns(turns=(2,)))
    assert fork.fault is not None
    assert (fork.fault.where, fork.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.TIMEOUT)
    assert "turn 1" in fork.fault.message
    assert fork.reward is None


async def test_slow_step_of_a_branch_ends_that_branch_alone() -> None:
    player = make_player(retries=replace(ONE_RETRY, step_timeout_s=0.2))
    with planned("turn 2", nothing, sleeps(0.6)):
        trunk, *forks = await grow(
            SlowSums(), player=player, branching=AtTurns(turns=(1,), width=3)
        )
    assert trunk.stop_reason is StopReason.TERMINATED
    assert [one.stop_reason for one in forks] == [StopReason.STEP_TIMEOUT, StopReason.TERMINATED]


async def test_snapshot_that_cannot_be_restored_faults_the_fork_alone() -> None:
    def breaks(_: Sums) -> None:
        raise KeyError("total")

    with planned("restore", breaks):
        trunk, first, second = await grow(SavedSums(), branching=AtTurns(turns=(1,), width=3))
    assert trunk.fault is None
    assert first.fault is not None
    assert (first.fault.where, first.fault.kind) == (FaultPlace.SNAPSHOT, FaultKind.PERMANENT)
    assert first.initial_observation_hash == trunk.initial_observation_hash
    assert second.fault is None


@pytest.mark.slow
async def test_deadline_holds_for_each_branch_and_ends_that_branch_alone() -> None:
    def latency(request: GenerateRequest) -> float:
        context = request.context
        assert context is not None
        return 30.0 if request.session_id.endswith(".2") and context.turn == 3 else 0.06

    player = make_player(latency=latency, limits=Limits(episode_timeout_s=0.5))
    leaves = await grow(Sums(), player=player, branching=AtTurns(turns=(1,), width=4))
    assert [leaf.stop_reason for leaf in leaves] == [
        StopReason.TERMINATED,
        StopReason.TERMINATED,
        StopReason.ENGINE_FAULT,
        StopReason.TERMINATED,
    ]


async def test_engine_that_fails_in_one_branch_faults_that_leaf_alone() -> None:
    class Failing(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            if request.session_id == "tree.1.1":
                raise RuntimeError("no memory")
            return await super().generate(request)

    codec = make_codec("qwen3")
    player = Player(Failing(codec, digit), codec)
    leaves = await grow(player=player, branching=AtTurns(turns=(1,), width=3))
    assert [leaf.stop_reason for leaf in leaves] == [
        StopReason.TERMINATED,
        StopReason.ENGINE_FAULT,
        StopReason.TERMINATED,
    ]


# Records


class Reporting(ScriptedEngine):
    """Reports nested data with each reply."""

    async def generate(self, request: GenerateRequest) -> Generation:
        answer = await super().generate(request)
        return replace(answer, extras={"experts": {"layers": [1, 2]}})


async def with_nested_data(env: Any) -> tuple[Trajectory, ...]:
    codec = make_codec("qwen3")
    task = {"board": {"cells": [1, 2]}}
    metadata = {"note": {"tags": ["a"]}}
    spec = EpisodeSpec(seed=7, task=task, metadata=metadata)
    player = Player(Reporting(codec, digit), codec)
    return await grow(env, player=player, spec=spec, branching=AtTurns(turns=(2,), width=3))


def poison(value: Any) -> None:
    """Change every dict and list inside."""
    if isinstance(value, dict):
        for item in list(value.values()):
            poison(item)
        value["poison"] = True
    elif isinstance(value, list):
        for item in value:
            poison(item)
        value.append("poison")
    elif isinstance(value, tuple):
        for item in value:
            poison(item)


@pytest.mark.parametrize("env", [Sums, Sums(), SavedSums], ids=["replay", "single", "snapshot"])
@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_changing_one_leaf_leaves_its_siblings_alone(env: Any, victim: int) -> None:
    leaves = await with_nested_data(env)
    others = [leaf for n, leaf in enumerate(leaves) if n != victim]
    before = repr(others)
    leaf = leaves[victim]
    poison([leaf.task, leaf.metadata, leaf.reset_info, leaf.messages])
    for turn in leaf.turns:
        poison([turn.info, turn.tool_call, turn.env_retries])
    for segment in leaf.segments:
        poison(segment.extras or None)
    assert repr(others) == before


async def test_forks_begin_with_the_bytes_of_their_parent() -> None:
    codec = vision_codec()
    player = Player(ScriptedEngine(codec, digit), codec)
    leaves = await grow(lambda: Screens(images=True), player=player)
    by_id = {leaf.episode_id: leaf for leaf in leaves}
    for leaf in leaves[1:]:
        assert leaf.origin is not None
        parent = by_id[leaf.origin.episode_id]
        for n in range(leaf.origin.segments):
            mine, theirs = leaf.segments[n], parent.segments[n]
            assert mine.wire_ids == theirs.wire_ids
            assert mine.train_ids == theirs.train_ids
            assert mine.logprobs == theirs.logprobs
            assert [one.sha256 for one in mine.images] == [one.sha256 for one in theirs.images]
            assert [id(one) for one in mine.images] == [id(one) for one in theirs.images]
        assert leaf.messages[: 2 * leaf.origin.turns] == parent.messages[: 2 * leaf.origin.turns]


async def test_by_entropy_leaves_out_replies_whose_logprobs_are_all_zero() -> None:
    trunk, *forks = await grow(branching=ByEntropy(forks=9))
    assert forks == []  # a script's replies are certain
    known = tuple(
        replace(one, logprobs=[-0.5] * one.token_count, loss_mask=None)
        if one.kind is SegmentKind.MODEL and one.turn == 3
        else one
        for one in trunk.segments
    )
    assert list(ByEntropy(forks=9).turns_of(replace(trunk, segments=known))) == [3]


async def test_forks_draw_other_samples_than_their_siblings() -> None:
    seeds: dict[str, set[int | None]] = {}

    def latency(request: GenerateRequest) -> float:
        seeds.setdefault(request.session_id, set()).add(request.sampling.seed)
        return 0.0

    player = make_player(latency=latency, sampling={"seed": 3})
    await grow(player=player, branching=AtTurns(turns=(1,), width=4))
    drawn = [seed for found in seeds.values() for seed in found]
    assert len(seeds) == 4
    assert None not in drawn
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("env", [Screens, Saved])
@pytest.mark.slow
async def test_tree_of_isolated_environments_equals_the_local_one(
    env: type[Screens], tmp_path: Path
) -> None:
    local = await grow(env)
    isolated = await grow(env, player=make_player(isolation="process"))
    assert [leaf.fault for leaf in isolated] == [None] * 4
    assert [leaf.train_ids() for leaf in isolated] == [leaf.train_ids() for leaf in local]
    assert [leaf.reward for leaf in isolated] == [leaf.reward for leaf in local]
    save(isolated, tmp_path / "trajectories.jsonl")
    assert verify_file(tmp_path / "trajectories.jsonl").is_sound
    with pytest.raises(ConfigurationError, match="needs a function"):
        await grow(env(), player=make_player(isolation="process"))


async def test_forks_at_once_are_bounded() -> None:
    running, most = 0, 0

    class Watched(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.002)
            try:
                return await super().generate(request)
            finally:
                running -= 1

    codec = make_codec("qwen3")
    player = Player(Watched(codec, digit), codec)
    leaves = await grow(player=player, branching=AtTurns(turns=(1,), width=9), concurrency=3)
    assert len(leaves) == 9
    assert most == 3
