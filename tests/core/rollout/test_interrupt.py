"""Cutting calls: each cut is one cancellation, and exactly that one is taken back.

A stop reaches every call and every child, and leaves each call exactly its grace period."""

import asyncio
from collections import Counter

import pytest
from fakes.boundaries import at_limit
from fakes.virtual_time import block, run_virtually
from hypothesis import given
from hypothesis import strategies as st

from envkit.rollout import Interrupt
from envkit.rollout.interrupt import Brake, CallCutError, until_done
from envkit.trajectory import StopReason


def test_cut_call_that_ends_slowly_is_not_cancelled_again() -> None:
    interrupt = Interrupt(grace_s=0.0)
    cancellations = 0

    async def ends_slowly() -> None:
        nonlocal cancellations
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancellations += 1
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                cancellations += 1
            raise

    async def cut() -> int:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(CallCutError):
            await interrupt.cut(ends_slowly())
        return task.cancelling()

    async def main() -> None:
        cutting = asyncio.create_task(cut())
        await asyncio.sleep(0)
        interrupt.fire()
        await asyncio.sleep(1)
        interrupt.hurry()  # a second signal
        interrupt.hurry()
        assert await cutting == 0
        assert asyncio.get_running_loop().time() == 5

    run_virtually(main())
    assert cancellations == 1


def test_cancellation_by_the_caller_wins_over_a_cut() -> None:
    async def ends_slowly() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            raise

    async def main() -> None:
        interrupt = Interrupt(grace_s=0.0)
        cutting = asyncio.create_task(interrupt.cut(ends_slowly()))
        await asyncio.sleep(0)
        interrupt.fire()
        await asyncio.sleep(1)
        cutting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cutting
        assert cutting.cancelling() == 1

    run_virtually(main())


GRACE_S, PATIENCE_S = 5, 2


async def lasting(interrupt: Interrupt, seconds: float, *, patience_s: float = 0.0) -> float | None:
    """Return when a call that takes some seconds returned; None if it was cut, at that time."""
    try:
        await interrupt.cut(asyncio.sleep(seconds), patience_s=patience_s)
    except CallCutError:
        return None
    return asyncio.get_running_loop().time()


@given(
    at_limit(GRACE_S),
    at_limit(PATIENCE_S),
    st.sampled_from((StopReason.ABORTED, StopReason.EPISODE_TIMEOUT)),
)
def test_stop_leaves_a_call_exactly_its_grace_period_and_its_patience(
    late: int, patience: int, reason: StopReason
) -> None:
    async def main() -> None:
        interrupt, loop = Interrupt(), asyncio.get_running_loop()
        grace = 0 if reason is StopReason.EPISODE_TIMEOUT else GRACE_S
        before = asyncio.create_task(interrupt.cut(asyncio.sleep(99), patience_s=patience))
        await asyncio.sleep(10)
        interrupt.fire(reason)
        with pytest.raises(CallCutError, match=reason.value):
            await before
        assert loop.time() == 10 + grace + patience
        late_call = Interrupt()
        late_call.fire(reason)
        started = loop.time()
        ended = await lasting(late_call, late, patience_s=patience)
        assert (ended is None) == (late >= max(1, grace + patience))  # the cut comes first
        assert loop.time() == started + min(late, grace + patience)

    run_virtually(main())


def test_call_that_starts_after_a_stop_shares_the_grace_period_of_the_first() -> None:
    async def main() -> None:
        interrupt, loop = Interrupt(), asyncio.get_running_loop()
        interrupt.fire()
        assert await lasting(interrupt, 3) == 3
        assert await lasting(interrupt, 3) is None
        assert await lasting(interrupt.child(), 3) is None
        assert loop.time() == GRACE_S

    run_virtually(main())


def test_call_without_patience_ends_with_the_grace_period() -> None:
    async def main() -> None:
        interrupt = Interrupt(grace_s=GRACE_S)
        interrupt.fire()
        with pytest.raises(CallCutError):
            await interrupt.cut(asyncio.sleep(99))
        assert asyncio.get_running_loop().time() == GRACE_S

    run_virtually(main())


def test_first_reason_wins() -> None:
    interrupt = Interrupt()
    child = interrupt.child()
    interrupt.fire(StopReason.ABORTED)  # needs no loop: nothing runs
    interrupt.fire(StopReason.EPISODE_TIMEOUT)
    assert (interrupt.reason, child.reason) == (StopReason.ABORTED, StopReason.ABORTED)
    assert interrupt.child().reason is StopReason.ABORTED


def test_hurry_cuts_the_calls_of_children_at_once() -> None:
    async def main() -> None:
        root, loop = Interrupt(), asyncio.get_running_loop()
        child, cut_at = root.child(), list[float]()

        async def work(interrupt: Interrupt) -> None:
            assert await lasting(interrupt, 99, patience_s=PATIENCE_S) is None
            cut_at.append(loop.time())
            await asyncio.sleep(99)  # not cancelled again at the end of the grace period

        working = [asyncio.create_task(work(one)) for one in (root, child, child.child())]
        await asyncio.sleep(1)
        root.fire()
        await asyncio.sleep(1)
        root.hurry()
        await asyncio.gather(*working)
        assert cut_at == [2, 2, 2]

    run_virtually(main())


def test_hurry_leaves_later_calls_no_grace_period() -> None:
    async def main() -> None:
        root, loop = Interrupt(), asyncio.get_running_loop()
        child = root.child()
        calls = [asyncio.create_task(lasting(one, 1)) for one in (root, child)]
        await asyncio.sleep(0)
        root.fire()
        assert await asyncio.gather(*calls) == [1, 1]
        root.hurry()  # between two calls
        assert (root.grace_s, child.grace_s) == (0.0, 0.0)
        for one in (root, child, root.child()):
            assert await lasting(one, 1) is None
        assert loop.time() == 1

    run_virtually(main())


def test_call_that_returns_in_time_leaves_no_cancellation() -> None:
    async def main() -> None:
        interrupt, loop = Interrupt(), asyncio.get_running_loop()
        call = asyncio.create_task(lasting(interrupt, GRACE_S - 1))
        await asyncio.sleep(0)
        interrupt.fire()
        assert await call == GRACE_S - 1
        assert await interrupt.cut(asyncio.sleep(0, "answer")) == "answer"
        interrupt.hurry()  # the calls that returned are forgotten
        await asyncio.sleep(99)
        assert loop.time() == GRACE_S - 1 + 99

    run_virtually(main())


def test_call_that_answers_its_cut_returns_and_takes_the_cancellation_back() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(99)
        except asyncio.CancelledError:
            return "saved"
        return "late"

    async def main() -> None:
        interrupt, task = Interrupt(), asyncio.current_task()
        assert task is not None
        interrupt.fire()
        assert await interrupt.cut(stubborn()) == "saved"
        assert task.cancelling() == 0

    run_virtually(main())


def test_error_of_a_call_that_is_cut_is_kept() -> None:
    async def failing() -> None:
        try:
            await asyncio.sleep(99)
        finally:
            raise ValueError("broken")

    async def main() -> None:
        interrupt, task = Interrupt(), asyncio.current_task()
        assert task is not None
        interrupt.fire()
        with pytest.raises(ValueError, match="broken"):
            await interrupt.cut(failing())
        assert task.cancelling() == 0
        interrupt.hurry()  # the call that failed is forgotten
        await asyncio.sleep(1)

    run_virtually(main())


def test_call_that_failed_before_a_stop_is_forgotten() -> None:
    async def failing() -> None:
        raise ValueError("broken")

    async def main() -> None:
        interrupt = Interrupt()
        with pytest.raises(ValueError, match="broken"):
            await interrupt.cut(failing())
        interrupt.fire()
        await asyncio.sleep(99)

    run_virtually(main())


def test_cancellation_before_a_stop_is_not_a_cut() -> None:
    async def main() -> None:
        calling = asyncio.create_task(Interrupt().cut(asyncio.sleep(99)))
        await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert calling.cancelling() == 1

    run_virtually(main())


def test_call_of_a_task_that_is_being_cancelled_can_be_cut() -> None:
    async def main() -> None:
        interrupt = Interrupt()
        interrupt.fire()

        async def work() -> float | None:
            try:
                await asyncio.sleep(99)
            except asyncio.CancelledError:
                return await lasting(interrupt, 99)
            return 0.0

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        working.cancel()
        assert await working is None
        assert working.cancelling() == 1

    run_virtually(main())


@given(at_limit(10), st.booleans())
def test_deadline_has_passed_from_its_moment_on(blocked: int, is_stopped: bool) -> None:
    async def main() -> None:
        child = Interrupt().child(timeout_s=10)
        if is_stopped:
            child.fire()
        block(blocked)  # no timer has fired yet
        is_late = blocked >= 10 and not is_stopped
        assert child.check_deadline() == is_late
        assert (child.reason is StopReason.EPISODE_TIMEOUT) == is_late
        await child.close()

    run_virtually(main())


def test_interrupt_without_a_deadline_never_passes_it() -> None:
    interrupt = Interrupt()
    assert not interrupt.check_deadline()
    assert interrupt.reason is None
    assert not interrupt.child().check_deadline()


def test_deadline_of_a_child_stops_only_that_child() -> None:
    async def main() -> None:
        root, loop = Interrupt(), asyncio.get_running_loop()
        child, other = root.child(timeout_s=10), root.child()
        assert await lasting(child, 99) is None
        assert loop.time() == 10
        assert child.reason is StopReason.EPISODE_TIMEOUT
        assert (root.reason, other.reason) == (None, None)

    run_virtually(main())


def test_discarded_child_is_stopped_neither_by_its_deadline_nor_by_its_parent() -> None:
    async def main() -> None:
        root = Interrupt()
        child = root.child(timeout_s=10)
        await root.discard(child)
        await asyncio.sleep(11)
        root.fire()
        assert child.reason is None

    run_virtually(main())


def test_children_share_the_brake() -> None:
    root = Interrupt()
    root.brake = Brake()
    assert root.child().child().brake is root.brake


class Server:
    """Records when it is asked to abort, and answers the last time."""

    def __init__(self, interrupt: Interrupt, *, last: int = 1, fails: bool = False) -> None:
        self._interrupt, self._last, self._fails = interrupt, last, fails
        self.asked: list[tuple[str, float]] = []

    async def abort(self, request_id: str) -> None:
        self.asked.append((request_id, asyncio.get_running_loop().time()))
        if len(self.asked) == self._last:
            self._interrupt.leave(request_id)
        if self._fails:
            raise OSError("the server went away")


def test_stop_aborts_each_request_twice_a_second_until_it_ends() -> None:
    async def main() -> None:
        interrupt = Interrupt()
        server, failing = Server(interrupt, last=3), Server(interrupt, last=2, fails=True)
        gone = Server(interrupt)
        interrupt.enter("first", failing)
        interrupt.enter("second", server)
        interrupt.enter("third", gone)
        interrupt.leave("third")
        interrupt.leave("unknown")
        await asyncio.sleep(1)
        interrupt.fire()
        await asyncio.sleep(9)
        await interrupt.close()
        assert failing.asked == [("first", 1.0), ("first", 1.5)]
        assert server.asked == [("second", 1.0), ("second", 1.5), ("second", 2.0)]
        assert gone.asked == []

    run_virtually(main())


def test_close_waits_for_the_abort_that_it_cancels() -> None:
    ended: list[str] = []

    class Slow:
        async def abort(self, request_id: str) -> None:
            try:
                await asyncio.sleep(99)
            finally:
                await asyncio.sleep(1)
                ended.append(request_id)

    async def main() -> None:
        interrupt = Interrupt()
        interrupt.enter("first", Slow())
        interrupt.fire()
        await asyncio.sleep(1)
        await interrupt.close()
        assert ended == ["first"]
        await interrupt.close()
        await asyncio.sleep(99)
        assert ended == ["first"]

    run_virtually(main())


def test_everyone_who_waits_for_a_stop_learns_of_it() -> None:
    async def main() -> None:
        interrupt = Interrupt()
        waiting = [asyncio.create_task(interrupt.fired()) for _ in range(3)]
        await asyncio.sleep(1)
        assert not any(one.done() for one in waiting)
        waiting[0].cancel()
        await asyncio.sleep(1)
        interrupt.fire()
        await asyncio.gather(*waiting[1:])
        await interrupt.fired()
        assert asyncio.get_running_loop().time() == 2

    run_virtually(main())


def test_until_done_outlasts_cancellations_of_its_caller() -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(asyncio.sleep(seconds)) for seconds in (1, 5)]
        waiting = asyncio.create_task(until_done(tasks))
        for _ in range(3):
            await asyncio.sleep(1)
            waiting.cancel()
        await waiting
        assert asyncio.get_running_loop().time() == 5
        await until_done(tasks)
        await until_done(())

    run_virtually(main())


async def test_waiting_in_vain_leaves_nothing_behind() -> None:
    interrupt = Interrupt()
    waiting = [asyncio.ensure_future(interrupt.fired()) for _ in range(3)]
    await asyncio.sleep(0)
    for one in waiting[:2]:
        one.cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    assert len(interrupt._waiting) == 1
    interrupt.fire()
    await waiting[2]
    assert not interrupt._waiting


# ---- the brake: finished episodes pass first, and held ones resume a few at a time


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
