"""The brake: finished episodes pass first, and held ones resume a few at a time."""

import asyncio
from collections import Counter

from fakes.virtual_time import run_virtually

from envkit.rollout.interrupt import Brake


async def _loop_iterations_of(episodes: int, *, releases: int = 1) -> list[int]:
    """Hold episodes, release them; return in which loop iteration each of them continued."""
    brake, passed, iteration = Brake(), list[int](), 0
    brake.hold()

    async def episode() -> None:
        assert not brake.is_open
        await brake.wait()
        passed.append(iteration)

    tasks = [asyncio.create_task(episode()) for _ in range(episodes)]
    await asyncio.sleep(0)
    for _ in range(releases):
        brake.release()
    while len(passed) < episodes:
        await asyncio.sleep(0)
        iteration += 1
    await asyncio.gather(*tasks)
    return passed


def test_brake_releases_a_bounded_number_of_episodes_per_loop_iteration() -> None:
    for episodes in (15, 16, 17, 500):
        passed = run_virtually(_loop_iterations_of(episodes))
        full, rest = divmod(episodes, 16)
        assert list(Counter(passed).values()) == [16] * full + [rest] * (rest > 0)
        assert passed == sorted(passed)


def test_brake_that_is_released_twice_lets_no_more_episodes_pass_at_once() -> None:
    passed = run_virtually(_loop_iterations_of(100, releases=2))
    assert max(Counter(passed).values()) == 16


async def test_brake_does_not_count_cancelled_episodes_as_released() -> None:
    brake = Brake()
    brake.hold()
    tasks = [asyncio.create_task(brake.wait()) for _ in range(21)]
    await asyncio.sleep(0)
    for task in tasks[:5]:
        task.cancel()
    await asyncio.sleep(0)
    brake.release()
    assert brake.is_open
    await asyncio.gather(*tasks[5:])


def test_brake_is_open_from_the_start_and_rests_once_everyone_has_passed() -> None:
    async def main() -> None:
        brake = Brake()
        assert brake.is_open
        brake.release()
        brake.hold()
        assert not brake.is_open
        waiting = asyncio.create_task(brake.wait())
        await asyncio.sleep(1)
        assert not waiting.done()
        brake.release()
        await asyncio.sleep(1)
        assert waiting.done()
        assert brake.is_open

    run_virtually(main())


def test_brake_serves_waiting_episodes_in_order_and_skips_cancelled_ones() -> None:
    async def main() -> None:
        brake, order = Brake(), list[int]()
        brake.hold()

        async def episode(number: int) -> None:
            assert not brake.is_open
            await brake.wait()
            order.append(number)

        tasks = [asyncio.create_task(episode(number)) for number in range(100)]
        await asyncio.sleep(1)
        assert order == []
        tasks[3].cancel()
        brake.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [number for number in range(100) if number != 3]
        assert brake.is_open

    run_virtually(main())


def test_brake_held_again_keeps_those_that_still_wait() -> None:
    async def main() -> None:
        brake, passed = Brake(), 0

        async def episode() -> None:
            nonlocal passed
            if not brake.is_open:
                await brake.wait()
            passed += 1
            brake.hold()

        tasks = [asyncio.create_task(episode()) for _ in range(200)]
        await asyncio.sleep(1)
        assert passed == 1
        for released in range(1, 14):  # 13 rounds of at most 16
            brake.release()
            await asyncio.sleep(1)
            assert passed == min(200, 1 + 16 * released)
        await asyncio.gather(*tasks)

    run_virtually(main())
