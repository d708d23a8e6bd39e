"""Leaves of a tree are delivered as they end, whatever ends the tree; budgets hold."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes.templates import make_codec
from fakes.trees import SavedSums, Sums, digit, grow, make_player, nothing, planned, sleeps

from envkit.env import PolicyContext
from envkit.errors import RunFailedError
from envkit.rollout import AtTurns, GenerateRequest, Interrupt, Player, ScriptedEngine
from envkit.trajectory import StopReason, Trajectory, check_trajectory

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


def slow(*, name: str, seconds: float = 60.0) -> Callable[[GenerateRequest], float]:
    """Return latencies of an engine that takes long for one episode."""
    return lambda request: seconds if request.session_id == name else 0.0


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.002)


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
    player = make_player(latency=slow(name="tree.1.1", seconds=0.4))
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
        async def resume(self, trajectory: Trajectory, *args: Any, **options: Any) -> Any:
            if trajectory.episode_id == "tree.1.2":
                await until(lambda: len(kept.leaves) == 2)
                raise RunFailedError("all alike", (trajectory,))
            return await super().resume(trajectory, *args, **options)

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
    interrupt = Interrupt(grace_s=0.05)
    loop = asyncio.get_running_loop()

    def holds(env: Sums) -> None:
        loop.call_soon_threadsafe(interrupt.fire)
        sleeps(0.3)(env)

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

    class Watched(ScriptedEngine):
        async def end_session(self, session_id: str) -> None:
            ended.append(session_id)

    codec = make_codec("qwen3")
    player = Player(Watched(codec, digit, latency=slow(name="tree")), codec)
    growing = asyncio.ensure_future(grow(player=player))
    await asyncio.sleep(0.05)
    growing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await growing
    assert ended == ["tree"]


# Budgets. Every reply here is two tokens: the trunk samples 8, a fork before turn 1 samples 6.
@pytest.mark.parametrize("env", [Sums, Sums()], ids=["function", "single"])
@pytest.mark.parametrize(
    ("budget", "forks"), [(1, 0), (8, 0), (9, 1), (14, 1), (15, 2), (21, 3), (1000, 7)]
)
async def test_forks_begin_only_below_the_budget(env: Any, budget: int, forks: int) -> None:
    leaves = await grow(env, branching=AtTurns(turns=(1,), width=8), token_budget=budget)
    assert len(leaves) == 1 + forks
    spent = sum(leaf.sampled_token_count for leaf in leaves)
    assert spent == 8 + 6 * forks
    assert spent - budget < 6 or not forks


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
