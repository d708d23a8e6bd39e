"""No right integral is called wrong; most wrong ones are."""

import random
from importlib import import_module

import pytest
import sympy
from fakes.needs import REASONING_GYM
from hypothesis import given
from hypothesis import strategies as st

from envkit_reasoning_gym.answer_guard import is_formula
from envkit_reasoning_gym.integrals import is_wrong_integral


@REASONING_GYM.mark
@pytest.mark.parametrize("size", [30, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dataset", ["simple_integration", "intermediate_integration"])
@pytest.mark.slow
def test_right_integrals_are_never_called_wrong_and_others_are(dataset: str, size: int) -> None:
    made = import_module("reasoning_gym").create_dataset(dataset, size=size, seed=5)
    entries = [entry for entry in made if "Integral" not in str(entry["answer"])]
    told = 0
    for entry in entries:
        facts, answer = entry["metadata"], str(entry["answer"])
        assert not is_wrong_integral(answer, facts["integrand"], facts["variable"])
        padded = f"({answer}) + 3 - sin(2)"
        assert not is_wrong_integral(padded, facts["integrand"], facts["variable"])
        wrong = f"({answer}) + {facts['variable']}/2"
        told += is_wrong_integral(wrong, facts["integrand"], facts["variable"])
    assert told > 0.95 * len(entries) > 0.6 * size


@pytest.mark.parametrize(
    ("answer", "integrand", "is_wrong"),
    [
        ("x**2/2 + C", "x", False),
        ("x**2/2 + K", "x", False),
        ("x**2", "x", True),
        ("log(x)", "1/x", False),
        ("log(-x)", "1/x", False),
        ("ln(x)/ln(2)", "1/x", True),
        ("E**x", "exp(x)", False),
        ("2*sqrt(x)", "1/sqrt(x)", False),
        ("-cos(x)", "sin(x)", False),
        ("sec(x)", "tan(x)/cos(x)", False),
        ("asin(x)", "1/sqrt(1 - x**2)", False),
        ("exp(exp(exp(9000 + x)))", "1", False),  # no values
        ("1/0", "x", False),
        ("x^2/2", "x", False),  # sympy's reading decides
        ("x(", "x", False),
        ("N(x)", "x", False),
        ("", "x", False),
        ("sin(x)+sin(x)+sin(x)+sin(x)", "x", True),
    ],
)
def test_integral_is_judged_by_its_values(answer: str, integrand: str, is_wrong: bool) -> None:
    assert is_wrong_integral(answer, integrand, "x") is is_wrong


@given(st.integers(0, 10**6))
def test_integral_that_sympy_accepts_is_never_called_wrong(seed: int) -> None:
    rng, x = random.Random(seed), sympy.Symbol("x")
    pieces = [x, x**2, sympy.sin(x), sympy.exp(x), sympy.log(x), sympy.sqrt(x), 1 / (x + 3)]
    formula = rng.choice(pieces) * rng.choice(pieces) + rng.randrange(-5, 6) * rng.choice(pieces)
    answer, integrand = str(formula), str(sympy.diff(formula, x))
    assert is_formula(answer)
    assert not is_wrong_integral(answer, integrand, "x")
