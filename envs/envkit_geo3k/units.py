"""Parse units after a value: unit words and compound units.

Nothing is converted. A unit becomes its base units with their exponents, so "square feet" equals
"ft^2" and "m/s" equals "meters per second".
"""

import re
from collections.abc import Sequence
from typing import Final

Unit = tuple[tuple[str, int], ...]
"""Base units with their exponents, sorted: m/s is (("m", 1), ("s", -1)). Empty without a unit."""

DEGREE: Final = "°"
RADIAN: Final = "rad"
DOLLAR: Final = "$"
PERCENT: Final = "%"
RADIANS: Final[Unit] = ((RADIAN, 1),)

_SPELLINGS: Final = {
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm cms centimeter centimeters centimetre centimetres",
    "dm": "dm decimeter decimeters decimetre decimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yds yard yards",
    "mi": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "oz": "oz ounce ounces",
    "lb": "lb lbs pound pounds",
    "t": "ton tons tonne tonnes",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "day days",
    "wk": "week weeks",
    "yr": "year years",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "l": "L liter liters litre litres",
    "gal": "gal gallon gallons",
    "acre": "acre acres",
    "ha": "ha hectare hectares",
    "n": "N newton newtons",
    "j": "J joule joules",
    "w": "W watt watts",
    DOLLAR: "dollar dollars usd",
    "cent": "cent cents",
    "yuan": "yuan",
    DEGREE: "degree degrees deg degs",
    RADIAN: "rad rads radian radians",
    PERCENT: "percent",
    "": "u unit units side sides",
}
_UNITS: Final[dict[str, Unit]] = {
    **{
        word: ((base, 1),) if base else ()
        for base, words in _SPELLINGS.items()
        for word in words.split()
    },
    **{
        f"{base}{power}": ((base, power),)
        for base in ("mm", "cm", "dm", "m", "km", "in", "ft", "yd", "mi")
        for power in (2, 3)
    },
    DEGREE: ((DEGREE, 1),),
    PERCENT: ((PERCENT, 1),),
    "\\usd": ((DOLLAR, 1),),
    "mph": (("h", -1), ("mi", 1)),
    "kph": (("h", -1), ("km", 1)),
}
"""Unit words in lowercase, except single letters: M is not metre, and 12n is not a force."""
_PREFIXES: Final = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_SUFFIXES: Final = {"squared": 2, "cubed": 3}

_PER: Final = frozenset(("/", "per"))
_TIMES: Final = frozenset(("*", "\\cdot"))
_ALONE: Final = frozenset((DEGREE, PERCENT))
_POWER: Final = re.compile(r"\^(?:(-?[123])|\{(-?[123])\})(?![0-9.])")
_MAX_TOKENS: Final = 16


def read_unit(tokens: Sequence[str], start: int) -> tuple[Unit, int] | None:
    """Return the unit that begins at this token and its end; None if none begins there."""
    is_wrapped = tokens[start : start + 1] == ["("]
    position = start + is_wrapped
    first = _read_word(tokens, position)
    if first is None:
        return None
    total, position = dict(first[0]), first[1]
    while not total.keys() & _ALONE and position < start + _MAX_TOKENS:
        sign = tokens[position] if position < len(tokens) else ""
        is_divided = sign in _PER
        word = _read_word(tokens, position + (is_divided or sign in _TIMES))
        if word is None:
            break
        unit, end = word
        if not is_divided and sign not in _TIMES and any(power > 0 for _, power in unit):
            break  # side by side only with negative powers: m s^{-1}
        for base, power in unit:
            total[base] = total.get(base, 0) + (-power if is_divided else power)
        position = end
    if is_wrapped and tokens[position : position + 1] != [")"]:
        return None
    return tuple(sorted(total.items())), position + is_wrapped


def _read_word(tokens: Sequence[str], start: int) -> tuple[Unit, int] | None:
    """Read one unit word with its power: square feet, cm^2, s^{-1}."""
    following = [token if len(token) == 1 else token.lower() for token in tokens[start : start + 7]]
    power = _PREFIXES.get(following[0], 0) if following else 0
    position = 1 if power else 0
    unit = _UNITS.get(following[position]) if position < len(following) else None
    if unit is None:
        return None
    position += 1
    if following[position - 1] == DEGREE:
        if following[position : position + 1] in (["C"], ["F"]):
            return ((DEGREE + following[position], 1),), start + position + 1
        return unit, start + position
    rest = following[position:]
    written = _POWER.match("".join(rest)) if rest[:1] == ["^"] else None
    if written is not None:
        power = int(written.group(1) or written.group(2))
        position += len(written.group())  # each of its tokens is one character
    elif rest and rest[0] in _SUFFIXES:
        power, position = _SUFFIXES[rest[0]], position + 1
    return tuple((base, n * (power or 1)) for base, n in unit), start + position
