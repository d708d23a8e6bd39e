import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit_geo3k import grade
from envkit_geo3k.exact import PI, Exact

_FRACTIONS = st.fractions(min_value=-50, max_value=50, max_denominator=20)


def _number(parts: tuple[Fraction, int, bool, Fraction]) -> Exact:
    coefficient, radicand, with_pi, rest = parts
    root = coefficient * Exact.sqrt(radicand)
    return (root * PI if with_pi else root) + rest


_NUMBERS = st.tuples(_FRACTIONS, st.integers(1, 90), st.booleans(), _FRACTIONS).map(_number)


@given(_NUMBERS, _NUMBERS)
def test_exact_arithmetic_agrees_with_floats(a: Exact, b: Exact) -> None:
    assert math.isclose(float(a + b), float(a) + float(b), abs_tol=1e-9)
    assert math.isclose(float(a - b), float(a) - float(b), abs_tol=1e-9)
    assert math.isclose(float(a * b), float(a) * float(b), rel_tol=1e-9, abs_tol=1e-9)


@given(_NUMBERS)
def test_exact_latex_and_plain_text_are_read_back_as_the_same_value(number: Exact) -> None:
    value = f"{float(number):.12f}"
    assert grade(number.latex(), value, "exact").score == 1.0
    assert grade(number.plain(), value, "exact").score == 1.0


@given(st.integers(1, 400), st.integers(1, 400))
def test_exact_numbers_that_are_equal_compare_equal(a: int, b: int) -> None:
    assert Exact.sqrt(a) * Exact.sqrt(b) == Exact.sqrt(a * b)
    assert Exact.sqrt(a * a) == Exact.of(a)
    assert Exact.sqrt(Fraction(a, b)) * b == Exact.sqrt(a * b)
    assert (Exact.sqrt(a) * PI) / Exact.sqrt(a) == PI


@pytest.mark.parametrize(
    ("number", "latex", "plain"),
    [
        (Exact.of(0), "0", "0"),
        (Exact.of(-7), "-7", "-7"),
        (Exact.of(Fraction(5, 2)), r"\frac{5}{2}", "2.5"),
        (Exact.of(Fraction(5, 3)), r"\frac{5}{3}", "5/3"),
        (Exact.sqrt(884), r"2 \sqrt{221}", "2√221"),
        (Exact.sqrt(Fraction(3, 4)), r"\frac{\sqrt{3}}{2}", "√3/2"),
        (PI, r"\pi", "π"),
        (100 - 25 * PI, r"100 - 25 \pi", "100 - 25π"),
        (PI * Fraction(-8, 3), r"-\frac{8 \pi}{3}", "-8π/3"),
        (Exact.of(6) / PI, r"\frac{6}{\pi}", "6/π"),
    ],
)
def test_exact_numbers_are_written_as_in_a_textbook(number: Exact, latex: str, plain: str) -> None:
    assert (number.latex(), number.plain()) == (latex, plain)


def test_exact_refuses_what_has_no_exact_value() -> None:
    with pytest.raises(ConfigurationError, match="at least 0, got -3"):
        Exact.sqrt(-3)
    with pytest.raises(ConfigurationError, match=r"one non-zero term, got √2 \+ 1"):
        _ = Exact.of(1) / (1 + Exact.sqrt(2))
