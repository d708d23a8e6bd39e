"""Tree rollouts: forks share the trunk's tokens, which one leaf alone trains."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.branching import Saved, Screens
from fakes.codecs import vision_codec
from fakes.templates import make_codec
from fakes.trees import SavedSums, Sums, digit, grow, make_player

from envkit.env import Capabilities, Turn
from envkit.errors import ConfigurationError
from envkit.rollout import (
    AtTurns,
    EpisodeSpec,
    GenerateRequest,
    Generation,
    Limits,
    Player,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.tasks import Task
from envkit.trajectory import (
    SegmentKind,
    StopReason,
    Trajectory,
    check_trajectory,
    fork_before,
    save,
    verify_file,
)


class Fixed(Sums):
    """Can be neither saved nor replayed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)
    resets: ClassVar[int] = 0

    def on_reset(self, task: Task) -> Turn:
        type(self).resets += 1
        return super().on_reset(task)


@pytest.mark.parametrize("env", [Sums, SavedSums, Sums()], ids=["replay", "snapshot", "single"])
async def test_play_tree_forks_two_by_two(env: Any) -> None:
    leaves = await grow(env)
    assert [leaf.fault for leaf in leaves] == [None] * 4
    assert len({leaf.episode_id for leaf in leaves}) == 4
    assert len({leaf.group_id for leaf in leaves}) == 1
    for leaf in leaves:
        assert leaf.stop_reason is StopReason.TERMINATED
        digits = [int(turn.response_text) for turn in leaf.turns]
        assert leaf.reward == sum(digits) / 10
        assert check_trajectory(leaf) == ()
    assert len({tuple(turn.response_text for turn in leaf.turns) for leaf in leaves}) > 1


@pytest.mark.parametrize("is_built", [False, True])
async def test_play_tree_refuses_an_environment_that_cannot_go_back(is_built: bool) -> None:
    env, Fixed.resets = Fixed(), 0
    with pytest.raises(ConfigurationError, match="Fixed declares neither snapshot"):
        await grow(env if is_built else lambda: env, branching=AtTurns(turns=(1,), width=3))
    assert Fixed.resets == 0  # no episode started


@pytest.mark.parametrize("turn", [-1, 4])
async def test_fork_before_refuses_a_missing_turn(turn: int) -> None:
    (trunk, *_) = await grow(Sums)
    with pytest.raises(ConfigurationError, match="counted from 0"):
        fork_before(trunk, turn, episode_id="other")


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
            assert mine.array("wire_ids") is theirs.array("wire_ids")
            assert mine.train_ids == theirs.train_ids
            assert not any(mine.loss_mask)
            assert mine.logprobs == theirs.logprobs
            assert [one.sha256 for one in mine.images] == [one.sha256 for one in theirs.images]
            assert [id(one) for one in mine.images] == [id(one) for one in theirs.images]
        assert leaf.segments[leaf.origin.segments].kind is SegmentKind.MODEL
        assert all(leaf.segments[leaf.origin.segments].loss_mask)
        assert leaf.messages[: 2 * leaf.origin.turns] == parent.messages[: 2 * leaf.origin.turns]


async def test_requests_of_nested_forks_name_the_root_of_their_tree() -> None:
    roots: dict[str, set[str | None]] = {}

    def latency(request: GenerateRequest) -> float:
        roots.setdefault(request.session_id, set()).add(request.root_id)
        return 0.0

    await grow(player=make_player(latency=latency), branching=AtTurns(turns=(1, 2, 3)))
    nested = "tree.1.1.2.1.3.1"
    assert roots.pop("tree") == {None}
    assert nested in roots
    assert len(roots) == 7
    assert set.union(*roots.values()) == {"tree"}, "only the root's server has the shared tokens"


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
