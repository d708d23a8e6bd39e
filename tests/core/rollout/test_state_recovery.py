"""How an environment's state comes back: by snapshot, by replay, or not at all."""

import asyncio
import threading
from typing import Any, ClassVar

import pytest
from fakes.faults import CountingEnv, FragileEnv, ReplayEnv, SavedEnv
from fakes.recovering import Schedule, Sessions, budget, hosted, keys, played, recovering
from fakes.virtual_time import skip_from_thread

from envkit.env import Capabilities, Observation, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.reply import Reply
from envkit.rollout import Interrupt
from envkit.rollout.host import StepDeadlineError
from envkit.rollout.recovery import CutFault, EpisodeLostError, RecoveringEnv, end_session
from envkit.tasks import Task

RECOVERABLE = [CountingEnv, ReplayEnv, SavedEnv]
SAVED = [CountingEnv, SavedEnv]


async def begun(env: RecoveringEnv, replies: int = 1) -> list[str]:
    """Reset and play some replies; return their hashes."""
    await env.reset()
    return [(await env.step(Reply(text=f"reply {turn}"))).hash for turn in range(replies)]


async def state_of(env: RecoveringEnv) -> list[str]:
    """Return the replies that the environment's state holds after one more."""
    return list((await env.step(Reply(text="next"))).step.info["history"])


@pytest.mark.parametrize("kind", SAVED)
async def test_snapshot_is_restored_into_an_environment_that_works(kind: type[CountingEnv]) -> None:
    async with hosted(kind, {("step", "e", 1, 0): "transient"}) as (host, world):
        env = recovering(host)
        await begun(env)
        assert await state_of(env) == ["reply 0", "next"]
    assert (world.resets, world.built, world.restored) == (1, 1, 1)


@pytest.mark.parametrize("kind", SAVED)
async def test_snapshot_is_restored_into_a_new_environment_after_a_crash(
    kind: type[CountingEnv],
) -> None:
    async with hosted(kind, {("step", "e", 1, 0): "crashed"}) as (host, world):
        env = recovering(host)
        await begun(env)
        assert await state_of(env) == ["reply 0", "next"]
    assert (world.resets, world.built, world.restored) == (2, 2, 1)


@pytest.mark.parametrize(("fault", "built"), [("transient", 1), ("crashed", 2)])
async def test_replay_starts_from_a_reset(fault: str, built: int) -> None:
    async with hosted(ReplayEnv, {("step", "e", 1, 0): fault}) as (host, world):
        env = recovering(host)
        await begun(env)
        assert await state_of(env) == ["reply 0", "next"]
    assert (world.resets, world.built, world.restored) == (2, built, 0)


class Drifting(CountingEnv):
    """Starts from another observation at each reset."""

    def on_reset(self, task: Task) -> Turn:
        turn = super().on_reset(task)
        return Turn(f"{turn.text} {self._world.resets}")


class DriftingReplay(Drifting):
    capabilities: ClassVar[Capabilities] = ReplayEnv.capabilities


@pytest.mark.parametrize("kind", [Drifting, DriftingReplay])
async def test_reset_that_differs_is_a_permanent_fault(kind: type[CountingEnv]) -> None:
    async with hosted(kind, {("step", "e", 1, 0): "crashed"}) as (host, world):
        env = recovering(host, can_restart=True)
        await begun(env)
        with pytest.raises(EnvFault, match="gave a different observation") as caught:
            await env.step(Reply(text="next"))
    assert caught.value.kind is FaultKind.PERMANENT
    assert "It was reset after: injected crashed" in str(caught.value)
    assert world.resets == 2


class Counted(ReplayEnv):
    """Answers each step with its number in the whole world."""

    def on_turn(self, response_text: str) -> Turn:
        turn = super().on_turn(response_text)
        return Turn(f"step {len(self._world.steps)}", info=turn.info)


async def test_replay_that_differs_is_a_permanent_fault_at_its_turn() -> None:
    async with hosted(Counted, {("step", "e", 1, 0): "transient"}) as (host, _):
        env = recovering(host, can_restart=True)
        await begun(env)
        with pytest.raises(EnvFault, match="different outcome at turn 0") as caught:
            await env.step(Reply(text="next"))
    assert caught.value.kind is FaultKind.PERMANENT
    assert "It was replayed after: injected transient" in str(caught.value)


STEP_S = 60.0
"""A step that does not hang takes less on any machine."""


class Blamed(ReplayEnv):
    """Attributes a slow step to the reply; planned steps hang until they are released."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        replay_safe=True, on_step_timeout="truncate"
    )
    hangs: ClassVar[set[tuple[int, int]]] = set()
    loop: ClassVar[asyncio.AbstractEventLoop]
    released: ClassVar[threading.Event]

    def on_turn(self, response_text: str) -> Turn:
        key = self.step_key
        assert key is not None
        if (key.turn, key.attempt) in self.hangs:
            skip_from_thread(self.loop, STEP_S)
            self.released.wait(120)
        return super().on_turn(response_text)


async def test_late_step_ends_the_episode_but_a_late_replay_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Blamed, "hangs", {(0, 1), (1, 2)})
    Blamed.loop, Blamed.released = asyncio.get_running_loop(), threading.Event()
    async with hosted(Blamed, {("step", "e", 1, 0): "transient"}) as (host, _):
        env = recovering(host, budget(step_timeout_s=STEP_S))
        await begun(env)
        with pytest.raises(StepDeadlineError) as caught:
            await env.step(Reply(text="next"))
        Blamed.released.set()
    assert not caught.value.retryable
    assert env.retries == {"transient": 1, "timeout": 1}


# Snapshots.


@pytest.mark.parametrize(
    ("options", "kept", "saved"),
    [
        ({"max_env_retries_per_turn": 0}, False, 0),
        ({"max_env_retries_per_turn": 1}, False, 1),
        ({"max_env_retries_per_turn": 0, "resample_on_parse_error": 1}, False, 1),
        ({"max_env_retries_per_turn": 0}, True, 1),
        ({"max_env_retries_per_turn": 1, "resample_on_parse_error": 1}, True, 1),
    ],
)
async def test_snapshot_is_taken_only_if_something_may_need_it(
    options: dict[str, int], kept: bool, saved: int
) -> None:
    states: dict[int, bytes] = {}
    async with hosted(CountingEnv) as (host, world):
        env = recovering(host, budget(**options), **({"snapshots": states} if kept else {}))
        await begun(env)
    assert world.saved == saved
    assert list(states) == [0] * kept


async def test_kept_snapshots_hold_the_state_before_each_turn() -> None:
    states: dict[int, bytes] = {}
    async with hosted(CountingEnv) as (host, _):
        env = recovering(host, snapshots=states)
        await begun(env, 3)
        for answered, data in states.items():
            await host.restore(data, timeout_s=None)
            assert host.env.history == [f"reply {n}" for n in range(answered)]  # pyright: ignore[reportAttributeAccessIssue]
    assert list(states) == [0, 1, 2]


async def test_no_snapshots_are_kept_of_an_environment_without_them() -> None:
    states: dict[int, bytes] = {}
    async with hosted(ReplayEnv) as (host, _):
        await begun(recovering(host, snapshots=states), 2)
    assert states == {}


async def test_snapshot_that_fails_never_brings_back_the_turn_before() -> None:
    async with hosted(CountingEnv, {("save", 1, 2): "transient"}) as (host, _):
        env = recovering(host)
        await begun(env)
        assert await state_of(env) == ["reply 0", "next"]
        assert env.retries == {"transient": 1}


@pytest.mark.parametrize("kind", SAVED)
async def test_state_of_a_broken_environment_is_not_asked_for(kind: type[CountingEnv]) -> None:
    async with hosted(kind) as (host, world):
        env = recovering(host)
        await begun(env)
        assert await env.snapshot() is not None
        asked = world.saved
        host.mark_broken()
        assert await env.snapshot() is None
        assert world.saved == asked


async def test_environment_without_snapshots_returns_none() -> None:
    async with hosted(ReplayEnv) as (host, _):
        env = recovering(host)
        await begun(env)
        assert await env.snapshot() is None


# Rewinding.


@pytest.mark.parametrize("kind", RECOVERABLE)
async def test_rewind_undoes_the_last_step(kind: type[CountingEnv]) -> None:
    async with hosted(kind) as (host, _):
        env = recovering(host)
        await begun(env, 2)
        assert await env.rewind()
        assert await state_of(env) == ["reply 0", "next"]


async def test_rewind_leaves_a_state_that_cannot_be_restored() -> None:
    async with hosted(FragileEnv) as (host, _):
        env = recovering(host)
        await begun(env)
        assert not await env.rewind()
        assert await state_of(env) == ["reply 0", "next"]


@pytest.mark.parametrize(
    ("kind", "place"),
    [(SavedEnv, ("restore", 1)), (ReplayEnv, ("step", "e", 0, 1)), (ReplayEnv, ("reset", 1, 2))],
)
async def test_rewind_recovers_from_a_fault(
    kind: type[CountingEnv], place: tuple[object, ...]
) -> None:
    failing: Schedule = {place: "transient"}
    async with hosted(kind, failing) as (host, world):
        env = recovering(host)
        await begun(env, 2)
        assert await env.rewind()
        assert await state_of(env) == ["reply 0", "next"]
        assert env.spent == 1
    keys(world)


# Taking over.


@pytest.mark.parametrize("kind", [*RECOVERABLE, FragileEnv])
async def test_take_over_of_an_untouched_start_needs_no_capability(kind: type[CountingEnv]) -> None:
    async with hosted(kind) as (host, _):
        env = recovering(host)
        assert not env.is_taking_over
        start = (await env.reset()).hash
        await env.take_over([], [], None, start)
        assert env.is_taking_over
        assert await state_of(env) == ["next"]


async def recorded(kind: type[CountingEnv]) -> tuple[list[Reply], list[str], bytes | None, str]:
    """Play two replies; return the arguments of `take_over`."""
    async with hosted(kind) as (host, _):
        env = recovering(host)
        start = (await env.reset()).hash
        hashes = [(await env.step(Reply(text=f"reply {turn}"))).hash for turn in range(2)]
        return [Reply(text="reply 0"), Reply(text="reply 1")], hashes, await env.snapshot(), start


@pytest.mark.parametrize("kind", RECOVERABLE)
async def test_take_over_rebuilds_the_recorded_state(kind: type[CountingEnv]) -> None:
    replies, hashes, snapshot, start = await recorded(kind)
    async with hosted(kind) as (host, world):
        env = recovering(host)
        await env.reset()
        await env.take_over(replies, hashes, snapshot, start)
        assert list(world.steps) == ([] if snapshot else [("e", 0, 0), ("e", 1, 0)])
        assert await state_of(env) == [*(one.text for one in replies), "next"]


async def test_take_over_that_differs_says_that_an_earlier_run_is_replayed() -> None:
    replies, hashes, _, start = await recorded(ReplayEnv)
    async with hosted(ReplayEnv) as (host, _):
        env = recovering(host)
        await env.reset()
        with pytest.raises(EnvFault, match=r"at turn 1.* replayed after: an earlier run"):
            await env.take_over(replies, [hashes[0], "another"], None, start)


async def test_take_over_without_a_snapshot_replays() -> None:
    replies, hashes, _, start = await recorded(CountingEnv)
    async with hosted(CountingEnv) as (host, world):
        env = recovering(host)
        await env.reset()
        await env.take_over(replies, hashes, None, start)
        assert world.restored == 0
        assert await state_of(env) == [*(one.text for one in replies), "next"]


@pytest.mark.parametrize(
    ("kind", "place"), [(SavedEnv, ("restore", 1)), (ReplayEnv, ("step", "e", 1, 0))]
)
@pytest.mark.parametrize("retries", [0, 1])
async def test_take_over_has_a_turn_budget_apart_from_the_reset(
    kind: type[CountingEnv], place: tuple[object, ...], retries: int
) -> None:
    replies, hashes, snapshot, start = await recorded(kind)
    failing: Schedule = {place: "transient", **({("reset", 1, 1): "transient"} if retries else {})}
    async with hosted(kind, failing) as (host, world):
        env = recovering(host, budget(max_env_retries_per_turn=retries))
        await env.reset()
        if retries == 0:
            with pytest.raises(EnvFault, match="injected transient"):
                await env.take_over(replies, hashes, snapshot, start)
            return
        await env.take_over(replies, hashes, snapshot, start)
        assert await state_of(env) == [*(one.text for one in replies), "next"]
    keys(world)


@pytest.mark.parametrize("kind", RECOVERABLE)
@pytest.mark.parametrize("replies", [[], [Reply(text="reply 0")]])
async def test_take_over_refuses_another_start(
    kind: type[CountingEnv], replies: list[Reply]
) -> None:
    async with hosted(kind) as (host, world):
        env = recovering(host, can_restart=True)
        await env.reset()
        snapshot = None if kind is ReplayEnv else b"{}"
        with pytest.raises(EnvFault, match="started from a different observation") as caught:
            await env.take_over(replies, ["hash"] * len(replies), snapshot, "another")
    assert caught.value.kind is FaultKind.PERMANENT
    assert (keys(world), world.restored) == ([], 0)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (FragileEnv, "FragileEnv has no snapshot and is not replay_safe"),
        (SavedEnv, "the trajectory has no snapshot of SavedEnv, which could not be saved"),
    ],
)
@pytest.mark.parametrize("can_restart", [True, False])
@pytest.mark.parametrize(("replies", "is_same"), [([Reply(text="reply 0")], True), ([], False)])
async def test_take_over_without_a_snapshot_or_replay_loses_the_episode(
    kind: type[CountingEnv], said: str, can_restart: bool, replies: list[Reply], is_same: bool
) -> None:
    async with hosted(kind) as (host, world):
        env = recovering(host, can_restart=can_restart)
        start = (await env.reset()).hash
        hashes = ["hash"] * len(replies)
        with pytest.raises(EpisodeLostError if can_restart else EnvFault, match=said) as caught:
            await env.take_over(replies, hashes, None, start if is_same else "another")
    if isinstance(caught.value, EnvFault):
        assert not caught.value.retryable
    assert keys(world) == []


# The end of an episode.


class Held(SavedEnv):
    """Holds its first step, on a thread of its own, until it is released."""

    entered: ClassVar[threading.Event]
    released: ClassVar[threading.Event]

    def on_turn(self, response_text: str) -> Turn:
        self.entered.set()
        self.released.wait(120)
        return super().on_turn(response_text)


async def test_end_of_the_episode_cuts_a_call_and_forgets_it() -> None:
    Held.entered, Held.released = threading.Event(), threading.Event()
    interrupt = Interrupt(grace_s=0.0)
    async with hosted(Held) as (host, _):
        env = recovering(host, interrupt=interrupt)
        assert not env.was_built
        await env.reset()
        assert env.was_built
        stepping = asyncio.ensure_future(env.step(Reply(text="reply")))
        await asyncio.to_thread(Held.entered.wait, 120)
        interrupt.fire()
        with pytest.raises(CutFault, match=r"end of the episode \(aborted\)") as caught:
            await stepping
        assert (caught.value.kind, caught.value.retryable) == (FaultKind.TIMEOUT, False)
        assert host._cleanups == set(), "closing would wait for a call that may hang forever"
        Held.released.set()


async def test_episode_leaves_no_interrupt_behind() -> None:
    interrupt, found, started = Interrupt(), list[Interrupt](), set[float]()

    async def play(env: RecoveringEnv) -> None:
        found.append(env.interrupt)
        started.add(env.started)
        assert interrupt._children == {env.interrupt}
        if len(found) == 1:
            raise EpisodeLostError("lost")

    async with hosted(FragileEnv) as (host, _):
        await played(host, budget(), play, interrupt=interrupt)
    assert len(found) == 2
    assert found[0] is found[1], "restarts share the deadline of their episode"
    assert len(started) == 1, "and its start"
    assert interrupt._children == set()


async def test_shorter_observation_comes_from_the_environment() -> None:
    class Short(CountingEnv):
        def shorten(self, observation: Observation, tokens: int) -> Observation | None:
            return {**observation, "text": observation["text"][:tokens]} if tokens else None

    async with hosted(Short) as (host, _):
        env = recovering(host)
        observation = (await env.reset()).observation
        shorter = await env.shorten(observation, 5)
        assert shorter is not None
        assert shorter["content"] == "count"
        assert await env.shorten(observation, 0) is None


@pytest.mark.parametrize("failure", [RuntimeError("gone"), asyncio.CancelledError(), SystemExit(1)])
async def test_session_that_cannot_be_ended_spoils_nothing(failure: BaseException) -> None:
    engine = Sessions(failure)
    await end_session(engine, "e")
    assert engine.ended == ["e"]


async def test_cancelled_end_of_a_session_stays_cancelled() -> None:
    class Slow(Sessions):
        async def end_session(self, session_id: str) -> None:
            await asyncio.sleep(60)

    ending: Any = asyncio.ensure_future(end_session(Slow(), "e"))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
