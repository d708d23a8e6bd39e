"""Trees: where they fork, what forks share and who trains it, and what is refused beforehand."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.agents import GuessEnv
from fakes.branching import Saved, Screens
from fakes.codecs import vision_codec
from fakes.templates import make_codec
from fakes.trees import SavedSums, Sums, digit, grow, make_player

from envkit.env import Capabilities, Turn
from envkit.errors import ConfigurationError
from envkit.rollout import (
    AtTurns,
    ByEntropy,
    EpisodeSpec,
    GenerateRequest,
    Generation,
    Limits,
    Player,
    RolloutConfig,
    Sampling,
    ScriptedEngine,
)
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.tasks import Task
from envkit.trajectory import (
    SegmentKind,
    StopReason,
    Trajectory,
    TurnRecord,
    check_trajectory,
    fork_before,
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


def refused_before_the_first_reply(*, has_codec: bool = True) -> tuple[Player, list[str]]:
    """Return a player, and the requests that reach its engine."""
    seen: list[str] = []

    def latency(request: GenerateRequest) -> float:
        seen.append(request.request_id)
        return 0.0

    if has_codec:
        return make_player(latency=latency), seen
    return Player(ScriptedEngine(make_codec("qwen3"), digit, latency=latency), None), seen


@pytest.mark.parametrize(
    "turns",
    [[2, 1], (1, 1, 2, 2), np.array([2, 1, 1]), {1, 2, 99}, [np.int64(1), 2, 4], iter],
    ids=["list", "tuple", "array", "set", "numpy integers", "iterator"],
)
async def test_turns_in_any_order_and_repeated_fork_once_each(turns: Any) -> None:
    expected = await grow()
    leaves = await grow(branching=Chosen(iter([1, 2]) if turns is iter else turns))
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
        ({"env": "canary-v1"}, "canary-v0"),
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
        (lambda: AtTurns(turns=()), "counted from 0"),
        (lambda: AtTurns(turns=(-1,)), "counted from 0"),
        (lambda: AtTurns(turns=(1,), width=1), "width=1"),
        (lambda: ByEntropy(forks=0), "at least one fork"),
        (lambda: ByEntropy(width=1), "width=1"),
        (lambda: ByEntropy(forks=True), "forks=True"),
        (lambda: ByEntropy(forks=1.5), "forks=1.5"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_branching_refuses_what_forks_nothing(make: Callable[[], object], message: str) -> None:
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
    player, seen = refused_before_the_first_reply(has_codec=False)
    with pytest.raises(ConfigurationError, match="token ledger"):
        await grow(player=player)
    assert seen == []


# ---- cost of forks, rewrites and long episodes, by the benchmarks that publish it


BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module


@pytest.mark.slow
async def test_fork_holds_memory_for_its_own_turns_only(
    benchmark: Callable[[str], ModuleType],
) -> None:
    found = await benchmark("forks").measure(100_000, 16)
    assert found["trunk_tokens"] > 100_000
    assert found["trunk_mb"] > 2.5
    # A fork takes about 23 kB, a copy of one column of the trunk 400 kB. The bounds leave room for
    # what other threads of the test process allocate meanwhile.
    assert found["fork_kb"] < 100
    assert found["unplayed_fork_kb"] < 100
    assert found["tree_over_trunk"] < 1.9


async def test_keep_last_images_meets_its_goals_on_forty_turns_of_computer_use(
    benchmark: Callable[[str], ModuleType],
) -> None:
    found = await benchmark("histories").desktop(turns=40, episodes=1)
    kept = found["keep_3_drop_at_6"]
    assert kept["turns_with_images"] == 40
    assert 0 < kept["rewrites_per_turn_with_images"] <= 1 / 3
    assert kept["peak_images"] == 6
    assert found["append"]["peak_images"] == 40
    for count in (3, 6):
        assert found[f"exactly_{count}"]["peak_images"] == count
        assert kept[f"row_tokens_over_exactly_{count}"] <= 0.7
    assert len({one["sampled_tokens"] for one in found.values()}) == 1


class Unread(list[TurnRecord]):
    """Refuses to be read through."""

    def __iter__(self) -> Iterator[TurnRecord]:
        raise AssertionError("all turns were read")


def test_counting_answered_turns_reads_no_earlier_turn() -> None:
    record = EpisodeRecord()
    record.turns = Unread()
    for turn in range(3):
        record.draft = TurnDraft(turn=turn, prompt_tokens=1)
        record.close_turn()
    assert record.played == 3


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


async def test_forks_keep_the_limits_and_the_sampling_of_the_episode() -> None:
    seen: set[int] = set()

    def latency(request: GenerateRequest) -> float:
        seen.add(request.sampling.max_new_tokens)
        return 0.0

    spec = EpisodeSpec(seed=3, limits=Limits(max_turns=2), sampling=Sampling(max_new_tokens=7))
    player = make_player(latency=latency)
    leaves = await grow(player=player, branching=AtTurns(turns=(1,)), spec=spec)

    assert [len(leaf.turns) for leaf in leaves] == [2, 2]
    assert seen == {7}
