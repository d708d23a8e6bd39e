"""From the text of an answer to the plain expressions in it.

Takes off what carries no value: boxes, LaTeX spacing and text wrappers, degree signs, a name before
an equals sign. Every step is one linear pass over a text of bounded length.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from envkit_geo3k.expression import UnreadableError, evaluate

MAX_LENGTH: Final = 400
"""Longest answer that is read, in characters. Real ones have fewer than sixty."""

_CHARACTERS: Final = str.maketrans(
    {
        "−": "-",  # noqa: RUF001  # the minus sign is what this line is about
        "–": "-",  # noqa: RUF001
        "×": "*",  # noqa: RUF001
        "·": "*",
        "⋅": "*",
        "∙": "*",
        "÷": "/",
        "⁄": "/",  # noqa: RUF001
        "∕": "/",  # noqa: RUF001
        "∶": ":",  # noqa: RUF001
        "π": r"\pi ",
        "√": r"\sqrt ",
        "°": " ",
        "º": " ",
        "˚": " ",
        "≈": r"\approx ",
        "∠": r"\angle ",
        "△": r"\triangle ",
        "′": "'",  # noqa: RUF001
        "²": "^2 ",
        "³": "^3 ",
        "½": " 1/2 ",
        "⅓": " 1/3 ",
        "⅔": " 2/3 ",
        "¼": " 1/4 ",
        "¾": " 3/4 ",
        "\u00a0": " ",
        "~": " ",
    }
)
_SPACING: Final = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|quad|qquad|hspace|bigl|bigr)(?![A-Za-z])"
    r"|\\[,;:! ()\[\]]|\$|\\\$"
)
_DEGREES: Final = re.compile(
    r"\^\s*\{\s*\\(?:circ|degree)\s*\}|\^\s*\\(?:circ|degree)(?![A-Za-z])"
    r"|\\(?:circ|degree|degrees)(?![A-Za-z])"
)
_TEXT_WRAPPER: Final = re.compile(
    r"\\(?:text|textrm|textbf|textit|mathrm|mathbf|mathit|operatorname|mbox|rm|bf)\s*\{([^{}]*)\}"
)
_FRACTIONS: Final = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_APPROXIMATELY: Final = re.compile(r"\\(?:approx|thickapprox|simeq|doteq)(?![A-Za-z])")
_THOUSANDS: Final = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:(?:,|\{,\})[0-9]{3})+(?![0-9])")
_NAME: Final = re.compile(
    r"(?:\\(?:angle|overline|widehat|overarc|triangle|overrightarrow|sin|cos|tan|mathbf)"
    r"|[A-Za-z]|(?<!^)[0-9_'{}() ])+"
)
_BARE_NUMBER: Final = re.compile(r"[-+]?([0-9]*)(?:\.([0-9]*))?")
_ABBREVIATION_DOT: Final = re.compile(r"(?<=[A-Za-z])\.(?![0-9])")
_POINT_NAME: Final = re.compile(r"[A-Z]'?\s*(?=[(\[])")
_RATIO_WORD: Final = re.compile(r"(?<=[0-9)}\s])to(?![A-Za-z])")
_TRAILING_UNIT: Final = re.compile(r"[A-Za-z][A-Za-z ]*(?:\^\s*\{?\s*[23]\s*\}?)?$")
_PLAIN: Final = re.compile(r"[-+0-9./ ]*")
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{")
_BRACE: Final = re.compile(r"[{}]")
_MAX_BOXES: Final = 64
_MAX_BRACES: Final = 3000
"""Looked at for the last complete box, which costs a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One numeric part of an answer."""

    value: float
    decimals: int | None
    """Digits after the point when the part is a bare number; None for an expression."""
    significant: int
    """Digits of a bare number without leading zeros; 0 for an expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an answer says."""

    claims: tuple[tuple[Reading, ...], ...]
    """The values on the sides of its equals signs, all claimed to be the answer. A claim has one
    part, or several for a tuple or a ratio."""
    is_ratio: bool = False
    """The parts are a ratio such as 2:3."""
    is_percent: bool = False


def last_boxed(text: str) -> str | None:
    r"""Return what the last complete \boxed{...} or \fbox{...} holds; None without one.

    The last `_MAX_BOXES` openings are looked at, and so many braces that it takes a millisecond.
    """
    braces = _MAX_BRACES
    for start in islice(_box_starts(text), _MAX_BOXES):
        opening = _BOX.match(text, start)
        if opening is None:
            continue
        depth, begin = 0, opening.end()
        for brace in islice(_BRACE.finditer(text, begin - 1, begin + 4 * MAX_LENGTH), braces):
            depth += 1 if brace.group() == "{" else -1
            braces -= 1
            if depth == 0:
                return text[begin : brace.start()].strip()
    return None


def _box_starts(text: str) -> Iterator[int]:
    """Yield where boxes may begin, from the end of the text on."""
    found = {mark: text.rfind(mark) for mark in ("\\boxed", "\\fbox")}
    while (start := max(found.values())) >= 0:
        yield start
        mark = "\\boxed" if found["\\boxed"] == start else "\\fbox"
        found[mark] = text.rfind(mark, 0, start)


def simplify(text: str) -> str:
    """Return the answer without wrappers, spacing commands and degree signs.

    Raises:
        UnreadableError: The answer is longer than `MAX_LENGTH`.
    """
    if len(text) > MAX_LENGTH:
        raise UnreadableError(f"longer than {MAX_LENGTH} characters")
    if _PLAIN.fullmatch(text):
        return text.strip().rstrip(".")
    for _ in range(4):
        inner = last_boxed(text)
        if inner is None:
            break
        text = inner
    if not text.isascii() or "~" in text:
        text = text.translate(_CHARACTERS)
    if "\\" in text or "$" in text:
        text = _without_commands(text)
    text = _ABBREVIATION_DOT.sub(" ", text)
    return text.strip().rstrip(".").strip()


def _without_commands(text: str) -> str:
    text = _DEGREES.sub(" ", text)
    text = _SPACING.sub(" ", text)
    for _ in range(3):
        if "\\" not in text:
            break
        text = _TEXT_WRAPPER.sub(r" \1 ", text)
    return _FRACTIONS.sub(r"\\frac", text)


def read_answer(plain: str) -> Answer:
    """Return the values that an answer claims.

    Args:
        plain: The answer as `simplify` returns it.

    Raises:
        UnreadableError: No value can be read from it.
    """
    sides = _APPROXIMATELY.split(plain) if "\\" in plain else [plain]
    # What follows an "approximately" only rounds what stands before it, unless that is a name.
    for side in sides:
        answer = _read_equation(side) if side.strip() else None
        if answer is not None:
            return answer
    raise UnreadableError("there is no value")


def _read_equation(text: str) -> Answer | None:
    """Read the values between equals signs; None when there are only names."""
    claims: list[tuple[Reading, ...]] = []
    is_ratio = is_percent = False
    for side in map(str.strip, text.split("=")):
        if _is_name(side):
            continue
        if side.endswith("%"):
            is_percent, side = True, side.rstrip("%\\ ")
        parts, ratio = _parts(side)
        claims.append(tuple(_reading(part.strip()) for part in parts))
        is_ratio = is_ratio or ratio
    if not claims:
        return None
    return Answer(claims=tuple(claims), is_ratio=is_ratio, is_percent=is_percent)


def _is_name(side: str) -> bool:
    """Whether this is the name of a quantity (x, AB, m angle ABC) rather than a value."""
    if not side or len(side) > 60 or not _NAME.fullmatch(side):
        return False
    try:
        evaluate(side)
    except UnreadableError:
        return True
    return False


def _parts(side: str) -> tuple[list[str], bool]:
    """Split a tuple or a ratio into its parts; the flag says that it is a ratio."""
    named_point = _POINT_NAME.match(side)
    if named_point:
        side = side[named_point.end() :]
    is_group = side[:1] in ("(", "[") and _closes_at_end(side)
    if "," in side and not is_group:
        side = _THOUSANDS.sub(lambda match: re.sub(r"[,{}]", "", match.group()), side)
    inner = side[1:-1] if is_group else side
    for separator in (",", ":"):
        if separator in inner:
            parts = _split_outside_groups(inner, separator)
            if len(parts) > 1:
                return parts, separator == ":"
    words = _RATIO_WORD.split(inner, maxsplit=1)
    return (words, True) if len(words) == 2 else ([side], False)


def _closes_at_end(side: str) -> bool:
    depth = 0
    for position, character in enumerate(side):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return position == len(side) - 1
    return False


def _split_outside_groups(text: str, separator: str) -> list[str]:
    parts: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _reading(part: str) -> Reading:
    value = evaluate(part)
    bare = _BARE_NUMBER.fullmatch(_TRAILING_UNIT.sub("", part).strip())
    if bare is None:
        return Reading(value=value, decimals=None, significant=0)
    whole, fraction = bare.group(1), bare.group(2) or ""
    digits = (whole + fraction).lstrip("0")
    return Reading(value=value, decimals=len(fraction), significant=len(digits))
