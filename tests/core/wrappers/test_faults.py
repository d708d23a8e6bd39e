"""`FaultPlan`: a pure function of its seed and the call, whoever asks."""

import copy
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit.faults import FaultPlan


def dealt(plan: FaultPlan, calls: int = 400) -> list[str | None]:
    return [plan.decide("step", n, attempt=0) for n in range(calls)]


@settings(deadline=None)
@given(rate=st.floats(0, 1), seed=st.integers(0, 9), worst=st.none() | st.integers(0, 3))
def test_a_plan_survives_json_and_deals_the_same_faults(
    rate: float, seed: int, worst: int | None
) -> None:
    plan = FaultPlan(
        {"step": rate, "*": 0.5},
        seed=seed,
        kinds={"step": ["garbage", "429"]},
        schedule={("step", 7, 0): "slow", ("reset", "a", 2): "crashed"},
        worst_attempts=worst,
    )

    again = FaultPlan.from_json(json.loads(json.dumps(plan.to_json())))

    assert dealt(again) == dealt(plan)
    assert again.decide("reset", "a", attempt=2) == "crashed"
    assert again.decide("step", 7, attempt=0) == "slow"


def test_the_share_of_faults_is_the_rate_and_kinds_are_even() -> None:
    plan = FaultPlan(0.3, kinds=("a", "b"))
    found = dealt(plan, 4000)

    assert 0.27 < 1 - found.count(None) / 4000 < 0.33
    assert 0.8 < found.count("a") / found.count("b") < 1.25


def test_another_seed_and_another_attempt_fail_other_calls() -> None:
    assert dealt(FaultPlan(0.5, seed=1)) != dealt(FaultPlan(0.5, seed=2))
    attempts = [FaultPlan(0.5).decide("step", 1, attempt=n) for n in range(64)]
    assert None in attempts
    assert set(attempts) > {None}


def test_worst_attempts_bounds_how_often_a_call_fails() -> None:
    plan = FaultPlan(1.0, worst_attempts=2)

    assert [plan.draw("step", 1) is None for _ in range(4)] == [False, False, True, True]
    assert plan.draw("step", 2) is not None  # another call has its own attempts


def test_a_scope_takes_its_own_rate_and_kinds() -> None:
    plan = FaultPlan({"search": 1.0}, kinds={"search": ["429"]})

    assert plan.decide("search", 1) == "429"
    assert plan.decide("step", 1) is None


def test_threads_that_ask_in_any_order_get_the_same_faults() -> None:
    plan, reference = FaultPlan(0.4, seed=3), FaultPlan(0.4, seed=3)

    def drawn(number: int) -> str | None:
        return plan.draw("step", number, attempt=0)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(drawn, range(500)))

    assert found == [reference.decide("step", n, attempt=0) for n in range(500)]
    assert plan.injected.total() == len(plan.log) == len([kind for kind in found if kind])
    assert {(entry.key[0], entry.kind) for entry in plan.log} == {
        (n, kind) for n, kind in enumerate(found) if kind
    }


def test_a_copy_is_the_plan_itself() -> None:
    plan = FaultPlan(0.5)

    assert copy.deepcopy({"plan": plan})["plan"] is plan
    assert copy.copy(plan) is plan


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rate": 1.5}, "must be 0 to 1, got 1.5"),
        ({"rate": {"step": -0.1}}, "rate of 'step'"),
        ({"rate": 0.1, "kinds": ()}, "at least one, got none"),
        ({"rate": 0.1, "worst_attempts": -1}, "at least 0, got -1"),
    ],
)
def test_a_plan_refuses_what_it_cannot_keep(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        FaultPlan(**arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
