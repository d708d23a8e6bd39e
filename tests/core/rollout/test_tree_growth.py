"""How a tree grows: which leaves fork, from which state, and within which budget."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.faults import CountingEnv, World
from fakes.prompt_player import TreePlayer
from fakes.templates import make_codec
from fakes.trajectories import Context, Reply, build
from fakes.trees import SavedSums, Sums, digit, grow, make_player, nothing, outlasts, planned
from fakes.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, RunFailedError
from envkit.faults import FaultPlan
from envkit.rollout import (
    AtTurns,
    ByEntropy,
    EpisodeSpec,
    GenerateRequest,
    Interrupt,
    Player,
    ScriptedEngine,
    play_tree,
)
from envkit.seeds import derive_seed
from envkit.trajectory import SegmentKind, StopReason, Trajectory, check_trajectory

SPEC = EpisodeSpec(seed=7, episode_id="tree", member=3)
TRUNK, FORK = 4 * 3, 3 * 3
"""Sampled tokens of a trunk, and of its fork before turn 1."""


def no_env() -> Any:
    pytest.fail("no environment is needed")


async def grow_names(
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
    names = await grow_names(TreePlayer(), (0, 3), width=width)
    first = ["tree", *(f"tree.0.{n}" for n in range(1, width))]
    assert names == [*first, *(f"{one}.3.{n}" for one in first for n in range(1, width))]
    assert len(names) == width**2


@pytest.mark.parametrize(("turn", "forks"), [(0, 1), (3, 1), (4, 0), (5, 0)])
async def test_fork_needs_the_turn(turn: int, forks: int) -> None:
    assert len(await grow_names(TreePlayer(turns=4), (turn,))) == 1 + forks


async def test_turn_that_answered_a_history_policy_is_not_forked() -> None:
    player = TreePlayer(purposes={1: "summary"})
    assert await grow_names(player, (1,)) == ["tree"]
    assert await grow_names(player, (2,)) == ["tree", "tree.2.1"]
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

    assert await grow_names(Unrecorded(), (2,)) == ["tree"]
    assert await grow_names(Unrecorded(), (1,)) == ["tree", "tree.1.1"]


async def test_aborted_leaf_is_not_forked() -> None:
    class Aborted(TreePlayer):
        def leaf(self, name: str, **values: Any) -> Trajectory:
            reason = StopReason.ABORTED if name == "tree.1.1" else StopReason.TERMINATED
            return replace(super().leaf(name, **values), stop_reason=reason)

    assert await grow_names(Aborted(), (1, 2)) == ["tree", "tree.1.1", "tree.2.1"]


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
    await grow_names(player, (1, 3))
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
    await grow_names(player, (1, 2))
    assert player.members == {
        f"tree{place}": derive_seed(3, place) for place in (".1.1", ".2.1", ".1.1.2.1")
    }


@pytest.mark.parametrize(("group", "expected"), [(None, "tree"), ("group", "group")])
async def test_leaves_share_a_group(group: str | None, expected: str) -> None:
    player = TreePlayer()
    await grow_names(player, (1,), spec=replace(SPEC, group_id=group))
    (spec,) = player.specs
    assert spec.group_id == player.forks["tree.1.1"].group_id == expected
    assert (spec.seed, spec.member) == (7, 3)


async def test_tree_without_a_spec_draws_its_episode() -> None:
    player = TreePlayer()
    first, second = await grow_names(player, spec=None)
    assert second == f"{first}.1.1"
    assert player.specs[0].group_id == first


# Budgets.


@given(
    budget=st.one_of(*(at_limit(limit, least=1) for limit in (1, TRUNK, TRUNK + FORK, 30, 39))),
    concurrency=st.sampled_from([1, 2, 64]),
)
def test_fork_starts_only_while_the_tree_is_below_its_budget(budget: int, concurrency: int) -> None:
    names = asyncio.run(
        grow_names(TreePlayer(), width=5, token_budget=budget, concurrency=concurrency)
    )
    below = [n for n in range(4) if TRUNK + n * FORK < budget]
    assert len(names) == 1 + len(below)


@pytest.mark.parametrize(("budget", "most"), [(TRUNK + FORK, 1), (TRUNK + FORK + 1, 2)])
async def test_running_fork_counts_as_what_its_parent_sampled_from_the_turn_on(
    budget: int, most: int
) -> None:
    player = TreePlayer()
    await grow_names(player, width=3, token_budget=budget, concurrency=2)
    assert player.most == most


async def test_tree_without_a_budget_plays_every_fork() -> None:
    assert len(await grow_names(TreePlayer(), width=5, token_budget=None)) == 5


@pytest.mark.parametrize(("options", "most"), [({}, 64), ({"concurrency": 3}, 3)])
async def test_forks_at_once_are_bounded(options: dict[str, Any], most: int) -> None:
    player = TreePlayer()
    assert len(await grow_names(player, width=71, **options)) == 71
    assert player.most == most


@pytest.mark.parametrize("concurrency", [1, 64])
async def test_single_environment_plays_one_fork_at_a_time(concurrency: int) -> None:
    player, env = TreePlayer(), CountingEnv(World(), FaultPlan(0.0))
    assert len(await grow_names(player, width=4, env=env, concurrency=concurrency)) == 4
    assert player.most == 1


@pytest.mark.parametrize("fires", [True, False])
async def test_no_fork_starts_after_an_interrupt(fires: bool) -> None:
    player, interrupt = TreePlayer(), Interrupt()

    def on_leaf(leaf: Trajectory) -> None:
        if fires:
            interrupt.fire()

    names = await grow_names(player, width=3, interrupt=interrupt, on_leaf=on_leaf)
    assert len(names) == (1 if fires else 3)
    assert set(player.interrupts) == {interrupt}


# Deliveries and sessions.


async def test_run_failure_of_a_fork_delivers_its_leaf() -> None:
    got: list[Trajectory] = []

    class Failing(TreePlayer):
        async def play_fork(self, spec: EpisodeSpec, fork: Trajectory) -> Any:
            raise RunFailedError("all alike", (self.leaf(spec.episode_id),))

    player = Failing()
    with pytest.raises(RunFailedError, match="all alike"):
        await grow_names(player, on_leaf=got.append)
    assert [leaf.episode_id for leaf in got] == ["tree", "tree.1.1"]
    assert set(player.ended) == {"tree", "tree.1.1"}


async def test_failing_fork_ends_its_siblings_before_the_tree_fails() -> None:
    ended: list[str] = []

    class Failing(TreePlayer):
        async def play_fork(self, spec: EpisodeSpec, fork: Trajectory) -> Any:
            if spec.episode_id == "tree.1.1":
                await asyncio.sleep(0)
                raise RunFailedError("all alike", ())
            try:
                await asyncio.sleep(20)
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                ended.append(spec.episode_id)

    with pytest.raises(RunFailedError, match="all alike"):
        await grow_names(Failing(), width=4)
    assert sorted(ended) == ["tree.1.2", "tree.1.3"]


async def test_sessions_of_all_leaves_end_under_every_id_that_they_had() -> None:
    class Restarted(TreePlayer):
        def leaf(self, name: str, **values: Any) -> Trajectory:
            return super().leaf(f"{name}~1" if name == "tree.1.1" else name, **values)

    player = Restarted()
    await grow_names(player)
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


# ---- leaves of a tree are delivered as they end, whatever ends the tree; budgets hold


IDS = ["tree", "tree.1.1", "tree.2.1", "tree.1.1.2.1"]
ONCE = AtTurns(turns=(1,), width=4)


@dataclass
class Kept:
    """Keeps leaves, and what the engine was asked before each."""

    events: list[str] = field(default_factory=list[str])
    leaves: list[Trajectory] = field(default_factory=list[Trajectory])

    def latency(self, request: GenerateRequest) -> float:
        self.events.append(f"ask {request.session_id}")
        return 0.0

    def __call__(self, leaf: Trajectory) -> None:
        self.events.append(f"got {leaf.episode_id}")
        self.leaves.append(leaf)

    @property
    def names(self) -> list[str]:
        return [leaf.episode_id for leaf in self.leaves]


def slow(*, name: str) -> Callable[[GenerateRequest], float]:
    """Return latencies of an engine that takes long for one episode."""
    return lambda request: 60.0 if request.session_id == name else 0.0


@pytest.mark.parametrize("env", [Sums, Sums(), SavedSums], ids=["replay", "single", "snapshot"])
async def test_each_leaf_is_delivered_once_before_another_begins(env: Any) -> None:
    kept = Kept()
    leaves = await grow(env, player=make_player(latency=kept.latency), on_leaf=kept, concurrency=1)
    assert kept.leaves == list(leaves)
    assert kept.names == IDS
    for name in IDS:
        own = [n for n, event in enumerate(kept.events) if event == f"ask {name}"]
        assert kept.events[own[-1] + 1] == f"got {name}"
        assert own == list(range(own[0], own[-1] + 1))


async def test_concurrent_leaves_are_delivered_before_the_next_turn_is_forked() -> None:
    kept = Kept()

    async def on_leaf(leaf: Trajectory) -> None:
        await asyncio.sleep(0.01)
        kept(leaf)

    leaves = await grow(player=make_player(latency=kept.latency), on_leaf=on_leaf)
    assert [leaf.episode_id for leaf in leaves] == IDS
    assert sorted(kept.names) == sorted(IDS)
    first_of_turn_2 = kept.events.index("ask tree.2.1")
    assert kept.events.index("got tree.1.1") < first_of_turn_2


async def test_leaves_come_in_the_order_in_which_they_began_not_ended() -> None:
    kept = Kept()

    class LateFirst(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            if request.session_id == "tree.1.1":
                await until(lambda: len(kept.leaves) == 3)
            return await super().generate(request)

    codec = make_codec("qwen3")
    player = Player(LateFirst(codec, digit), codec)
    leaves = await grow(player=player, branching=ONCE, on_leaf=kept)
    assert [leaf.episode_id for leaf in leaves] == ["tree", "tree.1.1", "tree.1.2", "tree.1.3"]
    first, *siblings, last = kept.names
    assert (first, sorted(siblings), last) == ("tree", ["tree.1.2", "tree.1.3"], "tree.1.1")


@pytest.mark.parametrize("env", [Sums, Sums()], ids=["function", "single"])
async def test_cancelled_tree_has_delivered_what_ended(env: Any) -> None:
    kept = Kept()
    player = make_player(latency=slow(name="tree.1.2"))
    growing = asyncio.ensure_future(grow(env, player=player, branching=ONCE, on_leaf=kept))
    await until(lambda: len(kept.leaves) == (2 if isinstance(env, Sums) else 3))
    growing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await growing
    assert set(kept.names) - {"tree.1.3"} == {"tree", "tree.1.1"}
    assert [leaf.stop_reason for leaf in kept.leaves] == [StopReason.TERMINATED] * len(kept.leaves)


@pytest.mark.parametrize("name", ["tree", "tree.1.2"])
async def test_cancellation_lets_a_delivery_that_runs_end(name: str) -> None:
    kept, began = Kept(), asyncio.Event()

    async def on_leaf(leaf: Trajectory) -> None:
        if leaf.episode_id == name:
            began.set()
            await asyncio.sleep(0.05)
        kept(leaf)

    growing = asyncio.ensure_future(grow(branching=ONCE, on_leaf=on_leaf))
    await began.wait()
    growing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await growing
    assert name in kept.names


async def test_failing_fork_keeps_siblings_that_ended() -> None:
    kept = Kept()

    class Breaking(Player):
        async def play_spec(self, env: Any, spec: EpisodeSpec, interrupt: Any) -> Any:
            if spec.earlier is not None and spec.episode_id == "tree.1.2":
                await until(lambda: len(kept.leaves) == 2)
                raise RunFailedError("all alike", (spec.earlier,))
            return await super().play_spec(env, spec, interrupt)

    codec = make_codec("qwen3")
    latency = slow(name="tree.1.3")
    player = Breaking(ScriptedEngine(codec, digit, latency=latency), codec)
    with pytest.raises(RunFailedError, match="all alike"):
        await grow(player=player, branching=ONCE, on_leaf=kept)
    assert kept.names == ["tree", "tree.1.1", "tree.1.2"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_error_of_on_leaf_ends_the_tree(is_async: bool) -> None:
    kept = Kept()

    def on_leaf(leaf: Trajectory) -> None:
        kept(leaf)
        if len(kept.leaves) == 2:
            raise OSError("disk full")

    async def on_leaf_async(leaf: Trajectory) -> None:
        on_leaf(leaf)

    with pytest.raises(OSError, match="disk full"):
        await grow(Sums(), branching=ONCE, on_leaf=on_leaf_async if is_async else on_leaf)
    assert kept.names == ["tree", "tree.1.1"]


@pytest.mark.parametrize("env", [Sums, Sums(), SavedSums], ids=["function", "single", "snapshot"])
async def test_interrupt_keeps_what_ended_and_returns_the_rest_as_aborted(env: Any) -> None:
    kept, interrupt, begun = Kept(), Interrupt(), set[str]()

    def latency(request: GenerateRequest) -> float:
        begun.add(request.session_id)
        return slow(name="tree.1.2")(request)

    growing = asyncio.ensure_future(
        grow(
            env,
            player=make_player(latency=latency),
            branching=ONCE,
            on_leaf=kept,
            interrupt=interrupt,
        )
    )
    await until(lambda: "tree.1.1" in kept.names and "tree.1.2" in begun)
    interrupt.fire()
    leaves = await growing
    by_id = {leaf.episode_id: leaf for leaf in leaves}
    assert {leaf.episode_id for leaf in kept.leaves} == by_id.keys()
    assert by_id["tree.1.1"].stop_reason is StopReason.TERMINATED
    cut = by_id["tree.1.2"]
    assert cut.stop_reason is StopReason.ABORTED
    assert cut.reward is None
    assert cut.origin is not None
    if isinstance(env, Sums):
        assert "tree.1.3" not in by_id
    codec = make_codec("qwen3")
    resuming = Player(ScriptedEngine(codec, digit), codec)
    (whole,) = await resuming.resume(cut, Sums if env is Sums else env)
    await resuming.aclose()
    assert whole.stop_reason is StopReason.TERMINATED
    assert whole.origin == cut.origin
    assert check_trajectory(whole) == ()


@pytest.mark.parametrize(
    ("env", "place"),
    [(Sums, "reset"), (Sums, "turn 0"), (SavedSums, "reset"), (SavedSums, "restore")],
)
async def test_fork_that_is_aborted_before_its_first_reply_can_be_resumed(
    env: type[Sums], place: str
) -> None:
    interrupt = Interrupt()
    loop, outlast = asyncio.get_running_loop(), outlasts(interrupt.grace_s)

    def holds(env: Sums) -> None:
        loop.call_soon_threadsafe(interrupt.fire)
        outlast(env)

    calls = (holds,) if place == "restore" else (nothing, holds)
    with planned(place, *calls):
        trunk, fork = await grow(env, branching=AtTurns(turns=(2,)), interrupt=interrupt)
    assert trunk.stop_reason is StopReason.TERMINATED
    assert fork.stop_reason is StopReason.ABORTED
    assert fork.origin is not None
    assert fork.own_turns == ()
    assert check_trajectory(fork) == ()
    player = make_player()
    (whole,) = await player.resume(fork, env)
    await player.aclose()
    assert whole.stop_reason is StopReason.TERMINATED, whole.fault
    assert whole.reward == sum(int(turn.response_text) for turn in whole.turns) / 10
    assert whole.origin == fork.origin


async def test_interrupt_before_the_trunk_gives_one_aborted_leaf() -> None:
    kept, interrupt = Kept(), Interrupt()
    interrupt.fire()
    (trunk,) = await grow(interrupt=interrupt, on_leaf=kept)
    assert trunk.stop_reason is StopReason.ABORTED
    assert kept.leaves == [trunk]


async def test_session_of_a_cancelled_trunk_ends() -> None:
    ended: list[str] = []
    asked = asyncio.Event()

    class Watched(ScriptedEngine):
        async def generate(self, request: GenerateRequest) -> Any:
            asked.set()
            return await super().generate(request)

        async def end_session(self, session_id: str) -> None:
            ended.append(session_id)

    codec = make_codec("qwen3")
    player = Player(Watched(codec, digit, latency=slow(name="tree")), codec)
    growing = asyncio.ensure_future(grow(player=player))
    await asked.wait()
    growing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await growing
    assert ended == ["tree"]


# Budgets. Every reply here is two tokens: the trunk samples 8, a fork before turn 1 samples 6.


async def test_budget_counts_what_forks_really_sampled_once_they_have_ended() -> None:
    seeds: list[int] = []

    def script(context: PolicyContext) -> str:
        seeds.append(context.seed)
        return "1" * 12 if context.seed == seeds[0] else "1"  # the trunk is longer than its forks

    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, script), codec)
    trunk, *forks = await grow(
        player=player, branching=AtTurns(turns=(1,), width=12), token_budget=90
    )
    assert trunk.sampled_token_count == 4 * 13
    assert [leaf.sampled_token_count for leaf in forks] == [6] * 7  # 52 + 6 * 6 < 90


@pytest.mark.parametrize("count", [1, 3])
async def test_forks_longer_than_their_parent_overshoot_by_at_most_those_at_once(
    count: int,
) -> None:
    seeds: list[int] = []

    def script(context: PolicyContext) -> str:
        seeds.append(context.seed)
        return "1" if context.seed == seeds[0] else "1" * 12

    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, script), codec)
    branching = AtTurns(turns=(1,), width=12)
    leaves = await grow(player=player, branching=branching, token_budget=50, concurrency=count)
    spent = [leaf.sampled_token_count for leaf in leaves]
    assert spent[1:] == [3 * 13] * len(spent[1:])
    assert sum(spent[:-count]) < 50 <= sum(spent)
