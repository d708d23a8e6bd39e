"""Threads for blocking calls: few go in at once, none waits forever or is lost to hung ones."""

import asyncio
import threading
import time
from functools import partial

import pytest
from fakes.virtual_time import skip
from fakes.waiting import until

from envkit.threads.pool import Admission, WorkerPool
from envkit.threads.workers import DeadlineError, Mailbox, Worker


class Visitors:
    """Counts those within."""

    def __init__(self, few: int, patience_s: float = 60.0) -> None:
        self.admission = Admission(few, patience_s=patience_s)
        self.inside = 0
        self.most = 0

    async def visit(self, work: asyncio.Event | None = None, *, yields: int = 0) -> None:
        async with self.admission.turn():
            self.inside += 1
            self.most = max(self.most, self.inside)
            try:
                for _ in range(yields):
                    await asyncio.sleep(0)
                if work is not None:
                    await work.wait()
            finally:
                self.inside -= 1


async def test_admission_lets_few_in_at_a_time() -> None:
    visitors = Visitors(2)
    await asyncio.gather(*(visitors.visit(yields=3) for _ in range(50)))
    assert visitors.most == 2


async def test_admission_admits_newcomers_after_waiting_callers() -> None:
    visitors, end = Visitors(2, patience_s=0.01), asyncio.Event()
    tasks = [asyncio.ensure_future(visitors.visit(end)) for _ in range(8)]
    await until(lambda: visitors.inside == 8)
    end.set()
    await asyncio.gather(*tasks)
    visitors.admission._patience_s, visitors.most = 60.0, 0
    await asyncio.gather(*(visitors.visit(yields=3) for _ in range(50)))
    assert visitors.most == 2  # those that went in without a place have freed none


@pytest.mark.parametrize("when", range(8))
async def test_admission_returns_the_place_of_a_cancelled_caller(when: int) -> None:
    visitors, end = Visitors(1), asyncio.Event()
    first = asyncio.ensure_future(visitors.visit(end))
    second = asyncio.ensure_future(visitors.visit(yields=3))
    for step in range(8):
        await asyncio.sleep(0)
        if step == when:
            second.cancel()
        if step == 3:
            end.set()
    await asyncio.gather(first, second, return_exceptions=True)
    visitors.most = 0
    await asyncio.gather(*(visitors.visit(yields=3) for _ in range(20)))
    assert visitors.most == 1


async def test_admission_frees_the_place_of_work_that_fails() -> None:
    visitors = Visitors(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with visitors.admission.turn():
                raise ZeroDivisionError
    await visitors.visit()
    assert visitors.most == 1


def pool_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("envkit-pool-")}


async def test_pool_returns_results_and_raises_what_was_raised() -> None:
    pool = WorkerPool()
    assert await pool.run(lambda: 3) == 3
    assert await pool.run(lambda: None) is None
    for error in (KeyError("x"), TimeoutError("own"), OSError("disk")):

        def fail(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            await pool.run(fail, timeout_s=5)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run(lambda: next(iter(())))
    pool.close()


async def test_pool_runs_slow_calls_side_by_side() -> None:
    pool = WorkerPool(max_threads=32)
    together = threading.Barrier(20, timeout=120)
    await asyncio.gather(*(pool.run(together.wait) for _ in range(20)))
    pool.close()


async def test_pool_never_runs_more_than_it_may() -> None:
    pool, lock, running, most = WorkerPool(max_threads=3), threading.Lock(), 0, 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    await asyncio.gather(*(pool.run(work) for _ in range(24)))
    assert most == 3
    pool.close()


async def test_pool_replaces_a_thread_that_hangs() -> None:
    others = pool_threads()  # of tests that ran before
    pool, gate = WorkerPool(max_threads=2), threading.Event()
    for _ in range(4):
        with pytest.raises(DeadlineError):
            await pool.run(gate.wait, timeout_s=0.05)
    assert await pool.run(lambda: "alive", timeout_s=5) == "alive"
    gate.set()
    pool.close()
    await asyncio.sleep(0)
    await until(lambda: pool_threads() <= others)


class Refusing:
    """Refuses to start threads while `refusals` lasts, as the system does at its limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: int) -> None:
        self.refusals, self.started, start = refusals, 0, threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name.startswith("envkit-pool-") and self.refusals > 0:
                self.refusals -= 1
                raise RuntimeError("can't start new thread")
            self.started += 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("refusals", [1, 5])
async def test_pool_without_a_thread_waits_for_one_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusals: int
) -> None:
    system, pool = Refusing(monkeypatch, refusals), WorkerPool()
    assert await asyncio.wait_for(pool.run(lambda: "done"), 120) == "done"
    assert system.refusals == 0
    assert len(caplog.records) == 1
    assert "can't start new thread: calls wait for 0 threads" in caplog.text
    assert await pool.run(lambda: "again", timeout_s=5) == "again"
    pool.close()


async def test_pool_whose_growth_is_refused_goes_on_with_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = WorkerPool(max_threads=8)
    assert await pool.run(lambda: 1) == 1
    system = Refusing(monkeypatch, 10**9)
    for _ in range(3):
        before, gate = system.refusals, threading.Event()
        calls = [asyncio.create_task(pool.run(partial(gate.wait, 120))) for _ in range(3)]
        await until(lambda before=before: system.refusals < before)
        gate.set()
        assert all(await asyncio.gather(*calls))
    assert system.started == 0
    system.refusals = 0
    together = threading.Barrier(4, timeout=120)
    await asyncio.gather(*(pool.run(together.wait) for _ in range(4)))
    pool.close()


async def test_pool_counts_a_deadline_from_the_start_of_the_call() -> None:
    pool, begun, gate = WorkerPool(max_threads=1), threading.Event(), threading.Event()
    slow = asyncio.create_task(pool.run(lambda: begun.set() or gate.wait(120)))
    await until(begun.is_set)
    waiting = asyncio.create_task(pool.run(lambda: "waited", timeout_s=60))
    await asyncio.sleep(0)
    skip(90)
    await asyncio.sleep(0.01)  # the timer of the call runs
    gate.set()
    assert await waiting == "waited"
    assert await slow
    pool.close()


async def test_pool_skips_a_call_that_was_cancelled_before_its_start() -> None:
    pool, begun, gate = WorkerPool(max_threads=1), threading.Event(), threading.Event()
    ran: list[int] = []
    slow = asyncio.create_task(pool.run(lambda: begun.set() or gate.wait(120)))
    await until(begun.is_set)
    late = asyncio.create_task(pool.run(lambda: ran.append(1)))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.sleep(0)
    gate.set()
    await slow
    assert await pool.run(lambda: "next") == "next"
    assert ran == []
    pool.close()


async def test_pool_carries_thousands_of_quick_calls() -> None:
    pool = WorkerPool()
    results = await asyncio.gather(*(pool.run(lambda n=n: n * n) for n in range(5000)))
    assert results == [n * n for n in range(5000)]
    pool.close()


async def test_worker_cleans_up_after_a_call_that_comes_back_late() -> None:
    worker, gate, cleaned = Worker(Mailbox()), threading.Event(), threading.Event()
    with pytest.raises(DeadlineError):
        await worker.call(gate.wait, timeout_s=0.05)
    worker.abandon(cleaned.set)
    assert not cleaned.is_set()
    gate.set()
    assert await asyncio.to_thread(cleaned.wait, 120)


async def test_trimmed_pool_keeps_a_thread_and_goes_on() -> None:
    others = pool_threads()
    pool = WorkerPool()
    pool.reserve()
    await asyncio.gather(*(pool.run(lambda: time.sleep(0.02)) for _ in range(8)))
    await pool.computing.run(lambda: None)
    pool.trim()
    deadline = time.monotonic() + 120
    while len(pool_threads() - others) > 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
        pool.trim()  # a thread whose call has ended is not idle at once
    assert len(pool_threads() - others) == 2  # one to wait and one to compute
    assert await asyncio.gather(*(pool.run(lambda: 1) for _ in range(20))) == [1] * 20
    pool.close()
