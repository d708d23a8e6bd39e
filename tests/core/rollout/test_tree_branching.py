"""Where a tree forks, and what is refused before its trunk is played."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fakes.agents import GuessEnv
from fakes.branching import SUMMARY, rewritten
from fakes.templates import make_codec
from fakes.trees import Sums, digit, grow, make_player

from envkit.errors import ConfigurationError
from envkit.rollout import (
    AtTurns,
    ByEntropy,
    EpisodeSpec,
    GenerateRequest,
    Limits,
    Player,
    Sampling,
    ScriptedEngine,
)
from envkit.rollout.record import EpisodeRecord, TurnDraft
from envkit.trajectory import SegmentKind, StopReason, Trajectory, TurnRecord


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


@pytest.mark.parametrize(
    "turns",
    [[2, 1], (1, 1, 2, 2), np.array([2, 1, 1]), {1, 2, 99}, [np.int64(1), 2, 4]],
    ids=["list", "tuple", "array", "set", "numpy integers"],
)
async def test_turns_in_any_order_and_repeated_fork_once_each(turns: Any) -> None:
    expected = await grow()
    leaves = await grow(branching=Chosen(turns))
    assert [leaf.episode_id for leaf in leaves] == [leaf.episode_id for leaf in expected]
    assert [leaf.train_ids() for leaf in leaves] == [leaf.train_ids() for leaf in expected]


async def test_turns_of_an_iterator_fork_once_each() -> None:
    assert len(await grow(branching=Chosen(iter([1, 2])))) == len(await grow())


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


async def test_by_entropy_forks_where_the_model_was_least_sure() -> None:
    (trunk, *_) = await grow(Sums)
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
        (lambda: ByEntropy(width=1), "width=1"),
    ],
)
def test_branching_refuses_settings_that_fork_nothing(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


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


async def test_answered_turns_leave_summaries_out_after_a_resume() -> None:
    trajectory = await rewritten(SUMMARY)
    record = EpisodeRecord()
    record.take_over(trajectory, trajectory.segments)
    assert 0 < record.played == trajectory.step_count < len(record.turns)
    record.draft = TurnDraft(turn=record.turn, prompt_tokens=1, purpose="summarise")
    record.close_turn()
    assert record.played == trajectory.step_count


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
