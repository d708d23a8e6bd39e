"""A grader that fails is tried on untouched state once per task: its failure is a fault, or a 0."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fakes.boundaries import at_limit
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import EnvFault, FaultKind
from envkit.grading import Grade, UngradedError, asettle, finite_reward, settle

Way = Callable[..., Grade]


def fails() -> float:
    raise UngradedError("no reward file")


def in_loop(grade: Callable[[], float], *, untouched: Callable[[], object], **named: Any) -> Grade:
    """Settle from an event loop, as an asynchronous environment does."""

    async def agrade() -> float:
        return grade()

    async def auntouched() -> object:
        return untouched()

    return asyncio.run(asettle(agrade, untouched=auntouched, **named))


EITHER_WAY = pytest.mark.parametrize("way", [settle, in_loop])


@EITHER_WAY
def test_reward_is_passed_on_and_untouched_state_is_left_alone(way: Way) -> None:
    grade = way(lambda: -3.5, untouched=fails, grader="a", task={"name": way.__name__})
    assert grade == Grade(score=-3.5)
    assert grade.info() == {}


@EITHER_WAY
def test_grader_that_only_the_policy_breaks_scores_zero(way: Way) -> None:
    grade = way(fails, untouched=lambda: 0.0, grader="b", task={"name": way.__name__})
    assert (grade.score, grade.info()) == (0.0, {"ungraded": "no reward file"})


@EITHER_WAY
def test_grader_that_fails_on_untouched_state_is_a_fault(way: Way) -> None:
    with pytest.raises(EnvFault, match="untouched state too: no reward file") as caught:
        way(fails, untouched=fails, grader="c", task={"name": way.__name__})
    assert caught.value.kind is FaultKind.GRADER


@EITHER_WAY
@pytest.mark.parametrize("is_broken", [False, True])
def test_untouched_state_is_graded_once_per_grader_and_task(way: Way, is_broken: bool) -> None:
    calls: list[int] = []

    def untouched() -> float:
        calls.append(1)
        return fails() if is_broken else 0.0

    def settled(grader: str, task: dict[str, Any]) -> bool:
        try:
            return way(fails, untouched=untouched, grader=grader, task=task).failure is not None
        except EnvFault:
            return False

    task = {"way": way.__name__, "broken": is_broken}
    assert {settled("d", {**task}) for _ in range(3)} == {not is_broken}
    assert len(calls) == 1
    settled("d", {**task, "index": 1})
    settled("e", task)
    assert len(calls) == 3


@EITHER_WAY
def test_infrastructure_that_fails_is_neither_a_reward_nor_remembered(way: Way) -> None:
    def gone() -> float:
        raise EnvFault("the sandbox is gone", kind=FaultKind.CRASHED)

    named: dict[str, Any] = {"grader": "f", "task": {"way": way.__name__}}
    for grade, untouched in ((gone, fails), (fails, gone)):
        with pytest.raises(EnvFault) as caught:
            way(grade, untouched=untouched, **named)
        assert caught.value.kind is FaultKind.CRASHED
    assert way(fails, untouched=lambda: None, **named).score == 0.0


def test_members_of_a_group_that_fail_together_share_one_run() -> None:
    calls: list[int] = []
    all_failed = threading.Barrier(8)

    def fail_together() -> float:
        all_failed.wait(120)
        return fails()

    def one(_: int) -> float:
        named: dict[str, Any] = {"grader": "g", "task": {}}
        return settle(fail_together, untouched=lambda: calls.append(1), **named).score

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == [0.0] * 8
    assert calls == [1]


@given(at_limit(2, least=-9) | at_limit(-1, least=-9))
def test_reward_within_the_declared_range_is_passed_on(value: int) -> None:
    if -1 <= value <= 2:
        assert finite_reward(value, within=(-1.0, 2.0)) == value
    else:
        with pytest.raises(UngradedError, match="from -1 to 2"):
            finite_reward(value, within=(-1.0, 2.0))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300))
def test_any_finite_number_is_passed_on(value: float) -> None:
    assert finite_reward(value) == float(value)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), 10**400, 10**6000, "1", None, [1], {"reward": 1}],
    ids=type,
)
def test_what_is_no_finite_number_is_no_reward(value: object) -> None:
    with pytest.raises(UngradedError, match="finite number"):
        finite_reward(value)
