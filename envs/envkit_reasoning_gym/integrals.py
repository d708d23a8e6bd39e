"""Detect wrong integrals numerically; sympy takes up to 200 ms to do so."""

import cmath
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

_POINTS: Final = (0.7312 + 0.2117j, 1.1127 - 0.3241j, -0.8719 + 0.4373j, 0.4043 - 0.1571j)
"""Sample points off the real axis, where branches of roots and logarithms meet."""
_STEP: Final = 1e-5
_TOLERANCE: Final = 1e-6
_FEWEST: Final = 2
"""Minimum number of points where they must differ, so one odd value does not decide."""
_CONSTANT: Final = 0.4141
"""Value of any letter that is not the variable, such as the constant of integration."""
_SPECIAL: Final = "NOQS"
"""Letters that are functions or classes in sympy."""


def _sec(x: complex) -> complex:
    return 1 / cmath.cos(x)


def _csc(x: complex) -> complex:
    return 1 / cmath.sin(x)


def _cot(x: complex) -> complex:
    return 1 / cmath.tan(x)


_NAMES: Final[Mapping[str, Any]] = {
    **{
        name: getattr(cmath, name)
        for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
                     "acosh", "atanh", "exp", "log", "sqrt")
    },
    "ln": cmath.log,
    "sec": _sec,
    "csc": _csc,
    "cot": _cot,
    "Abs": abs,
    "pi": math.pi,
    "E": math.e,
    "I": 1j,
}  # fmt: skip


def is_wrong_integral(answer: str, integrand: str, variable: str) -> bool:
    """Return whether an answer's derivative certainly differs from the integrand.

    Args:
        answer: A formula that `answer_guard.is_formula` accepts, because it is evaluated.
        integrand: A formula of the dataset.
        variable: Its name.

    Returns:
        True if they differ at most points where both have a value. False is inconclusive: the
        formulas may be equal, or may have no values.
    """
    try:
        primitive, wanted = _function(answer, variable), _function(integrand, variable)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    verdicts = [_differs(primitive, wanted, point) for point in _POINTS]
    apart, alike = verdicts.count(True), verdicts.count(False)
    return apart >= _FEWEST and apart > alike


def _differs(
    primitive: Callable[[complex], complex], wanted: Callable[[complex], complex], point: complex
) -> bool | None:
    """Compare at a point; None if either has no value there."""
    try:
        above, below = primitive(point + _STEP), primitive(point - _STEP)
        slope, value = (above - below) / (2 * _STEP), wanted(point)
        gap, size = abs(slope - value), abs(slope) + abs(value) + abs(above)
    except (ArithmeticError, ValueError, TypeError, NameError):
        return None
    return gap > _TOLERANCE * (1 + size) if math.isfinite(gap) and math.isfinite(size) else None


def _function(formula: str, variable: str) -> Callable[[complex], complex]:
    code = compile(formula.strip(), "<formula>", "eval")
    if any(letter in code.co_names for letter in _SPECIAL):
        raise ValueError(f"a formula must not use a letter of {_SPECIAL}, got {formula!r:.100}")
    constants = {name: _CONSTANT for name in code.co_names if name not in _NAMES}
    names: dict[str, Any] = {"__builtins__": {}, **_NAMES, **constants}

    def value(point: complex) -> complex:
        return eval(code, names, {variable: point})  # only formulas reach this

    return value
