"""Few go in at a time; none waits forever behind those that only wait."""

import asyncio

import pytest
from fakes.waiting import until

from envkit.threads.pool import Admission


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
