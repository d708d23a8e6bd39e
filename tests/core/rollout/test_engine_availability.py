"""The circuit breaker in front of an engine, in virtual time."""

import asyncio
import pickle
import random
from collections.abc import Awaitable, Callable

import pytest
from fakes.codecs import text_codec
from fakes.faults import say_turn
from fakes.unavailable import UnavailableEngine, refused
from fakes.virtual_time import run_virtually

from envkit.errors import EngineFault, FaultKind
from envkit.rollout.availability import LONGEST_HOLD_S, RAMP_S, Availability, availability_of
from envkit.rollout.limits import Backoff

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
