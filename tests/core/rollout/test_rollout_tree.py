"""Tree rollouts: forks share the trunk's tokens, which one leaf alone trains."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.templates import make_codec

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.rollout import (
    AtTurns,
    ByEntropy,
    EpisodeSpec,
    Player,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
    play_tree,
)
from envkit.tasks import Task
from envkit.trajectory import (
    Rule,
    SegmentKind,
    StopReason,
    Trajectory,
    certify,
    check_trajectory,
    fork_before,
    save,
    verify_file,
    whole_row,
)


class Counter(Env):
    """Adds the digits of the replies; the last turn rewards the sum."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)

    def __init__(self, *, max_turns: int = 4, images: bool = False) -> None:
        super().__init__(max_turns=max_turns)
        self._images = images

    def on_reset(self, task: Task) -> Turn:
        self.total = 0
        return Turn("Say a digit.", images=self._image(0))

    def on_turn(self, response_text: str) -> Turn:
        self.total += int(response_text)
        done = self.turn + 1 == self.max_turns
        return Turn(
            f"The sum is {self.total}.",
            images=self._image(self.turn + 1),
            reward=self.total / 10 if done else 0.0,
            done=done,
        )

    def _image(self, number: int) -> tuple[Image, ...]:
        if not self._images:
            return ()
        return (Image.from_array(np.full((32, 32, 3), 10 * number + self.total, np.uint8)),)


class Saved(Counter):
    """Can be saved, but not replayed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, snapshot=True)

    def get_state(self) -> dict[str, Any]:
        return {"total": self.total}

    def set_state(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Fixed(Counter):
    """Can be neither saved nor replayed."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True)


def digit(context: PolicyContext) -> str:
    return str((context.seed + 3 * context.turn) % 10)


async def grow(
    env: Callable[[], Env] | Env, *, template: str = "qwen3", **options: Any
) -> tuple[Trajectory, ...]:
    codec = make_codec(template)
    config = RolloutConfig(retries=RetryBudget(max_env_retries_per_turn=0))
    player = Player(ScriptedEngine(codec, digit), codec, config)
    options.setdefault("branching", AtTurns(turns=(1, 2)))
    try:
        return await play_tree(env, player, spec=EpisodeSpec(seed=7), **options)
    finally:
        await player.aclose()


def owned(leaves: tuple[Trajectory, ...]) -> int:
    return sum(sum(whole_row(leaf, filler_id=0).loss_mask) for leaf in leaves)


@pytest.mark.parametrize("make", [Counter, Saved])
async def test_play_tree_forks_two_by_two(make: type[Counter]) -> None:
    leaves = await grow(make)
    assert [leaf.fault for leaf in leaves] == [None] * 4
    assert len({leaf.episode_id for leaf in leaves}) == 4
    assert len({leaf.group_id for leaf in leaves}) == 1
    for leaf in leaves:
        assert leaf.stop_reason is StopReason.TERMINATED
        digits = [int(turn.response_text) for turn in leaf.turns]
        assert leaf.reward == sum(digits) / 10
        assert check_trajectory(leaf) == ()
    assert len({tuple(turn.response_text for turn in leaf.turns) for leaf in leaves}) > 1


async def test_play_tree_children_begin_with_the_parents_tokens() -> None:
    leaves = await grow(Counter)
    by_id = {leaf.episode_id: leaf for leaf in leaves}
    for leaf in leaves[1:]:
        assert leaf.origin is not None
        parent = by_id[leaf.origin.episode_id]
        for mine, theirs in zip(
            leaf.segments[: leaf.origin.segments], parent.segments, strict=False
        ):
            assert mine.array("wire_ids") is theirs.array("wire_ids")
            assert not any(mine.loss_mask)
        own = leaf.segments[leaf.origin.segments]
        assert own.kind is SegmentKind.MODEL
        assert all(own.loss_mask)


async def test_play_tree_trains_each_sampled_token_once() -> None:
    leaves = await grow(Counter)
    assert owned(leaves) == sum(leaf.sampled_token_count for leaf in leaves)
    replies = 4 + 3 + 2 + 2  # the trunk, one fork before turn 1, two before turn 2
    assert sum(len(leaf.turns) - (leaf.origin.turns if leaf.origin else 0) for leaf in leaves) == (
        replies
    )


async def test_play_tree_plays_a_single_environment_one_leaf_after_the_other() -> None:
    env = Counter()
    leaves = await grow(env)
    assert len(leaves) == 4
    assert all(leaf.fault is None for leaf in leaves)


@pytest.mark.parametrize("is_built", [False, True])
async def test_play_tree_refuses_an_environment_that_cannot_go_back(is_built: bool) -> None:
    env = Fixed()
    with pytest.raises(ConfigurationError, match="Fixed declares neither snapshot"):
        await grow(env if is_built else lambda: env, branching=AtTurns(turns=(1,), width=3))
    assert not hasattr(env, "total")  # no episode started


async def test_play_tree_stops_forking_when_the_budget_is_spent() -> None:
    leaves = await grow(Counter, token_budget=1)
    assert len(leaves) == 1


async def test_by_entropy_forks_where_the_model_was_least_sure() -> None:
    (trunk, *_) = await grow(Counter)
    unsure = [
        replace(
            one,
            logprobs=[-3.0 if one.turn == 2 else -0.1] * one.token_count,
            loss_mask=None,
        )
        if one.kind is SegmentKind.MODEL
        else one
        for one in trunk.segments
    ]
    doubtful = replace(trunk, segments=tuple(unsure))
    assert list(ByEntropy(forks=1).turns_of(doubtful)) == [2]
    assert list(ByEntropy(forks=9).turns_of(doubtful)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AtTurns(turns=()), "counted from 0"),
        (lambda: AtTurns(turns=(-1,)), "counted from 0"),
        (lambda: AtTurns(turns=(1,), width=1), "width=1"),
        (lambda: ByEntropy(forks=0), "at least one fork"),
    ],
)
def test_branching_refuses_settings_that_fork_nothing(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("turn", [-1, 4])
async def test_fork_before_refuses_a_missing_turn(turn: int) -> None:
    (trunk, *_) = await grow(Counter)
    with pytest.raises(ConfigurationError, match="counted from 0"):
        fork_before(trunk, turn, episode_id="other")


async def test_stored_tree_verifies(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    save(await grow(Counter), path)
    report = verify_file(path)
    assert report.is_sound, str(report)


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        ("missing_parent", "is not in the file"),
        ("other_parent", "differs from"),
        ("cycle", "cycle"),
        ("owner", "two owners"),
    ],
)
async def test_verify_names_what_is_wrong_with_a_stored_tree(
    tmp_path: Path, damage: str, place: str
) -> None:
    trunk, fork, *_ = await grow(Counter)
    assert fork.origin is not None
    leaves = [trunk, fork]
    if damage == "missing_parent":
        leaves = [fork]
    elif damage == "other_parent":
        reply = trunk.segments[1]
        ids = (reply.train_ids[0] + 1, *reply.train_ids[1:])
        other = replace(reply, wire_ids=ids, train_ids=ids)
        leaves = [replace(trunk, segments=(trunk.segments[0], other, *trunk.segments[2:])), fork]
    elif damage == "cycle":
        loop = replace(fork.origin, episode_id=fork.episode_id)
        masked = (trunk.segments[0], *(one.as_context() for one in trunk.segments[1:]))
        leaves = [replace(trunk, origin=loop, segments=masked), fork]
    elif damage == "owner":
        first = fork.segments[1]
        trained = replace(first, loss_mask=None)
        leaves = [trunk, replace(fork, segments=(fork.segments[0], trained, *fork.segments[2:]))]
    path = tmp_path / "trajectories.jsonl"
    save(leaves, path)
    report = verify_file(path)
    found = [problem for problem in report.problems if problem.rule is Rule.TREE]
    assert found, str(report)
    assert place in found[0].message


async def test_old_records_without_branches_load(tmp_path: Path) -> None:
    (trunk, *_) = await grow(Counter)
    path = tmp_path / "trajectories.jsonl"
    save(trunk, path)
    assert not {"branches", "origin"} & json.loads(path.read_text()).keys()


@pytest.mark.parametrize("change", [{"segments": 1}, {"turns": 0}, {"root": "x"}])
async def test_certificate_covers_where_a_fork_starts(change: dict[str, Any]) -> None:
    _, fork, *_ = await grow(Counter)
    assert fork.origin is not None
    moved = replace(fork, origin=replace(fork.origin, **change))
    assert certify(fork).difference(certify(moved)) is not None
