"""Cutting calls: each cut is one cancellation, and exactly that one is taken back."""

import asyncio

import pytest

from envkit.rollout import Interrupt
from envkit.rollout.interrupt import CallCutError


async def test_cut_call_that_ends_slowly_is_not_cancelled_again() -> None:
    interrupt = Interrupt(grace_s=0.0)
    cancellations = 0

    async def ends_slowly() -> None:
        nonlocal cancellations
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancellations += 1
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                cancellations += 1
            raise

    async def cut() -> int:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(CallCutError):
            await interrupt.cut(ends_slowly())
        return task.cancelling()

    cutting = asyncio.create_task(cut())
    await asyncio.sleep(0)
    interrupt.fire()
    await asyncio.sleep(0.01)
    interrupt.hurry()  # a second signal
    interrupt.hurry()
    assert await cutting == 0
    assert cancellations == 1


async def test_cancellation_by_the_caller_stays_one_beside_a_cut() -> None:
    interrupt = Interrupt(grace_s=0.0)

    async def ends_slowly() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            raise

    cutting = asyncio.create_task(interrupt.cut(ends_slowly()))
    await asyncio.sleep(0)
    interrupt.fire()
    await asyncio.sleep(0.01)
    cutting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cutting
    assert cutting.cancelling() == 1
