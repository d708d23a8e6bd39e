r"""Exact numbers for school geometry: sums of rationals times square roots times powers of pi.

`Exact` holds such a sum in a normal form, so equal numbers compare equal, and writes it as LaTeX
(`\frac{5 \sqrt{3}}{2}`) for answers and as plain text (`5√3/2`) for labels.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from envkit.errors import ConfigurationError

_Key = tuple[int, int]  # (power of pi, square-free radicand)


@dataclass(frozen=True, slots=True)
class Exact:
    """An exact number; build one with `Exact.of`, `Exact.sqrt` and arithmetic."""

    terms: tuple[tuple[_Key, Fraction], ...]
    """Non-zero coefficients in written order: higher power of pi first, then larger radicand."""

    @classmethod
    def of(cls, value: "ExactLike") -> "Exact":
        """Return the value as an exact number; floats are rejected because they are not exact."""
        if isinstance(value, Exact):
            return value
        return _collect({(0, 1): Fraction(value)})

    @classmethod
    def sqrt(cls, value: int | Fraction) -> "Exact":
        """Return the square root of a rational number.

        Raises:
            ConfigurationError: The number is negative.
        """
        value = Fraction(value)
        if value < 0:
            raise ConfigurationError(f"a square root needs a number of at least 0, got {value}")
        outer, radicand = _square_free(value.numerator * value.denominator)
        return _collect({(0, radicand): Fraction(outer, value.denominator)})

    def __add__(self, other: "ExactLike") -> "Exact":
        total = dict(self.terms)
        for key, coefficient in Exact.of(other).terms:
            total[key] = total.get(key, Fraction()) + coefficient
        return _collect(total)

    __radd__ = __add__

    def __neg__(self) -> "Exact":
        return _collect({key: -coefficient for key, coefficient in self.terms})

    def __sub__(self, other: "ExactLike") -> "Exact":
        return self + -Exact.of(other)

    def __rsub__(self, other: "ExactLike") -> "Exact":
        return Exact.of(other) - self

    def __mul__(self, other: "ExactLike") -> "Exact":
        total: dict[_Key, Fraction] = {}
        for (pi_a, root_a), a in self.terms:
            for (pi_b, root_b), b in Exact.of(other).terms:
                outer, radicand = _square_free(root_a * root_b)
                key = (pi_a + pi_b, radicand)
                total[key] = total.get(key, Fraction()) + a * b * outer
        return _collect(total)

    __rmul__ = __mul__

    def __truediv__(self, other: "ExactLike") -> "Exact":
        """Divide by a number of one term.

        Raises:
            ConfigurationError: The divisor is zero or a sum.
        """
        divisor = Exact.of(other)
        if len(divisor.terms) != 1:
            raise ConfigurationError(f"can only divide by one non-zero term, got {divisor.plain()}")
        (pi, root), coefficient = divisor.terms[0]
        inverse = _collect({(-pi, root): 1 / (coefficient * root)})
        return self * inverse

    def __float__(self) -> float:
        return float(sum(float(c) * math.sqrt(root) * math.pi**pi for (pi, root), c in self.terms))

    @property
    def rational(self) -> Fraction | None:
        """The number as a fraction; None if it is irrational."""
        if not self.terms:
            return Fraction()
        key, coefficient = self.terms[0]
        return coefficient if len(self.terms) == 1 and key == (0, 1) else None

    @property
    def integer(self) -> int | None:
        """The number as an integer; None if it is not one."""
        value = self.rational
        return int(value) if value is not None and value.denominator == 1 else None

    def latex(self) -> str:
        r"""Return LaTeX, such as `2 \sqrt{221}`."""
        return _join([(c < 0, _latex_term(key, abs(c))) for key, c in self.terms])

    def plain(self) -> str:
        """Return plain text, such as `2√221`; a short decimal stays a decimal."""
        return _join([(c < 0, _plain_term(key, abs(c))) for key, c in self.terms])


ExactLike = Exact | Fraction | int
PI: Final = Exact((((1, 1), Fraction(1)),))


def _collect(terms: dict[_Key, Fraction]) -> Exact:
    kept = [(key, coefficient) for key, coefficient in terms.items() if coefficient]
    return Exact(tuple(sorted(kept, reverse=True)))


def _square_free(number: int) -> tuple[int, int]:
    """Return (a, b) with number = a*a*b and b square-free."""
    outer, factor = 1, 2
    while factor * factor <= number:
        while number % (factor * factor) == 0:
            number //= factor * factor
            outer *= factor
        factor += 1
    return outer, number


def _join(signed: list[tuple[bool, str]]) -> str:
    if not signed:
        return "0"
    first, *others = sorted(signed, key=lambda term: term[0])  # "4 - pi", not "-pi + 4"
    return (
        ("-" if first[0] else "")
        + first[1]
        + "".join(f" {'-' if negative else '+'} {text}" for negative, text in others)
    )


def _latex_term(key: _Key, coefficient: Fraction) -> str:
    power, radicand = key
    symbols = [r"\pi"] * (power > 0) + [rf"\sqrt{{{radicand}}}"] * (radicand > 1)
    top, bottom = coefficient.numerator, str(coefficient.denominator)
    numerator = " ".join([str(top)] * (top != 1 or not symbols) + symbols)
    denominator = " ".join([bottom] * (bottom != "1") + [r"\pi"] * (power < 0))
    return rf"\frac{{{numerator}}}{{{denominator}}}" if denominator else numerator


def _plain_term(key: _Key, coefficient: Fraction) -> str:
    power, radicand = key
    symbols = f"√{radicand}" * (radicand > 1) + "π" * (power > 0)
    if not symbols and power == 0 and 100 % coefficient.denominator == 0:
        return f"{float(coefficient):g}"
    top, bottom = coefficient.numerator, coefficient.denominator
    numerator = (str(top) if top != 1 or not symbols else "") + symbols
    denominator = (str(bottom) if bottom != 1 else "") + "π" * (power < 0)
    return f"{numerator}/{denominator}" if denominator else numerator
