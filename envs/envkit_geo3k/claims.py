"""Parse what an answer claims from plain text: numbers, points or ratios, with units.

The policy of the rules "prose", "claims", "unit", "point" and "ratio" is on the page
docs/environments/geo3k.md; `expression` parses single numbers.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envkit_geo3k.answer_text import has_over
from envkit_geo3k.expression import Number, UnreadableError, read_number
from envkit_geo3k.wording import is_name


class Shape(StrEnum):
    """Kind of a claim."""

    NUMBER = "number"
    POINT = "point"
    """Values in parentheses, unbracketed, or named x and y."""
    BRACKETS = "brackets"
    BRACES = "braces"
    RATIO = "ratio"
    CLOCK = "clock"
    """A time: terms of a ratio of which one has a leading zero, 9:05."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One value that an answer states."""

    shape: Shape
    parts: tuple[Number, ...]
    """One for a number, else one per coordinate or term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A parsed answer."""

    claims: tuple[Claim, ...]
    """Values between equals signs, all claimed to be the answer."""
    roundings: tuple[Claim, ...] = ()
    """Value after an approximately sign: the first value, rounded."""


_MAX_CLAIMS: Final = 12
_VERB: Final = re.compile(
    r"(?<!\S)(?:(?:[Ii]s|[Aa]re|be)(?:\s+equal\s+to|\s+at)?|[Ee]quals?(?:\s+to)?|[Mm]easures|[Hh]as|have"
    r"|gives?|gets?|find|obtain|IS|EQUALS)(?![A-Za-z'])"
)
_APPROXIMATELY: Final = re.compile(
    r"(?<!\S)(?:or\s+)?(?:[Aa]pproximately|[Aa]pprox|[Aa]bout|[Rr]oughly|[Aa]round)(?![A-Za-z])"
)
_EXACTLY: Final = re.compile(r"(?<!\S)[Ee]xactly(?!\S)")
_REMARK: Final = re.compile(
    r"[\s,(]*(?:[Rr]ounded\s+)?to the nearest\s+"
    r"(?:whole number|integer|degree|unit|tenth|hundredth|thousandth)\)?$"
)
_APART: Final = re.compile(r"\(\s*(\\approx[^()]*)\)$")
_CONNECTIVES: Final = re.compile(
    r"(?:(?:[Ss]o|[Tt]hus|[Hh]ence|[Tt]herefore|[Tt]hen|[Tt]he|[Ff]inal|[Cc]orrect|[Aa]ns|[Aa]nswer"
    r"|ANSWER|\\therefore|\\Rightarrow|\\implies)(?![A-Za-z])[\s,]*)+"
)
_ASSIGNED: Final = re.compile(r"(?:^|[,;]\s*(?:and\s)?|\sand\s)\s*([xyz])\s*[=:]")
_THOUSANDS: Final = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")
_BRACED_THOUSANDS: Final = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:\{,\}[0-9]{3})+(?![0-9])")
_LEADING_ZERO: Final = re.compile(r"\s*0[0-9]")
_POINT_NAME: Final = re.compile(r"(?:[Pp]oint\s+[A-Z]?|[A-Z])'?\s*(?=\()")
_RATIO_WORD: Final = re.compile(r"(?<=[0-9A-Za-z)}\s])to(?![A-Za-z])")
_GROUPS: Final = {"(": (")", Shape.POINT), "[": ("]", Shape.BRACKETS), "{": ("}", Shape.BRACES)}


def read_answer(plain: str) -> Answer:
    """Return the values that an answer claims.

    Args:
        plain: The answer as `answer_text.simplify` returns it.

    Raises:
        UnreadableError: No value can be read from it.
    """
    if "nearest" in plain:
        plain = _REMARK.sub("", plain)
    plain = _EXACTLY.sub(" ", _APPROXIMATELY.sub(r" \\approx ", plain))
    sides = _APART.sub(r"\1", plain).split("\\approx")
    found = [claims for side in sides if (claims := tuple(_claims(side)))]
    if not found:
        raise UnreadableError("there is no value")
    return Answer(claims=found[0], roundings=tuple(c for claims in found[1:] for c in claims))


def _claims(text: str) -> Iterator[Claim]:
    """Yield the values between equals signs; nothing if there are only names."""
    text = text.strip(" ,;")
    if text[:1] in _GROUPS:
        text = _without_groups(text)
    assigned = _assigned_point(text)
    if assigned is not None:
        yield assigned
        return
    sides = _VERB.sub("=", text).split("=")
    if len(sides) > _MAX_CLAIMS:
        raise UnreadableError(f"more than {_MAX_CLAIMS} equals signs")
    for side in sides:
        value = _without_prose(side.strip(" ,;"))
        if value:
            yield _value(value)


def _without_groups(text: str) -> str:
    """Return a statement without the groups around it: (x = 12), {{the answer: 12.}}."""
    for _ in range(4):
        is_list = "," in text or ";" in text
        is_statement = "=" in text or (text[:1] == "{" and not is_list and not has_over(text, 1))
        if not is_statement or text[:1] not in _GROUPS or not _closes_at_end(text):
            break
        text = text[1:-1].rstrip(" .").lstrip()
    return text


def _without_prose(side: str) -> str:
    """Strip leading names and connectives; empty if nothing else is left."""
    while side and not is_name(side):
        name, colon, rest = side.partition(":")
        if colon and (not name.strip() or is_name(name)):
            side = rest.strip(" ,;")
            continue
        connectives = _CONNECTIVES.match(side)
        return side[connectives.end() :] if connectives else side
    return ""


def _assigned_point(text: str) -> Claim | None:
    """Read "x = 2, y = 5" as a point, in any order of the names."""
    if "y" not in text:
        return None
    before, *pairs = _ASSIGNED.split(text)
    names = pairs[::2]
    if before.strip() or len(names) < 2 or sorted(names) != list("xyz")[: len(names)]:
        return None
    values = dict(zip(names, pairs[1::2], strict=True))
    parts = tuple(read_number(values[name].strip(" ,;")) for name in sorted(names))
    return Claim(shape=Shape.POINT, parts=parts)


def _value(side: str) -> Claim:
    """Read a number, a point, a list or a ratio."""
    if "{,}" in side:
        side = _BRACED_THOUSANDS.sub(_digits, side)
    if not any(sign in side for sign in ",;:") and "to" not in side:
        return Claim(shape=Shape.NUMBER, parts=(read_number(side),))
    side = _POINT_NAME.sub("", side, count=1) if _POINT_NAME.match(side) else side
    shape, inner = Shape.POINT, side
    for _ in range(3):
        group = _GROUPS.get(inner[:1])
        if group is None or not _closes_at_end(inner):
            break
        if inner[-1] != group[0]:
            raise UnreadableError("an interval is not a point")
        shape, inner = group[1], inner[1:-1].strip()
    if inner is side:  # (12,500) is a point
        inner = _THOUSANDS.sub(_digits, inner)
    for separator in ",;:":
        parts = tuple(_split_outside_groups(inner, separator)) if separator in inner else ()
        if len(parts) > 1:
            return _ratio(parts) if separator == ":" else _claim(shape, parts)
    words = _RATIO_WORD.split(inner, maxsplit=1)
    return _ratio(tuple(words)) if len(words) == 2 else _claim(Shape.NUMBER, (inner,))


def _ratio(parts: tuple[str, ...]) -> Claim:
    """Return a ratio, or a clock time: 9:00 and 3:00 are no multiples of each other."""
    claim = _claim(Shape.RATIO, parts)
    is_clock = any(_LEADING_ZERO.match(part) for part in parts)
    return Claim(shape=Shape.CLOCK, parts=claim.parts) if is_clock else claim


def _digits(match: re.Match[str]) -> str:
    return re.sub(r"[,{}]", "", match.group())


def _claim(shape: Shape, parts: tuple[str, ...]) -> Claim:
    return Claim(shape=shape, parts=tuple(read_number(part.strip()) for part in parts))


def _closes_at_end(side: str) -> bool:
    depth = 0
    for position, character in enumerate(side):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return position == len(side) - 1
    return False


def _split_outside_groups(text: str, separator: str) -> Iterator[str]:
    depth = start = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]
