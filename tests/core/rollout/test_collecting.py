"""Garbage collection during a run: short steps, nothing lost, everything restored."""

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Generator

import pytest
from fakes.codecs import text_codec

from envkit.env import Env, PolicyContext, Turn
from envkit.fast_json import collection
from envkit.rollout import Player, Run, RunPlan, ScriptedEngine, collect
from envkit.rollout.collecting import GcPacer, collecting
from envkit.rollout.plan import Played
from envkit.tasks import Task


class Hello(Env):
    """Two turns of a greeting."""

    def __init__(self) -> None:
        super().__init__(max_turns=2)

    def on_reset(self, task: Task) -> Turn:
        return Turn("Hello.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("Hello again.", reward=1.0)


class Knot:
    """A reference cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def unfrozen() -> Generator[None]:
    """Begin with nothing frozen, and freeze what was frozen before."""
    gc.unfreeze()
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.enable()
    gc.freeze()


@pytest.fixture
def pacer() -> Generator[GcPacer]:
    """Give a pacer that is active, for one episode at once."""
    one = GcPacer(objects=1_000, survivors=500)
    one.enter(1)
    yield one
    one.leave(1)


def age() -> None:
    """Move what is young to the oldest generation."""
    gc.collect(1)
    gc.collect(1)


def test_pacer_restores_everything() -> None:
    gc.set_threshold(500, 7, 9)
    one = GcPacer()
    one.enter(8)
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[2] > 1_000_000, "a full collection would still come by itself"
    one.leave(8)
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((500, 7, 9), 0)


def test_pacer_stays_until_the_last_of_several_runs_has_ended() -> None:
    threshold = gc.get_threshold()
    one = GcPacer()
    one.enter(8)
    one.enter(8)
    one.leave(8)
    assert one.is_active
    assert gc.get_freeze_count() > 0
    one.leave(8)
    assert not one.is_active
    assert gc.get_threshold() == threshold


@pytest.mark.parametrize("prepare", [gc.freeze, gc.disable])
def test_pacer_leaves_alone_what_the_caller_has_set(prepare: Callable[[], None]) -> None:
    prepare()
    before = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0
    one = GcPacer()
    one.enter(8)
    assert not one.is_active
    assert before == (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0)
    one.leave(8)
    assert before == (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0)


def test_pacer_begins_while_an_answer_is_read() -> None:
    one = GcPacer()
    with collection.paused():
        one.enter(8)
    try:
        assert one.is_active
        assert gc.isenabled()
    finally:
        one.leave(8)


def test_pacer_freezes_many_survivors_and_collects_the_rest(pacer: GcPacer) -> None:
    dead = [weakref.ref(Knot()) for _ in range(600)]
    alive: list[list[int]] = [[] for _ in range(2_000)]
    frozen = gc.get_freeze_count()
    age()
    pacer.tend()
    assert gc.get_freeze_count() - frozen >= len(alive)
    assert not any(one() for one in dead)
    assert len(gc.get_objects(generation=2)) < 1_000, "it would be looked at again"


def test_pacer_freezes_a_burst_without_looking_at_it(pacer: GcPacer) -> None:
    dead = weakref.ref(Knot())
    gc.disable()
    alive: list[list[int]] = [[] for _ in range(4_000)]
    knot = Knot()
    age()
    first = weakref.ref(knot)
    del knot
    pacer.tend()
    gc.enable()
    assert dead() is None
    assert first() is not None, "it waits for the next full collection"
    assert gc.get_freeze_count() >= len(alive)


def test_pacer_does_not_freeze_few_survivors(pacer: GcPacer) -> None:
    knots = [Knot() for _ in range(1_500)]
    age()
    frozen, first = gc.get_freeze_count(), weakref.ref(knots[0])
    knots.clear()
    pacer.tend()
    assert first() is None
    assert gc.get_freeze_count() <= frozen


class AbandonedRun(Knot):
    """Leaves when it is collected, as the generator of a run that nobody has closed."""

    def __init__(self, pacer: GcPacer) -> None:
        super().__init__()
        self.pacer = pacer

    def __del__(self) -> None:
        self.pacer.leave(1)


def test_pacer_may_end_an_abandoned_run() -> None:
    one, threshold = GcPacer(objects=1_000, survivors=500), gc.get_threshold()
    one.enter(1)
    run, kept = AbandonedRun(one), [Knot() for _ in range(2_000)]
    age()
    del run
    # In a thread, so a pacer that waits for itself cannot hang the tests.
    tending = threading.Thread(target=one.tend, daemon=True)
    tending.start()
    tending.join(120)
    assert not tending.is_alive()
    assert (one.is_active, gc.get_freeze_count(), gc.get_threshold()) == (False, 0, threshold)
    assert kept


def test_pacer_frees_cycles_that_were_frozen_alive(
    pacer: GcPacer, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocated = [sys.getallocatedblocks()]
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: allocated[0])
    knots = [Knot() for _ in range(2_000)]
    age()
    pacer.tend()
    first = weakref.ref(knots[0])
    knots.clear()
    gc.collect()
    assert first() is not None, "frozen objects are left out of collections"
    kept: list[list[list[int]]] = []
    for grown in (1.2, 1.3):  # a quarter more than at the start
        allocated[0] = int(grown * allocated[0])
        assert first() is not None
        kept.append([[] for _ in range(2_000)])
        age()
        pacer.tend()
    assert first() is None


def test_pacer_never_walks_through_what_is_frozen(
    pacer: GcPacer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count() -> int:
        raise AssertionError("this takes a tenth of a microsecond per frozen object")

    monkeypatch.setattr(gc, "get_freeze_count", count)
    kept: list[list[list[int]]] = []
    for _ in range(20):
        kept.append([[] for _ in range(2_000)])
        age()
        pacer.tend()
    monkeypatch.undo()
    assert gc.get_freeze_count() >= 40_000, "and all of it is frozen, without a full collection"


async def test_collecting_is_active_during_a_run_and_ends_with_its_failure() -> None:
    active, codec = list[bool](), text_codec()
    threshold = gc.get_threshold()

    def reply(context: PolicyContext) -> str:
        active.append(gc.get_threshold() != threshold)
        return "Hi."

    async def deliver(episode: Played) -> None:
        raise OSError("the disk is full")

    player = Player(ScriptedEngine(codec, reply), codec)
    run = Run(Hello, player, RunPlan(episodes=32, concurrency=4))
    with pytest.raises(OSError, match="disk"):
        await run.play(deliver)
    await player.aclose()
    assert set(active) == {True}
    assert (gc.get_threshold(), gc.get_freeze_count()) == (threshold, 0)


async def test_collecting_leaves_short_runs_alone() -> None:
    threshold = gc.get_threshold()
    with collecting(31, at_once=31):
        assert (gc.get_threshold(), gc.get_freeze_count()) == (threshold, 0)


@pytest.mark.slow
def test_episodes_leave_no_reference_cycles() -> None:
    codec = text_codec()

    async def play() -> None:
        played = collect(Hello, ScriptedEngine(codec, lambda _: "Hi."), codec, episodes=8)
        assert [one.fault async for one in played] == [None] * 8

    asyncio.run(play())
    gc.collect()
    gc.disable()
    garbage: list[object] = []
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        asyncio.run(play())
        gc.collect()
        garbage = [one for one in gc.garbage if type(one).__module__.startswith("envkit")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not garbage
