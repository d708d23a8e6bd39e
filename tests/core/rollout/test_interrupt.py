"""Cutting calls: each cut is one cancellation, and exactly that one is taken back."""

import asyncio
from collections import Counter

import pytest

from envkit.rollout import Interrupt
from envkit.rollout.interrupt import Brake, CallCutError


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


async def test_cancellation_by_the_caller_wins_over_a_cut() -> None:
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


async def _loop_iterations_of(brake: Brake, episodes: int) -> list[int]:
    """Hold episodes, release them; return in which loop iteration each of them continued."""
    passed: list[int] = []
    iteration = 0
    brake.hold()

    async def episode() -> None:
        assert not brake.is_open
        await brake.wait()
        passed.append(iteration)

    tasks = [asyncio.create_task(episode()) for _ in range(episodes)]
    await asyncio.sleep(0)
    brake.release()
    while len(passed) < episodes:
        await asyncio.sleep(0)
        iteration += 1
    await asyncio.gather(*tasks)
    return passed


async def test_brake_releases_a_bounded_number_of_episodes_per_loop_iteration() -> None:
    passed = await _loop_iterations_of(Brake(), 500)
    assert max(Counter(passed).values()) <= 32
    assert passed == sorted(passed)


async def test_brake_serves_waiting_episodes_in_order_and_skips_cancelled_ones() -> None:
    brake, order = Brake(), list[int]()
    brake.hold()

    async def episode(number: int) -> None:
        assert not brake.is_open
        await brake.wait()
        order.append(number)

    tasks = [asyncio.create_task(episode(number)) for number in range(100)]
    await asyncio.sleep(0.01)
    assert order == []
    tasks[3].cancel()
    brake.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [number for number in range(100) if number != 3]
    assert brake.is_open


async def test_brake_held_again_keeps_those_that_still_wait() -> None:
    brake, passed = Brake(), 0

    async def episode() -> None:
        nonlocal passed
        if not brake.is_open:
            await brake.wait()
        passed += 1
        brake.hold()

    tasks = [asyncio.create_task(episode()) for _ in range(200)]
    await asyncio.sleep(0.02)
    assert passed < 200
    seen = passed
    await asyncio.sleep(0.01)
    assert passed == seen
    while passed < 200:
        brake.release()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
