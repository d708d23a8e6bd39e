"""A player whose episodes all fault waits for what may come back, and gives up in the end."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.envs import EchoEnv
from fakes.trajectories import build
from fakes.unavailable import UnavailableEngine
from fakes.virtual_time import run_virtually

from envkit.env import PolicyContext
from envkit.errors import ConfigurationError, EngineFault, FaultKind, RunFailedError
from envkit.rollout import EpisodeSpec, Interrupt, Player, RolloutConfig, play_through
from envkit.rollout.breaker import Breaker, BreakerSettings
from envkit.rollout.self_check import SelfCheck
from envkit.rollout.supervision import Supervision
from envkit.trajectory import StopReason, Trajectory
from envkit.trajectory.stop import FaultPlace, FaultRecord

GOOD = "good"
ABORTED = "aborted"


def fails(_: float) -> str:
    return "transient"


def succeeds(_: float) -> str:
    return GOOD


def always(ending: str) -> Callable[[float], str]:
    return lambda _: ending


class Backend:
    """Plays episodes through a supervision, each as `answer` says at its start."""

    def __init__(self, answer: Callable[[float], str], **settings: Any) -> None:
        self.answer = answer
        self.breaker = Breaker(BreakerSettings(**settings))
        self.supervision = Supervision(SelfCheck("strict", 1.0), self.breaker, "fake")
        self.starts: list[float] = []
        self.patience: list[float | None] = []
        self.takes_s = 0.0
        self.interrupt = Interrupt()

    def succeed_once(self) -> None:
        """Let the first episodes of the environment be good."""
        self.supervision._first.note("fake-v0", (build((), stop_reason=StopReason.TERMINATED),))

    async def play(self) -> Trajectory:
        spec = EpisodeSpec(env_id="fake-v0")
        async with self.supervision.admitted(spec, self.interrupt) as admission:
            self.patience.append(admission.patience_s)
            return (await self.supervision.recorded(spec, self._episode(), admission))[0]

    async def play_together(self, episodes: int) -> None:
        await asyncio.gather(*(self.play() for _ in range(episodes)))

    async def _episode(self) -> tuple[Trajectory, ...]:
        now = asyncio.get_running_loop().time()
        self.starts.append(now)
        await asyncio.sleep(self.takes_s)
        ending = ABORTED if self.interrupt.reason is not None else self.answer(now)
        if ending == GOOD:
            return (build((), stop_reason=StopReason.TERMINATED),)
        if ending == ABORTED:
            return (build((), stop_reason=StopReason.ABORTED),)
        fault = FaultRecord(where=FaultPlace.GENERATE, kind=FaultKind(ending), message="dead")
        return (build((), stop_reason=StopReason.ENGINE_FAULT, fault=fault),)


async def endless(backend: Backend, slots: int) -> None:
    """Play one episode after another in each slot, as a trainer with dynamic sampling does."""

    async def slot() -> None:
        while True:
            await backend.play()
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for _ in range(slots):
            group.create_task(slot())


def failure_of(error: BaseExceptionGroup[Any]) -> str:
    found = error.exceptions[0]
    assert isinstance(found, RunFailedError)
    return str(found)


@pytest.mark.parametrize("slots", [1, 7])
@pytest.mark.parametrize("kind", ["transient", "timeout", "crashed"])
def test_breaker_waits_for_a_dead_backend_and_gives_up_after_15_minutes(
    kind: str, slots: int
) -> None:
    backend = Backend(lambda _: kind)

    async def run() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await endless(backend, slots)
        assert asyncio.get_running_loop().time() == pytest.approx(900.0, abs=1.0)
        message = failure_of(caught.value)
        assert "episodes in a row faulted, for 900 s (breaker.give_up_s)" in message
        assert "the last at generate: dead" in message

    run_virtually(run())
    at_once = [start for start in backend.starts if start < 0.9]
    assert 32 <= len(at_once) < 32 + slots
    later = backend.starts[len(at_once) :]
    pauses = [after - before for before, after in itertools.pairwise(later)]
    assert pauses == pytest.approx([2, 4, 8, 16, 32, 64, 128, 256, 300], abs=0.5)


def test_breaker_gives_up_at_once_if_no_fault_can_pass() -> None:
    kinds = ["permanent", "grader"]
    backend = Backend(lambda _: kinds[len(backend.starts) % 2])
    backend.succeed_once()

    async def run() -> None:
        for _ in range(31):
            await backend.play()
        with pytest.raises(RunFailedError, match="32 episodes in a row faulted, and a retry"):
            await backend.play()
        with pytest.raises(RunFailedError) as later:
            await backend.play()
        assert later.value.played[0].stop_reason is StopReason.ABORTED
        assert asyncio.get_running_loop().time() == 0

    run_virtually(run())
    assert len(backend.starts) == 32


@pytest.mark.parametrize("ending", [GOOD, "permanent", ABORTED])
def test_breaker_waits_for_running_episodes_before_it_gives_up(ending: str) -> None:
    """A trainer starts hundreds at once, and those whose task is broken end first."""
    backend = Backend(lambda _: "permanent")
    backend.succeed_once()

    async def run() -> None:
        backend.takes_s = 5.0
        slow = asyncio.create_task(backend.play())
        await asyncio.sleep(0.1)
        backend.takes_s = 0.0
        await backend.play_together(40)
        assert backend.breaker.outage is not None
        backend.answer = always(ending)
        if ending == "permanent":
            with pytest.raises(RunFailedError, match="41 episodes in a row faulted, and a retry"):
                await slow
        else:
            await slow
        if ending == GOOD:
            assert backend.breaker.outage is None
            return
        with pytest.raises(RunFailedError, match="a retry survives none"):
            await backend.play()

    run_virtually(run())


def test_one_transient_fault_of_the_row_lets_the_player_wait() -> None:
    backend = Backend(lambda _: "transient" if len(backend.starts) == 5 else "permanent")
    backend.succeed_once()

    async def run() -> None:
        for _ in range(32):
            await backend.play()
        assert backend.breaker.outage is not None
        await backend.play()
        assert asyncio.get_running_loop().time() == 1.0

    run_virtually(run())


def test_one_good_episode_resets_the_row_and_releases_those_that_wait() -> None:
    backend = Backend(lambda now: GOOD if now >= 100 else "transient")

    async def run() -> None:
        await backend.play_together(32)
        await backend.play_together(20)
        # At 1, 3, 7, 15, 31, 63 s it still faults; at 127 s it is back, and all others follow.
        assert asyncio.get_running_loop().time() == 127.0
        assert backend.breaker.outage is None
        backend.answer = fails
        await backend.play_together(31)
        assert backend.breaker.outage is None

    run_virtually(run())


def test_aborted_episodes_neither_count_nor_end_the_row() -> None:
    answers = [ABORTED, "transient"] * 40
    backend = Backend(lambda _: answers[len(backend.starts) - 1])

    async def run() -> None:
        for _ in range(63):
            await backend.play()
        assert backend.breaker.outage is None
        for _ in range(2):
            await backend.play()
        assert backend.breaker.outage is not None

    run_virtually(run())


def test_breaker_counts_twice_the_concurrency_of_a_run() -> None:
    backend = Backend(lambda _: "permanent")
    backend.succeed_once()
    backend.breaker.expect(40)

    async def run() -> None:
        for _ in range(79):
            await backend.play()
        with pytest.raises(RunFailedError, match="80 episodes in a row"):
            await backend.play()

    run_virtually(run())


def test_long_trial_episodes_are_not_cut_when_time_is_up() -> None:
    """The backend is back, but no episode has ended by the time at which the player gives up."""
    backend = Backend(lambda now: GOOD if now > 20 else "transient", give_up_s=60.0)

    async def run() -> None:
        await backend.play_together(32)
        waiting = [asyncio.create_task(backend.play()) for _ in range(9)]
        await asyncio.sleep(20)
        backend.takes_s = 500.0
        played = await asyncio.gather(*waiting)
        # Four trials fault at 1, 3, 7 and 15 s; those at 31 and 47 s end long after 60 s.
        assert sum(one.is_faulted for one in played) == 4
        assert asyncio.get_running_loop().time() == 31 + 500 + 500

    run_virtually(run())


def test_trials_that_fault_after_the_time_is_up_end_the_run() -> None:
    backend = Backend(fails, give_up_s=60.0)

    async def run() -> None:
        await backend.play_together(32)
        backend.takes_s = 100.0
        waiting = [asyncio.create_task(backend.play()) for _ in range(200)]
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(isinstance(one, RunFailedError) for one in ended)
        assert asyncio.get_running_loop().time() < 170
        left = [patience for patience in backend.patience if patience is not None]
        assert left[0] == 59.0
        assert all(
            patience == pytest.approx(60.0 - start)
            for patience, start in zip(left, backend.starts[32:], strict=True)
        )

    run_virtually(run())


def test_an_interrupt_ends_the_wait_at_once() -> None:
    backend = Backend(fails)

    async def run() -> None:
        await backend.play_together(32)
        waiting = [asyncio.create_task(backend.play()) for _ in range(3)]
        await asyncio.sleep(0.25)
        outage = backend.breaker.outage
        assert outage is not None
        assert outage.waiting == 3
        backend.interrupt.fire()
        played = await asyncio.gather(*waiting)
        assert {one.stop_reason for one in played} == {StopReason.ABORTED}
        assert asyncio.get_running_loop().time() == 0.25
        assert not backend.interrupt._waiting

    run_virtually(run())


def test_a_cancelled_trial_passes_its_place_on() -> None:
    backend = Backend(fails, give_up_s=30.0)

    async def run() -> None:
        await backend.play_together(32)
        backend.takes_s = 1000.0
        trial = asyncio.create_task(backend.play())
        await asyncio.sleep(2)
        waiting = asyncio.create_task(backend.play())
        await asyncio.sleep(2)
        trial.cancel()
        waiting.cancel()
        backend.takes_s = 0.0
        last = asyncio.create_task(backend.play())
        await asyncio.sleep(0.1)
        await asyncio.wait([last])
        backend.answer = succeeds
        assert (await backend.play()).stop_reason is StopReason.TERMINATED
        await asyncio.gather(trial, waiting, return_exceptions=True)
        assert backend.breaker._trying == 0

    run_virtually(run())


def test_breaker_without_a_limit_never_waits() -> None:
    backend = Backend(fails, episodes=None)

    async def run() -> None:
        for _ in range(500):
            await backend.play()
        assert asyncio.get_running_loop().time() == 0
        assert backend.breaker.outage is None

    run_virtually(run())


def test_breaker_without_an_end_waits_for_days(caplog: pytest.LogCaptureFixture) -> None:
    backend = Backend(lambda now: GOOD if now > 400_000 else "timeout", give_up_s=None)

    async def run() -> None:
        while (await backend.play()).is_faulted:
            pass

    with caplog.at_level(logging.WARNING):
        run_virtually(run())
    pauses = [record.getMessage() for record in caplog.records]
    assert "32 episodes in a row faulted; the next one starts in 1 s. The last: generate: dead" in (
        pauses
    )
    assert "going on" in pauses[-1]
    assert set(backend.patience) == {None}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "breaker.episodes must be at least 1, or null"),
        ({"episodes": True}, "breaker: episodes must be an integer or null"),
        ({"give_up_s": -1}, "breaker.give_up_s must be at least 0"),
        ({"first_wait_s": "1"}, "breaker: first_wait_s must be a finite number"),
        ({"longest": 1}, "breaker has no key 'longest'"),
    ],
)
def test_breaker_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RolloutConfig.from_mapping({"breaker": settings})


# ---- through a real player


def _engine() -> UnavailableEngine:
    def word(context: PolicyContext) -> str:
        return str(context.task["word"])

    return UnavailableEngine(text_codec(), word)


async def _playing(player: Player, episodes: int) -> list[Trajectory]:
    return [(await player.play(EchoEnv, EpisodeSpec(seed=n)))[0] for n in range(episodes)]


def _player(engine: UnavailableEngine, **breaker: Any) -> Player:
    settings = {"first_wait_s": 0.01, "longest_wait_s": 0.05, **breaker}
    config = RolloutConfig.from_mapping(
        {"breaker": settings, "retries": {"engine_unavailable_s": 0.0}}
    )
    return Player(engine, text_codec(), config)


async def test_player_of_a_killed_engine_ends_with_its_error() -> None:
    engine = _engine()
    player = _player(engine, give_up_s=0.2)
    assert not (await _playing(player, 2))[-1].is_faulted
    engine.stop()
    with pytest.raises(RunFailedError, match=r"in a row faulted, for .* the last at generate"):
        await _playing(player, 10_000)
    engine.start()
    with pytest.raises(RunFailedError):  # a trainer may have swallowed the first one
        await _playing(player, 1)
    await player.aclose()


async def test_player_goes_on_when_its_engine_is_back() -> None:
    engine = _engine()
    player = _player(engine, give_up_s=60.0)
    engine.stop()
    playing = asyncio.create_task(_playing(player, 60))
    while player._episodes.breaker.outage is None:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)
    outage = str(player.availability.outage)
    assert "episodes in a row faulted, none succeeded for " in outage
    engine.start()
    played = await playing
    assert not played[-1].is_faulted
    assert sum(one.is_faulted for one in played) < 45
    assert player.availability.outage is None
    await player.aclose()


async def test_trial_waits_for_the_engine_no_longer_than_the_player() -> None:
    engine = _engine()
    engine.stop()
    config = RolloutConfig.from_mapping(
        {
            "breaker": {"episodes": 2, "first_wait_s": 0.0, "give_up_s": 0.3},
            "retries": {"engine_unavailable_s": 0.0},
        }
    )
    player = Player(engine, text_codec(), config)
    await _playing(player, 2)
    patient = RolloutConfig.from_mapping({"retries": {"engine_unavailable_s": None}})
    object.__setattr__(player._setup, "retries", patient.retries)
    async with asyncio.timeout(120):
        with pytest.raises(RunFailedError):
            await _playing(player, 9)
    await player.aclose()


async def test_repeated_aborts_of_a_server_count_as_faults() -> None:
    engine = _engine()
    player = _player(engine, episodes=3, give_up_s=0.0)

    spec, interrupt = EpisodeSpec(seed=1), Interrupt()
    interrupt.fire()
    for _ in range(2):
        (played,), _ = await play_through(player, EchoEnv, spec, interrupt=interrupt, max_aborts=0)
        assert played.stop_reason is StopReason.ENGINE_FAULT
    with pytest.raises(RunFailedError, match="3 episodes in a row faulted") as caught:
        await play_through(player, EchoEnv, spec, interrupt=interrupt, max_aborts=0)
    assert caught.value.played[0].stop_reason is StopReason.ENGINE_FAULT
    await player.aclose()


async def test_engine_fault_of_one_request_counts_too() -> None:
    engine = _engine()
    engine.stop()
    engine.fault = lambda: EngineFault("out of memory", kind=FaultKind.PERMANENT)
    player = _player(engine)
    with pytest.raises(RunFailedError, match="first 8 episodes"):
        await _playing(player, 100)
    await player.aclose()
