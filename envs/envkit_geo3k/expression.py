"""Read one number, in bounded time, without eval.

A recursive-descent parser for the LaTeX and plain-text subset that geometry answers use: numbers,
fractions, mixed numbers, roots, pi, + - * / ^, absolute values, trigonometry, units after a value.
It evaluates in float64 while parsing. Limits on tokens, depth, magnitude and exponents keep every
input cheap: `9**9**9**9` is rejected, not computed. It is stateless and thread-safe.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envkit_geo3k.units import DEGREE, DOLLAR, Unit, read_unit

MAX_TOKENS: Final = 120
MAX_DEPTH: Final = 30
MAX_MAGNITUDE: Final = 1e15
MAX_EXPONENT: Final = 16.0


class UnreadableError(Exception):
    """The text is not a supported expression, or it exceeds a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number as it was written."""

    value: float
    unit: Unit = ()
    decimals: int | None = None
    """Digits after the point of a bare number; None for an expression."""
    significant: int = 0
    """Digits of a bare number without leading zeros."""
    scale: float = 1.0
    """Factor of a decimal: pi in 13.22 pi. 1.0 for a bare number."""
    has_decimals: bool = False
    """Whether a decimal point was written anywhere."""
    has_pi: bool = False
    noise: float = 0.0
    """Largest term of a sum, or 1 for a trigonometric value: what float64 rounds, so a value far
    below it may be zero. 0.0 if nothing cancels."""


_FUNCTIONS: Final[dict[str, Callable[[float], float]]] = {
    "sin": lambda degrees: math.sin(math.radians(degrees)),
    "cos": lambda degrees: math.cos(math.radians(degrees)),
    "tan": lambda degrees: math.tan(math.radians(degrees)),
    "arcsin": lambda ratio: math.degrees(math.asin(ratio)),
    "arccos": lambda ratio: math.degrees(math.acos(ratio)),
    "arctan": lambda ratio: math.degrees(math.atan(ratio)),
}
_CLOSERS: Final = {"(": ")", "{": "}", "[": "]"}
_PRODUCT_SIGNS: Final = frozenset(("*", "\\times", "\\cdot", "\\ast"))
_QUOTIENT_SIGNS: Final = frozenset(("/", "\\div"))
_POWER_SIGNS: Final = frozenset(("^", "**"))
_PI: Final = frozenset(("\\pi", "pi", "Pi", "PI"))
_ROOTS: Final = frozenset(("\\sqrt", "sqrt"))
_TOKEN: Final = re.compile(
    r"\s*([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]{1,2}(?![0-9A-Za-z]))?|\.[0-9]+"
    r"|(?:[mcd]?m|km|in|ft|yd|mi)[23](?![0-9A-Za-z.])|\\?[A-Za-z]+|\*\*|[-+*/^(){}\[\]|°'\"%])"
)
_NO_LETTERS: Final[Mapping[str, float]] = {}
_OF_ANGLES: Final = frozenset(("sin", "cos", "tan"))
_INTEGER: Final = re.compile(r"[0-9]+")
_DECIMAL: Final = re.compile(r"([0-9]*)\.?([0-9]*)")


def read_number(text: str, letters: Mapping[str, float] | None = None) -> Number:
    """Parse a number.

    Args:
        text: The expression.
        letters: Values of variables, by letter or Greek command. With any, the expression has no
            units, and `xy` is x times y.

    Raises:
        UnreadableError: The text is not an expression, or it exceeds a limit.
    """
    parser = _Parser(_tokens(text, letters or _NO_LETTERS), letters or _NO_LETTERS)
    try:
        return parser.whole()
    except (OverflowError, ZeroDivisionError, ValueError) as error:
        raise UnreadableError(f"cannot be computed: {error}") from error


def words_of(text: str) -> list[str]:
    """Return the words and commands of an expression.

    Raises:
        UnreadableError: It has a character that no expression has, or too many tokens.
    """
    found = _tokens(text, _NO_LETTERS)
    return [token for token in found if token[0] == "\\" or token[0].isalpha()]


def _tokens(text: str, letters: Mapping[str, float]) -> list[str]:
    found: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnreadableError(f"unexpected character {text[position]!r}")
        found.append(match.group(1))
        position = match.end()
    if letters:
        found = [part for token in found for part in _factors(token, letters)]
    if len(found) > MAX_DEPTH:
        found = _without_redundant_groups(found)
    if len(found) > MAX_TOKENS:
        raise UnreadableError(f"more than {MAX_TOKENS} tokens")
    return found


def _factors(token: str, letters: Mapping[str, float]) -> Sequence[str]:
    """Return the letters of a word that is a product, or the token itself."""
    return token if letters.keys() >= {*token} else (token,)


def _without_redundant_groups(tokens: list[str]) -> list[str]:
    """Drop the inner of two groups that open together and close together."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for position, token in enumerate(tokens):
        if token in _CLOSERS:
            opened.append(position)
        elif token in (")", "}", "]"):
            if not opened or _CLOSERS[tokens[opened[-1]]] != token:
                raise UnreadableError("brackets do not match")
            partners[opened.pop()] = position
    dropped = {
        position
        for start, end in partners.items()
        if partners.get(start + 1) == end - 1
        for position in (start + 1, end - 1)
    }
    return [token for position, token in enumerate(tokens) if position not in dropped]


def _is_number(token: str) -> bool:
    return token[:1].isdigit() or token[:1] == "."


def _checked(value: float) -> float:
    if not abs(value) <= MAX_MAGNITUDE:  # also catches nan
        raise UnreadableError("too large")
    return value


class _Parser:
    """One pass over the tokens; each method reads one level of precedence and returns its value."""

    def __init__(self, tokens: list[str], letters: Mapping[str, float]) -> None:
        self._tokens = tokens
        self._variables = letters
        self._position = 0
        self._depth = 0
        self._bars = 0
        """Open absolute values."""
        self._closed = -1
        """End of the last value with a visible end: after `)`, pi, a braced root or fraction."""
        self._unit: Unit = ()
        self._unit_start = self._unit_end = -1
        self._letters = 0
        """Units of one letter, which may be a variable: m, h, s."""
        self._noise = 0.0

    def whole(self) -> Number:
        prefix: Unit = ()
        if self._peek() == "\\usd":
            self._next()
            prefix = ((DOLLAR, 1),)
        start = self._position
        value = self._sum()
        if self._position != len(self._tokens):
            raise UnreadableError("text after the value")
        if self._unit_end != self._position:
            return _described(value, prefix, self._tokens[start:], self._noise)
        tokens = self._tokens[start : self._unit_start]
        return _described(value, prefix or self._unit, tokens, self._noise)

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
        before = self._letters
        value = self._product()
        if self._peek() in ("+", "-"):
            value = self._rest_of_sum(value, before)
        self._depth -= 1
        return value

    def _rest_of_sum(self, value: float, before: int) -> float:
        """Add the other terms; `before` counts the letters ahead of the first term."""
        units = {self._unit if self._letters > before else ()}
        while self._peek() in ("+", "-"):
            before = self._letters
            sign = 1.0 if self._next() == "+" else -1.0
            term = self._product()
            self._noise = max(self._noise, abs(value), abs(term))
            value = _checked(value + sign * term)
            units.add(self._unit if self._letters > before else ())
        if len(units) > 1:
            raise UnreadableError("5 m + 3 is no length, so m is a variable")
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
        if not token or token in "+-)}]'\"" or token in _POWER_SIGNS or token == "\\over":
            return False
        if token == "|" and self._bars:
            return False
        is_after_unit = self._unit_end == self._position
        meets = (_is_number(token) or token == "{") and self._closed != self._position
        if is_after_unit or meets:
            raise UnreadableError("two values side by side")
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
        found = None if self._variables else read_unit(self._tokens, self._position)
        if found is not None:
            self._unit_start = self._position
            self._unit, self._position = found
            words = self._tokens[self._unit_start : self._position]
            self._letters += any(len(word) == 1 and word.isalpha() for word in words)
            if self._unit == ((DEGREE, 1),):
                value = self._minutes(value)
            self._unit_end = self._position
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

    def _minutes(self, degrees: float) -> float:
        """Return the degrees with the minutes and seconds that follow."""
        for sign, share in (("'", 60), ('"', 3600)):
            following = self._tokens[self._position : self._position + 2]
            if following[1:] != [sign] or not _INTEGER.fullmatch(following[0]):
                break
            if not degrees.is_integer() and share == 60:
                raise UnreadableError("minutes after a fraction of a degree")
            if float(following[0]) >= 60:
                raise UnreadableError("more than 59 minutes or seconds")
            self._position += 2
            degrees += float(following[0]) / share
        return degrees

    def _atom(self) -> float:
        token = self._next()
        if _is_number(token):
            return self._number(token)
        if token in _CLOSERS:
            value = self._sum()
            if token == "{" and self._peek() == "\\over":
                self._next()
                value = _checked(value / self._sum())
            self._expect(_CLOSERS[token])
            if token != "{":  # braces do not show: {1}2 looks like 12
                self._closed = self._position
            return value
        if token == "|":
            return self._absolute()
        if token in _PI:
            self._closed = self._position
            return math.pi
        if token == "\\frac":
            return self._see_end(self._fraction())
        if token in _ROOTS:
            return self._see_end(self._root())
        return self._symbol(token)

    def _symbol(self, token: str) -> float:
        """Return the value of a variable or a function."""
        if token in self._variables:
            return self._variables[token]
        name = token.lstrip("\\")
        if name in _FUNCTIONS:
            return self._function(name)
        raise UnreadableError(f"unknown symbol {token[:20]!r}")

    def _see_end(self, value: float) -> float:
        """Allow a factor without a sign to follow, if a bracket shows where the value ends."""
        if self._tokens[self._position - 1] in (")", "}", "]"):
            self._closed = self._position
        return value

    def _absolute(self) -> float:
        self._descend()
        self._bars += 1
        value = abs(self._sum())
        self._expect("|")
        self._bars -= 1
        self._depth -= 1
        self._closed = self._position
        return value

    def _number(self, token: str) -> float:
        value = _checked(float(token))
        if _INTEGER.fullmatch(token):
            value += self._mixed_part()
        return value

    def _mixed_part(self) -> float:
        r"""Return the proper fraction of a mixed number (2 1/2, 2\frac{1}{2}) and read past it."""
        start = self._position
        following = self._tokens[start : start + 7]
        if following[:1] == ["\\frac"] and len("".join(following[1:2])) == 2:
            (top, bottom), end = following[1], 2
        elif following[:1] == ["\\frac"]:
            top, middle = _whole_argument(following, 1)
            bottom, end = _whole_argument(following, middle)
        elif following[1:2] == ["/"] and self._tokens[start - 2 : start - 1] != ["/"]:
            top, bottom, end = following[0], "".join(following[2:3]), 3
        else:
            return 0.0
        if not (_INTEGER.fullmatch(top) and _INTEGER.fullmatch(bottom)):
            return 0.0
        if not 0 < float(top) < float(bottom):
            return 0.0
        self._position += end
        return float(top) / float(bottom)

    def _argument(self) -> float:
        r"""Read the argument of \frac or ^: a group, or a single digit or symbol."""
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
        start = self._position
        radicand = self._atom_only()
        if self._unit_end > start:
            raise UnreadableError("a unit inside a root")
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
        start = self._position
        value = self._signed()
        argument = self._tokens[start : self._position]
        if name in _OF_ANGLES and DEGREE not in argument and not _PI.isdisjoint(argument):
            value = math.degrees(value)
        self._depth -= 1
        self._noise = max(self._noise, 1.0)
        self._unit_end = -1  # the unit of the argument is not the unit of the value
        return self._raise(_checked(_FUNCTIONS[name](value)), exponent)


def _whole_argument(tokens: list[str], start: int) -> tuple[str, int]:
    r"""Return the whole number that is \frac's argument here and its end; "" for anything else."""
    token = tokens[start] if start < len(tokens) else ""
    if token == "{":
        is_closed = tokens[start + 2 : start + 3] == ["}"]
        return (tokens[start + 1], start + 3) if is_closed else ("", start)
    return (token, start + 1) if len(token) == 1 else ("", start)


def _described(value: float, unit: Unit, tokens: list[str], noise: float) -> Number:
    """Return the number with its notation, which decides how it may be rounded."""
    core = tokens[1:-1] if len(tokens) > 2 and _CLOSERS.get(tokens[0]) == tokens[-1] else tokens
    core = core[1:] if core[:1] in (["-"], ["+"]) else core
    literal, rest = (core[0], core[1:]) if core else ("", [])
    rest = rest[1:] if rest and rest[0] in _PRODUCT_SIGNS else rest
    written = _DECIMAL.fullmatch(literal)
    whole, fraction = written.groups() if written else ("", "")
    decimals, scale = None, 1.0
    if rest and fraction and float(literal) and value and _is_symbolic(rest):
        decimals, scale = len(fraction), abs(value) / float(literal)
    elif not rest and written and float(literal) == abs(value):
        decimals = len(fraction)
    return Number(
        value=value,
        unit=unit,
        decimals=decimals,
        significant=len((whole + fraction).lstrip("0")),
        scale=scale,
        has_decimals=any("." in token for token in tokens),
        has_pi=not _PI.isdisjoint(tokens),
        noise=noise,
    )


def _is_symbolic(tokens: list[str]) -> bool:
    """Whether this is a product of pi and roots of integers."""
    symbols = _PI | _ROOTS
    return tokens[0] in symbols and all(
        token in symbols or token in "(){}" or token.isdigit() for token in tokens
    )
