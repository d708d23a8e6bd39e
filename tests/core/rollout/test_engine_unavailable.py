"""Episodes whose engine is unavailable: they wait, keep what they have, and continue."""

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, World, say_turn
from fakes.playing import collected, play_one
from fakes.unavailable import UnavailableEngine, refused
from fakes.virtual_time import run_virtually, skip
from fakes.waiting import until

from envkit.errors import EngineFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import (
    Backoff,
    GenerateRequest,
    Generation,
    Interrupt,
    Limits,
    RetryBudget,
    resume,
)
from envkit.rollout.availability import LONGEST_HOLD_S, RAMP_S, Availability, availability_of
from envkit.trajectory import StopReason, Trajectory

QUICK = Backoff(initial_s=0.01, maximum_s=0.02)
PATIENT = RetryBudget(backoff=QUICK)
PICKY = RetryBudget(backoff=QUICK, max_engine_retries_per_turn=0)


def build() -> CountingEnv:
    return CountingEnv(World(), FaultPlan(0.0))


def unavailable_engine(**options: Any) -> UnavailableEngine:
    return UnavailableEngine(text_codec(), say_turn, **options)


async def played(engine: Any, **options: Any) -> Trajectory:
    settings: dict[str, Any] = {"retries": PICKY, "seed": 5, **options}
    return await play_one(build, engine, text_codec(), **settings)


async def test_play_waits_for_an_unavailable_engine() -> None:
    engine = unavailable_engine()
    engine.stop()
    running = asyncio.create_task(played(engine))
    await until(lambda: engine.refusals >= 3)
    outage = availability_of(engine).outage
    assert outage is not None
    assert outage.waiting == 1
    engine.start()
    trajectory = await running
    assert trajectory.reward == 1.0
    assert trajectory.fault is None
    first = trajectory.turns[0]
    assert first.engine_retries == engine.refusals >= 3
    assert 0 < first.queue_seconds <= first.generate_seconds
    assert [turn.engine_retries for turn in trajectory.turns[1:]] == [0, 0]


@pytest.mark.slow
async def test_collect_loses_none_of_256_episodes_when_the_engine_restarts() -> None:
    engine = unavailable_engine(latency_s=0.01)
    restarts = 0

    def maybe_stop() -> None:
        nonlocal restarts
        if engine.answers in (100, 400):
            restarts += 1
            engine.stop()
            asyncio.get_running_loop().call_later(0.3, engine.start)

    engine.on_answer = maybe_stop
    rewards = [
        trajectory.reward
        async for trajectory in collected(
            build, engine, text_codec(), episodes=256, concurrency=256, retries=PATIENT
        )
    ]
    assert rewards == [1.0] * 256
    assert restarts == 2
    # One at a time, at least 8 ms apart, plus those in flight when it went down.
    assert engine.refusals <= 2 * (0.3 / 0.008) + 256
    assert engine.answers == 3 * 256


async def test_fault_of_one_request_parks_no_other_episode() -> None:
    class Choosy(UnavailableEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            assert request.context is not None
            if request.session_id == "bad":
                raise EngineFault("too long a prompt")
            assert availability_of(self).is_up
            return await super().generate(request)

    engine = Choosy(text_codec(), say_turn, latency_s=0.005)
    names = ["a", "bad", "b", "c"]
    trajectories = await asyncio.gather(*(played(engine, episode_id=name) for name in names))
    assert [one.stop_reason is StopReason.ENGINE_FAULT for one in trajectories] == [
        name == "bad" for name in names
    ]


async def test_request_that_breaks_the_engine_each_time_faults_alone() -> None:
    class Fragile(UnavailableEngine):
        async def generate(self, request: GenerateRequest) -> Generation:
            if request.session_id == "poison" and not self.is_down:
                self.stop()
                asyncio.get_running_loop().call_later(0.005, self.start)
                raise EngineFault("connection broken", kind=FaultKind.CRASHED, is_unavailable=True)
            return await super().generate(request)

    engine = Fragile(text_codec(), say_turn)
    retries = RetryBudget(backoff=QUICK, max_engine_retries_per_turn=2, engine_unavailable_s=None)
    names = ["poison", "a", "b", "c", "d"]
    trajectories = await asyncio.gather(
        *(played(engine, episode_id=name, retries=retries) for name in names)
    )
    assert [one.reward for one in trajectories] == [None, 1.0, 1.0, 1.0, 1.0]
    assert trajectories[0].stop_reason is StopReason.ENGINE_FAULT


async def test_episode_faults_if_the_engine_stays_unavailable() -> None:
    engine = unavailable_engine()
    engine.stop()
    retries = RetryBudget(backoff=QUICK, engine_unavailable_s=0.1)
    trajectories = await asyncio.gather(*(played(engine, retries=retries) for _ in range(4)))
    for trajectory in trajectories:
        assert trajectory.stop_reason is StopReason.ENGINE_FAULT
        assert trajectory.reward is None
        assert trajectory.fault is not None
        assert trajectory.fault.kind == "transient"
    messages = [one.fault.message for one in trajectories if one.fault is not None]
    assert any("longer than RetryBudget.engine_unavailable_s, 0.1 s" in text for text in messages)
    assert all("connection refused" in text for text in messages)


async def test_engine_unavailable_s_of_zero_faults_immediately() -> None:
    engine = unavailable_engine()
    engine.stop()
    trajectory = await played(engine, retries=RetryBudget(engine_unavailable_s=0))
    assert trajectory.stop_reason is StopReason.ENGINE_FAULT
    assert engine.refusals == 1


async def test_interrupt_wakes_a_parked_episode_which_can_be_resumed() -> None:
    engine, interrupt = unavailable_engine(), Interrupt()

    def stop_after_first() -> None:
        if engine.answers == 1:
            engine.stop()

    engine.on_answer = stop_after_first
    forever = RetryBudget(
        backoff=Backoff(initial_s=3600, maximum_s=3600), engine_unavailable_s=None
    )
    tasks = [
        asyncio.create_task(played(engine, retries=forever, interrupt=interrupt)) for _ in range(2)
    ]
    await until(lambda: outage(engine) == 2)
    interrupt.fire()
    async with asyncio.timeout(120):
        trajectories = await asyncio.gather(*tasks)
    await interrupt.close()
    assert [one.stop_reason for one in trajectories] == [StopReason.ABORTED] * 2
    assert all(one.fault is None for one in trajectories)
    assert sum(sum(one.loss_mask()) > 0 for one in trajectories) == 1  # the first reply is kept
    restarted = unavailable_engine()
    for trajectory in trajectories:
        whole = await resume(trajectory, build, restarted, text_codec(), retries=PATIENT)
        assert whole.reward == 1.0
    assert engine.answers + restarted.answers == 6  # nothing was sampled again


def outage(engine: UnavailableEngine) -> int | None:
    found = availability_of(engine).outage
    return None if found is None else found.waiting


async def test_deadline_of_a_parked_episode_is_a_fault_without_reward() -> None:
    engine = unavailable_engine()
    engine.stop()
    retries = RetryBudget(backoff=Backoff(initial_s=3600, maximum_s=3600))
    playing = asyncio.create_task(
        played(engine, retries=retries, limits=Limits(episode_timeout_s=60))
    )
    await until(lambda: outage(engine) == 1)
    skip(60)
    async with asyncio.timeout(120):
        trajectory = await playing
    assert trajectory.stop_reason is StopReason.ENGINE_FAULT
    assert trajectory.reward is None
    assert trajectory.fault is not None
    assert "time ran out while engine 'scripted' was unavailable" in trajectory.fault.message


async def test_connection_error_of_a_custom_engine_means_unavailable() -> None:
    engine = unavailable_engine()
    engine.fault = lambda: ConnectionRefusedError("port 30000")
    engine.stop()
    running = asyncio.create_task(played(engine))
    await until(lambda: engine.refusals >= 2)
    engine.start()
    assert (await running).reward == 1.0


async def test_sampled_tokens_are_the_same_with_and_without_an_outage() -> None:
    calm, stormy = unavailable_engine(), unavailable_engine()

    def refuse_once() -> Exception:
        stormy.start()
        return refused()

    stormy.on_answer, stormy.fault = stormy.stop, refuse_once
    first, second = await asyncio.gather(played(calm), played(stormy))
    assert first.train_ids() == second.train_ids()
    assert first.loss_mask() == second.loss_mask()
    assert stormy.answers == calm.answers == 3
    assert stormy.refusals == 2  # between the answers


# ---- the circuit breaker in front of an engine, in virtual time


STEADY = Backoff(initial_s=1.0, factor=2.0, maximum_s=10.0, jitter=0.0)


class Client:
    """Sends requests of its own through one availability and notes when."""

    def __init__(self, *, probes: bool = False) -> None:
        engine_class = ProbedEngine if probes else UnavailableEngine
        self.engine = engine_class(text_codec(), say_turn)
        self.known = availability_of(self.engine)
        self.backoff = STEADY
        self.rng = random.Random(0)
        self.sent: list[float] = []
        self.done: list[float] = []

    def now(self) -> float:
        return round(asyncio.get_running_loop().time(), 3)

    async def request(
        self,
        answer: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Send until there is an answer, as an episode does."""
        while True:
            ticket = await self.known.enter(self.backoff, self.rng)
            try:
                self.sent.append(self.now())
                await asyncio.sleep(0)
                if answer is not None:
                    await answer()
                elif self.engine.is_down:
                    raise self.engine.fault()
            except EngineFault as fault:
                self.known.failed(ticket, fault, self.backoff, self.rng)
            else:
                self.known.answered(ticket)
                self.done.append(self.now())
                return
            finally:
                self.known.leave(ticket)


class ProbedEngine(UnavailableEngine):
    probes = 0

    async def probe(self) -> None:
        self.probes += 1
        if self.is_down:
            raise refused()


def later(seconds: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, call)


def test_waiting_requests_send_one_prober_with_growing_pauses() -> None:
    async def main() -> None:
        client = Client()
        client.engine.stop()
        later(60, client.engine.start)
        await asyncio.gather(*(client.request() for _ in range(100)))
        assert client.sent[:100] == [0.0] * 100  # all were on their way
        assert client.sent[100:108] == [1, 3, 7, 15, 25, 35, 45, 55]
        assert client.sent[108] == 65
        assert len(client.done) == 100

    run_virtually(main())


def test_requests_are_not_sent_to_an_unavailable_server() -> None:
    async def main() -> None:
        client = Client()
        client.engine.stop()
        later(60, client.engine.start)
        first = asyncio.create_task(client.request())
        await asyncio.sleep(0.5)
        await asyncio.gather(first, *(client.request() for _ in range(255)))
        assert len([moment for moment in client.sent if moment < 60]) == 9
        assert len(client.done) == 256

    run_virtually(main())


def test_release_grows_from_batch_to_batch() -> None:
    async def main() -> None:
        client = Client()
        client.engine.stop()
        later(0.5, client.engine.start)
        await asyncio.gather(*(client.request() for _ in range(64)))
        moments = sorted(set(client.done))
        counts = [client.done.count(moment) for moment in moments]
        assert counts == [3, 4, 8, 16, 32, 1]
        assert moments[-1] - moments[0] == pytest.approx(5 * RAMP_S)
        assert client.known.is_up

    run_virtually(main())


def test_failure_during_the_release_stops_it() -> None:
    async def main() -> None:
        client = Client()
        client.engine.stop()
        later(0.5, client.engine.start)
        later(1.05, client.engine.stop)
        later(1.5, client.engine.start)
        await asyncio.gather(*(client.request() for _ in range(64)))
        early = [moment for moment in client.sent[64:] if moment < 1.5]
        assert len(early) == 1 + 2 + 4  # the trial, its batch, and the batch that met the outage
        assert len(client.done) == 64

    run_virtually(main())


@pytest.mark.parametrize(
    ("asked", "waited"), [(10.0, 10.0), (0.0, 1.0), (1e9, LONGEST_HOLD_S), (float("nan"), 1.0)]
)
def test_retry_after_is_obeyed_within_bounds(asked: float, waited: float) -> None:
    async def main() -> None:
        client = Client()
        client.engine.stop()
        client.engine.fault = lambda: refused(retry_after_s=asked)
        later(0.5, client.engine.start)
        await asyncio.gather(*(client.request() for _ in range(8)))
        assert client.sent[8] == waited

    run_virtually(main())


def test_answer_to_an_older_request_does_not_open_while_the_server_asks_for_time() -> None:
    async def main() -> None:
        client = Client()
        client.engine.fault = lambda: refused(retry_after_s=10.0)

        async def slow() -> None:
            await asyncio.sleep(2)

        running = asyncio.create_task(client.request(slow))
        await asyncio.sleep(0.1)
        client.engine.stop()
        waiting = asyncio.create_task(client.request())
        later(0.5, client.engine.start)
        await running
        await waiting
        assert client.done == [2.0, 10.1]

    run_virtually(main())


def test_trial_that_is_cancelled_passes_to_the_next_request() -> None:
    async def main() -> None:
        client = Client()
        client.engine.stop()

        async def hang() -> None:
            if client.now() < 1:
                raise refused()
            await asyncio.Event().wait()

        first = asyncio.create_task(client.request(hang))
        await asyncio.sleep(0)
        others = [asyncio.create_task(client.request()) for _ in range(3)]
        await asyncio.sleep(1.5)
        client.engine.start()
        assert not any(task.done() for task in others)
        first.cancel()
        await asyncio.gather(*others)
        with pytest.raises(asyncio.CancelledError):
            await first

    run_virtually(main())


def test_waiting_request_that_is_cancelled_is_forgotten() -> None:
    async def main() -> None:
        client = Client()
        client.engine.stop()
        tasks = [asyncio.create_task(client.request()) for _ in range(4)]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        outage = client.known.outage
        assert outage is not None
        assert outage.waiting == 0
        await asyncio.sleep(5)
        client.engine.start()
        await client.request()  # no other episode tries: this one is the trial
        assert client.known.is_up

    run_virtually(main())


def test_engine_that_can_be_asked_is_probed_instead_of_sent_requests() -> None:
    async def main() -> None:
        client = Client(probes=True)
        assert isinstance(client.engine, ProbedEngine)
        client.engine.stop()
        later(60, client.engine.start)
        await asyncio.gather(*(client.request() for _ in range(100)))
        assert len([moment for moment in client.sent if moment < 60]) == 100
        assert client.engine.probes == 9
        assert len(client.done) == 100

    run_virtually(main())


def test_slow_reply_of_the_trial_does_not_hold_the_others_of_a_probed_engine() -> None:
    async def main() -> None:
        client = Client(probes=True)
        client.engine.stop()

        async def slow() -> None:
            if client.engine.is_down:
                raise refused()
            await asyncio.sleep(100)

        later(0.5, client.engine.start)
        await asyncio.gather(client.request(slow), *(client.request() for _ in range(10)))
        assert client.done[-1] > 100
        assert client.done[-2] < 2

    run_virtually(main())


def test_outage_says_how_long_and_how_many_wait() -> None:
    async def main() -> None:
        client = Client()
        assert client.known.outage is None
        client.engine.stop()
        tasks = [asyncio.create_task(client.request()) for _ in range(3)]
        await asyncio.sleep(12)
        outage = client.known.outage
        assert outage is not None
        assert str(outage) == "engine scripted unavailable for 12 s, 3 episodes waiting"
        assert (outage.attempts, outage.reason) == (4, "connection refused")
        client.engine.start()
        await asyncio.gather(*tasks)
        await asyncio.sleep(1)
        assert client.known.outage is None

    run_virtually(main())


def test_engine_availability_is_shared_per_engine_and_loop() -> None:
    async def main() -> None:
        engine = UnavailableEngine(text_codec(), say_turn)
        known = availability_of(engine)
        assert availability_of(engine) is known
        assert availability_of(UnavailableEngine(text_codec(), say_turn)) is not known

        async def elsewhere() -> Availability:
            return availability_of(engine)

        assert await asyncio.to_thread(asyncio.run, elsewhere()) is not known

    asyncio.run(main())


def test_engine_fault_keeps_is_unavailable_across_processes() -> None:
    fault = EngineFault("busy", kind=FaultKind.TRANSIENT, is_unavailable=True, retry_after_s=2.5)
    back = pickle.loads(pickle.dumps(fault))
    assert (str(back), back.kind, back.retryable) == ("busy", FaultKind.TRANSIENT, True)
    assert (back.is_unavailable, back.retry_after_s) == (True, 2.5)
