"""Read one numeric expression, in bounded time, without eval.

A recursive-descent parser for the LaTeX and plain-text subset that geometry answers use: numbers,
fractions, mixed numbers, roots, pi, + - * / ^, trigonometry in degrees, units after a value. It
computes in float64 while it reads. Guards on tokens, depth, magnitude and exponents keep every
input cheap: `9**9**9**9` is refused, not computed. It keeps no state, so any thread may use it.
"""

import math
import re
from collections.abc import Callable
from typing import Final

MAX_TOKENS: Final = 120
MAX_DEPTH: Final = 30
MAX_MAGNITUDE: Final = 1e15
MAX_EXPONENT: Final = 16.0


class UnreadableError(Exception):
    """The text is no expression of the supported kind, or it is over a guard."""


_UNIT_WORDS: Final = frozenset(
    (
        *("square", "sq", "cubic", "cu", "unit", "units", "degree", "degrees", "deg"),
        *("radian", "radians", "rad", "m", "meter", "meters", "metre", "metres", "dm"),
        *("cm", "centimeter", "centimeters", "centimetre", "centimetres"),
        *("mm", "millimeter", "millimeters", "millimetre", "millimetres"),
        *("km", "kilometer", "kilometers", "kilometre", "kilometres"),
        *("mi", "mile", "miles", "ft", "foot", "feet", "in", "inch", "inches"),
        *("yd", "yard", "yards"),
    )
)
_FUNCTIONS: Final[dict[str, Callable[[float], float]]] = {
    "sin": lambda degrees: math.sin(math.radians(degrees)),
    "cos": lambda degrees: math.cos(math.radians(degrees)),
    "tan": lambda degrees: math.tan(math.radians(degrees)),
    "arcsin": lambda ratio: math.degrees(math.asin(ratio)),
    "arccos": lambda ratio: math.degrees(math.acos(ratio)),
    "arctan": lambda ratio: math.degrees(math.atan(ratio)),
}
_CLOSERS: Final = {"(": ")", "{": "}", "[": "]"}
_PRODUCT_SIGNS: Final = frozenset(("*", "\\times", "\\cdot"))
_QUOTIENT_SIGNS: Final = frozenset(("/", "\\div"))
_POWER_SIGNS: Final = frozenset(("^", "**"))
_TOKEN: Final = re.compile(
    r"\s*(?:([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]{1,2}(?![0-9A-Za-z]))?|\.[0-9]+)"
    r"|(\\?[A-Za-z]+)|(\*\*|[-+*/^(){}\[\]]))"
)
_INTEGER: Final = re.compile(r"[0-9]+")


def evaluate(text: str) -> float:
    """Return the value of the expression.

    Raises:
        UnreadableError: The text is not an expression, or it is over a guard.
    """
    parser = _Parser(_tokens(text))
    try:
        value = parser.whole()
    except (OverflowError, ZeroDivisionError, ValueError) as error:
        raise UnreadableError(f"cannot be computed: {error}") from error
    return value


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnreadableError(f"unexpected character {text[position]!r}")
        found.append(match.group().lstrip())
        position = match.end()
        if len(found) > MAX_TOKENS:
            raise UnreadableError(f"more than {MAX_TOKENS} tokens")
    return found


def _is_number(token: str) -> bool:
    return token[0].isdigit() or token[0] == "."


def _checked(value: float) -> float:
    if not abs(value) <= MAX_MAGNITUDE:  # also catches nan
        raise UnreadableError("too large")
    return value


class _Parser:
    """One pass over the tokens; each method reads one level of precedence and returns its value."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def whole(self) -> float:
        value = self._sum()
        if self._position != len(self._tokens):
            raise UnreadableError("text after the value")
        return value

    def _peek(self) -> str:
        """Return the next token; "" at the end."""
        if self._position < len(self._tokens):
            return self._tokens[self._position]
        return ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise UnreadableError("ends too early")
        self._position += 1
        return token

    def _expect(self, wanted: str) -> None:
        if self._next() != wanted:
            raise UnreadableError(f"{wanted!r} is missing")

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError(f"nested deeper than {MAX_DEPTH}")

    def _sum(self) -> float:
        self._descend()
        value = self._product()
        while self._peek() in ("+", "-"):
            sign = 1.0 if self._next() == "+" else -1.0
            value = _checked(value + sign * self._product())
        self._depth -= 1
        return value

    def _product(self) -> float:
        value = self._signed()
        while True:
            token = self._peek()
            if token in _PRODUCT_SIGNS:
                self._next()
                value *= self._signed()
            elif token in _QUOTIENT_SIGNS:
                self._next()
                value /= self._signed()
            elif self._starts_factor(token):
                value *= self._power()
            else:
                return value
            _checked(value)

    def _starts_factor(self, token: str) -> bool:
        """Whether the token begins a factor without a sign between: 2(3), 10 pi, 3 sqrt 2."""
        if not token or token in ("+", "-", ")", "}", "]") or token in _POWER_SIGNS:
            return False
        if _is_number(token):
            raise UnreadableError("two numbers side by side")
        return True

    def _signed(self) -> float:
        token = self._peek()
        if token not in ("-", "+"):
            return self._power()
        self._descend()
        self._next()
        value = self._signed()
        self._depth -= 1
        return -value if token == "-" else value

    def _power(self) -> float:
        value = self._atom()
        if self._peek() in _POWER_SIGNS:
            self._next()
            value = self._raise(value, self._exponent())
        self._skip_units()
        return value

    def _exponent(self) -> float:
        self._descend()
        value = self._signed()
        self._depth -= 1
        return value

    @staticmethod
    def _raise(base: float, exponent: float) -> float:
        if abs(exponent) > MAX_EXPONENT or abs(base) > 1e6:
            raise UnreadableError("power too large")
        if base < 0 and not exponent.is_integer():
            raise UnreadableError("root of a negative number")
        return _checked(base**exponent)

    def _skip_units(self) -> None:
        skipped = False
        while self._peek().lower() in _UNIT_WORDS:
            self._next()
            skipped = True
        if skipped and self._peek() in _POWER_SIGNS:
            self._next()
            self._argument()

    def _atom(self) -> float:
        token = self._next()
        if _is_number(token):
            return self._number(token)
        if token in _CLOSERS:
            value = self._sum()
            self._expect(_CLOSERS[token])
            return value
        name = token.lstrip("\\")
        if name in ("pi", "Pi", "PI"):
            return math.pi
        if name == "frac":
            return self._fraction()
        if name == "sqrt":
            return self._root()
        if name in _FUNCTIONS:
            return self._function(name)
        raise UnreadableError(f"unknown symbol {token[:20]!r}")

    def _number(self, token: str) -> float:
        value = _checked(float(token))
        if _INTEGER.fullmatch(token):
            value += self._mixed_part()
        return value

    def _mixed_part(self) -> float:
        r"""Return the proper fraction of a mixed number (2 1/2, 2\frac{1}{2}) and read past it."""
        following = self._tokens[self._position : self._position + 8]
        if following[:1] == ["\\frac"]:
            digits = [token for token in following[1:] if token not in ("{", "}")][:2]
            braces = following[1:7] == ["{", *digits[:1], "}", "{", *digits[1:], "}"]
            length = 7
        else:
            digits = following[0:3:2]
            braces = following[1:2] == ["/"]
            length = 3
        if not braces or len(digits) != 2 or not all(_INTEGER.fullmatch(d) for d in digits):
            return 0.0
        numerator, denominator = (float(d) for d in digits)
        if not 0 < numerator < denominator:
            return 0.0
        self._position += length
        return numerator / denominator

    def _argument(self) -> float:
        r"""Read what \frac or ^ takes: a group, or a single digit or symbol."""
        token = self._peek()
        if _INTEGER.fullmatch(token) and len(token) > 1:  # \frac12: LaTeX takes one digit at a time
            self._tokens[self._position] = token[1:]
            return float(token[0])
        if token == "-":
            return self._signed()
        return self._atom_only()

    def _atom_only(self) -> float:
        token = self._peek()
        if token and _is_number(token):
            self._next()
            return _checked(float(token))
        self._descend()
        value = self._atom()
        self._depth -= 1
        return value

    def _fraction(self) -> float:
        numerator = self._argument()
        return _checked(numerator / self._argument())

    def _root(self) -> float:
        degree = 2.0
        if self._peek() == "[":
            self._next()
            degree = self._sum()
            self._expect("]")
        radicand = self._atom_only()
        if radicand < 0 or not 1 <= degree <= MAX_EXPONENT:
            raise UnreadableError("root without a real value")
        return math.sqrt(radicand) if degree == 2 else radicand ** (1 / degree)

    def _function(self, name: str) -> float:
        exponent = 1.0
        if self._peek() in _POWER_SIGNS:
            self._next()
            exponent = self._argument()
        if exponent == -1:
            name, exponent = f"arc{name}", 1.0
        if name not in _FUNCTIONS:
            raise UnreadableError(f"unknown function {name!r}")
        self._descend()
        value = _checked(_FUNCTIONS[name](self._signed()))
        self._depth -= 1
        return self._raise(value, exponent)
