"""How a tree grows: which leaves fork, from which state, and within which budget."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.faults import CountingEnv, World
from fakes.prompt_player import TreePlayer
from fakes.trajectories import Context, Reply, build
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, RunFailedError
from envkit.faults import FaultPlan
from envkit.rollout import AtTurns, ByEntropy, EpisodeSpec, Interrupt, play_tree
from envkit.seeds import derive_seed
from envkit.trajectory import SegmentKind, StopReason, Trajectory

SPEC = EpisodeSpec(seed=7, episode_id="tree", member=3)
TRUNK, FORK = 4 * 3, 3 * 3
"""Sampled tokens of a trunk, and of its fork before turn 1."""


def no_env() -> Any:
    pytest.fail("no environment is needed")


async def grow(
    player: TreePlayer, turns: tuple[int, ...] = (1,), *, width: int = 2, **options: Any
) -> list[str]:
    """Grow a tree and return the names of its leaves."""
    values: dict[str, Any] = {"spec": SPEC, **options}
    env = values.pop("env", no_env)
    leaves = await play_tree(env, player, branching=AtTurns(turns=turns, width=width), **values)
    return [leaf.episode_id for leaf in leaves]


def test_branching_forks_into_two_unless_told_otherwise() -> None:
    assert AtTurns(turns=(0,)).width == 2
    assert (ByEntropy().forks, ByEntropy().width) == (2, 2)
    assert (ByEntropy(forks=1, width=2).forks, AtTurns(turns=(0,), width=2).width) == (1, 2)


@pytest.mark.parametrize("width", [2, 3])
async def test_every_leaf_with_the_turn_forks_into_the_width(width: int) -> None:
    names = await grow(TreePlayer(), (0, 3), width=width)
    first = ["tree", *(f"tree.0.{n}" for n in range(1, width))]
    assert names == [*first, *(f"{one}.3.{n}" for one in first for n in range(1, width))]
    assert len(names) == width**2


@pytest.mark.parametrize(("turn", "forks"), [(0, 1), (3, 1), (4, 0), (5, 0)])
async def test_fork_needs_the_turn(turn: int, forks: int) -> None:
    assert len(await grow(TreePlayer(turns=4), (turn,))) == 1 + forks


async def test_turn_that_answered_a_history_policy_is_not_forked() -> None:
    player = TreePlayer(purposes={1: "summary"})
    assert await grow(player, (1,)) == ["tree"]
    assert await grow(player, (2,)) == ["tree", "tree.2.1"]
    assert player.forks["tree.2.1"].env_snapshot == b"1 of trunk", "the summary was not played"
    assert list(player.states["tree.2.1"]) == [0, 1]


async def test_turn_without_a_recorded_reply_is_not_forked() -> None:
    class Unrecorded(TreePlayer):
        def leaf(self, name: str, **values: Any) -> Trajectory:
            found = super().leaf(name, **values)
            kept = (
                one for one in found.segments if one.turn != 2 or one.kind is not SegmentKind.MODEL
            )
            return replace(found, segments=tuple(kept))

    assert await grow(Unrecorded(), (2,)) == ["tree"]
    assert await grow(Unrecorded(), (1,)) == ["tree", "tree.1.1"]


async def test_aborted_leaf_is_not_forked() -> None:
    class Aborted(TreePlayer):
        def leaf(self, name: str, **values: Any) -> Trajectory:
            reason = StopReason.ABORTED if name == "tree.1.1" else StopReason.TERMINATED
            return replace(super().leaf(name, **values), stop_reason=reason)

    assert await grow(Aborted(), (1, 2)) == ["tree", "tree.1.1", "tree.2.1"]


async def test_trunk_that_cannot_be_forked_is_not_shown_to_the_branching() -> None:
    class Asked:
        width = 2

        def turns_of(self, trunk: Trajectory) -> Any:
            raise AssertionError("was asked")

    class Aborted(TreePlayer):
        def leaf(self, name: str, **values: Any) -> Trajectory:
            return replace(super().leaf(name, **values), stop_reason=StopReason.ABORTED)

    (trunk,) = await play_tree(no_env, Aborted(), branching=Asked(), spec=SPEC)
    assert trunk.stop_reason is StopReason.ABORTED
    with pytest.raises(ConfigurationError, match="was asked"):
        await play_tree(no_env, TreePlayer(), branching=Asked(), spec=SPEC)


async def test_fork_starts_from_the_state_before_its_turn() -> None:
    player = TreePlayer()
    await grow(player, (1, 3))
    for name, fork in player.forks.items():
        turn = int(name.split(".")[-2])
        assert len(fork.turns) == turn
        assert fork.stop_reason is StopReason.ABORTED
    assert player.forks["tree.1.1"].env_snapshot == b"1 of trunk"
    assert player.forks["tree.3.1"].env_snapshot == b"3 of trunk"
    assert list(player.states["tree.1.1"]) == [0, 1]
    assert list(player.states["tree.3.1"]) == [0, 1, 2, 3]
    assert player.forks["tree.1.1.3.1"].env_snapshot is None, "it kept no states of its own"


async def test_forks_sample_with_the_seed_of_their_place() -> None:
    player = TreePlayer()
    await grow(player, (1, 2))
    assert player.members == {
        f"tree{place}": derive_seed(3, place) for place in (".1.1", ".2.1", ".1.1.2.1")
    }


@pytest.mark.parametrize(("group", "expected"), [(None, "tree"), ("group", "group")])
async def test_leaves_share_a_group(group: str | None, expected: str) -> None:
    player = TreePlayer()
    await grow(player, (1,), spec=replace(SPEC, group_id=group))
    (spec,) = player.specs
    assert spec.group_id == player.forks["tree.1.1"].group_id == expected
    assert (spec.seed, spec.member) == (7, 3)


async def test_tree_without_a_spec_draws_its_episode() -> None:
    player = TreePlayer()
    first, second = await grow(player, spec=None)
    assert second == f"{first}.1.1"
    assert player.specs[0].group_id == first


# Budgets.


@given(
    budget=st.one_of(*(at_limit(limit, least=1) for limit in (1, TRUNK, TRUNK + FORK, 30, 39))),
    concurrency=st.sampled_from([1, 2, 64]),
)
def test_fork_starts_only_while_the_tree_is_below_its_budget(budget: int, concurrency: int) -> None:
    names = asyncio.run(grow(TreePlayer(), width=5, token_budget=budget, concurrency=concurrency))
    below = [n for n in range(4) if TRUNK + n * FORK < budget]
    assert len(names) == 1 + len(below)


@pytest.mark.parametrize(("budget", "most"), [(TRUNK + FORK, 1), (TRUNK + FORK + 1, 2)])
async def test_running_fork_counts_as_what_its_parent_sampled_from_the_turn_on(
    budget: int, most: int
) -> None:
    player = TreePlayer()
    await grow(player, width=3, token_budget=budget, concurrency=2)
    assert player.most == most


async def test_tree_without_a_budget_plays_every_fork() -> None:
    assert len(await grow(TreePlayer(), width=5, token_budget=None)) == 5


@pytest.mark.parametrize(("options", "most"), [({}, 64), ({"concurrency": 3}, 3)])
async def test_forks_at_once_are_bounded(options: dict[str, Any], most: int) -> None:
    player = TreePlayer()
    assert len(await grow(player, width=71, **options)) == 71
    assert player.most == most


@pytest.mark.parametrize("concurrency", [1, 64])
async def test_single_environment_plays_one_fork_at_a_time(concurrency: int) -> None:
    player, env = TreePlayer(), CountingEnv(World(), FaultPlan(0.0))
    assert len(await grow(player, width=4, env=env, concurrency=concurrency)) == 4
    assert player.most == 1


@pytest.mark.parametrize("fires", [True, False])
async def test_no_fork_starts_after_an_interrupt(fires: bool) -> None:
    player, interrupt = TreePlayer(), Interrupt()

    def on_leaf(leaf: Trajectory) -> None:
        if fires:
            interrupt.fire()

    names = await grow(player, width=3, interrupt=interrupt, on_leaf=on_leaf)
    assert len(names) == (1 if fires else 3)
    assert set(player.interrupts) == {interrupt}


# Deliveries and sessions.


@pytest.mark.parametrize("is_async", [False, True])
async def test_leaves_are_delivered_as_they_end(is_async: bool) -> None:
    got: list[str] = []

    def on_leaf(leaf: Trajectory) -> None:
        got.append(leaf.episode_id)

    async def on_leaf_async(leaf: Trajectory) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        on_leaf(leaf)

    options: dict[str, Any] = {"on_leaf": on_leaf_async if is_async else on_leaf}
    names = await grow(TreePlayer(), (1, 2), concurrency=1, **options)
    assert got == names


async def test_run_failure_of_a_fork_delivers_its_leaf() -> None:
    got: list[Trajectory] = []

    class Failing(TreePlayer):
        async def resume(self, trajectory: Trajectory, *args: Any, **options: Any) -> Any:
            raise RunFailedError("all alike", (self.leaf(trajectory.episode_id),))

    player = Failing()
    with pytest.raises(RunFailedError, match="all alike"):
        await grow(player, on_leaf=got.append)
    assert [leaf.episode_id for leaf in got] == ["tree", "tree.1.1"]
    assert set(player.ended) == {"tree", "tree.1.1"}


async def test_failing_fork_ends_its_siblings_before_the_tree_fails() -> None:
    ended: list[str] = []

    class Failing(TreePlayer):
        async def resume(self, trajectory: Trajectory, *args: Any, **options: Any) -> Any:
            if trajectory.episode_id == "tree.1.1":
                await asyncio.sleep(0)
                raise RunFailedError("all alike", ())
            try:
                await asyncio.sleep(20)
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                ended.append(trajectory.episode_id)

    with pytest.raises(RunFailedError, match="all alike"):
        await grow(Failing(), width=4)
    assert sorted(ended) == ["tree.1.2", "tree.1.3"]


async def test_cancelled_tree_lets_its_deliveries_end() -> None:
    began, got = asyncio.Event(), list[str]()

    async def on_leaf(leaf: Trajectory) -> None:
        began.set()
        for _ in range(5):
            await asyncio.sleep(0)
        got.append(leaf.episode_id)

    growing = asyncio.ensure_future(grow(TreePlayer(), on_leaf=on_leaf))
    await began.wait()
    growing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await growing
    assert got == ["tree"]


async def test_sessions_of_all_leaves_end_under_every_id_that_they_had() -> None:
    class Restarted(TreePlayer):
        def leaf(self, name: str, **values: Any) -> Trajectory:
            return super().leaf(f"{name}~1" if name == "tree.1.1" else name, **values)

    player = Restarted()
    await grow(player)
    assert sorted(player.ended) == ["tree", "tree.1.1", "tree.1.1~1"]


# Where the model was least certain.


def sure(*surprisals: float) -> Trajectory:
    """Return an episode whose replies have these mean surprisals."""
    return build(
        [
            Reply(logprobs=(-2 * one, -one, 0.0) if one else (0.0,) * 3, observation=Context())
            for one in surprisals
        ]
    )


@pytest.mark.parametrize(
    ("forks", "turns"),
    [(1, [2]), (2, [1, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 4]), (9, [0, 1, 2, 4])],
)
def test_by_entropy_chooses_the_most_surprising_turns(forks: int, turns: list[int]) -> None:
    trunk = sure(0.5, 1.0, 2.0, 0.0, 0.25)
    assert list(ByEntropy(forks=forks).turns_of(trunk)) == turns


def test_by_entropy_prefers_the_earlier_of_two_equal_turns() -> None:
    assert list(ByEntropy(forks=2).turns_of(sure(0.5, 1.0, 0.5, 0.5))) == [0, 1]


def test_at_turns_forks_once_before_each_turn_in_order() -> None:
    assert list(AtTurns(turns=(2, 0, 2)).turns_of(sure(1.0))) == [0, 2]
