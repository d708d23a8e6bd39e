r"""Gold answers that are not one value: formulas with letters, and several values.

A formula is compared by its values at fixed points, so `2(2n - 1)` equals `4n - 2`. An equation
equals its multiples, so `2x - y + 1 = 0` is `y = 2x + 1`. Several values, as in `\pm 3` or
`3 or 4`, are compared in any order.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envkit_geo3k.expression import Number, UnreadableError, read_number, words_of
from envkit_geo3k.wording import is_name

_STEPS: Final = (0.6180339887, 0.4142135624, 0.7320508076, 0.7182818285)
"""Irrational steps, one per point, that spread the letters between 0 and 1."""
_RELATIVE: Final = 1e-9
_LEAST: Final = 1e-6
"""Least difference of an equation's sides at a point; below it, the ratio of two is only noise."""
_MAX_LETTERS: Final = 6
_MAX_VALUES: Final = 6
_MAX_SIDES: Final = 6
_GREEK: Final = frozenset(f"\\{name}" for name in "alpha beta gamma delta theta phi omega".split())  # noqa: SIM905
_OPERATORS: Final = frozenset((r"\frac", r"\sqrt", r"\times", r"\cdot", r"\div", r"\over"))
_FUNCTIONS: Final = frozenset(
    ("sin", "cos", "tan", "pi", "sqrt", r"\sin", r"\cos", r"\tan", r"\pi", *_OPERATORS)
)
_SIGN: Final = re.compile(r"[-+*/^=]|\\(?:frac|sqrt|times|cdot|div)(?![A-Za-z])")
_VERB: Final = re.compile(r"\s(?:is|equals|are|be)\s")
_SEPARATOR: Final = re.compile(r"\s+(?:or|and)\s+|\\l?or(?![A-Za-z])|[,;]")
_PLUS_MINUS: Final = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_SET: Final = re.compile(r"\\?\{(.*)\\?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """An expression with letters, or an equation."""

    letters: frozenset[str]
    sides: tuple[tuple[float, ...], ...]
    """Values of one or two sides at the points that can be computed."""
    points: tuple[int, ...]
    solved: bool
    """Whether the left side is one letter that the right side lacks, so the right side answers."""


def read_formula(plain: str) -> Formula | None:
    """Return a gold answer as a formula; None if it has no letters or is something else.

    Args:
        plain: The answer as `answer_text.simplify` returns it.
    """
    texts = [side.strip(" °") for side in plain.split("=")]
    try:
        letters = _letters(plain.replace("=", "-").replace("°", " "))
    except UnreadableError:
        return None
    if len(texts) > 2 or not letters:
        return None
    found: list[tuple[int, tuple[float, ...]]] = []
    for point in range(len(_STEPS)):
        try:
            values = tuple(_value(text, letters, point) for text in texts)
        except UnreadableError:  # the root of a negative number
            continue
        if len(values) == 1 or abs(values[0] - values[1]) > _LEAST:
            found.append((point, values))
    if len(found) < 2:
        return None
    points, columns = zip(*found, strict=True)
    solved = len(texts) == 2 and texts[0] in letters and texts[0] not in words_of(texts[1])
    return Formula(
        letters=letters, sides=tuple(zip(*columns, strict=True)), points=points, solved=solved
    )


def equals(plain: str, gold: Formula) -> bool:
    """Return whether an answer states the same formula.

    Raises:
        UnreadableError: The answer has other letters, or is not a formula.
    """
    sides = [side for side in _sides(plain, gold) if side is not None]
    if not sides or len(sides) > 2:
        raise UnreadableError("not one formula")
    if len(gold.sides) == 1:
        return all(_same(side, gold.sides[0]) for side in sides)
    if len(sides) == 1:
        return gold.solved and _same(sides[0], gold.sides[1])
    own, wanted = (
        [left - right for left, right in zip(*pair, strict=True)] for pair in (sides, gold.sides)
    )
    factor = own[0] / wanted[0]
    return abs(factor) > _LEAST and _same(own, [factor * value for value in wanted])


def _sides(plain: str, gold: Formula) -> Iterator[tuple[float, ...] | None]:
    """Yield the values of each side of an answer; None for a name, such as "the answer"."""
    sides = _VERB.sub("=", plain).split("=")
    if len(sides) > _MAX_SIDES:
        raise UnreadableError(f"more than {_MAX_SIDES - 1} equals signs")
    for side in sides:
        text = side.strip(" °,;")
        try:
            yield tuple(_value(text, gold.letters, point) for point in gold.points)
        except UnreadableError:
            if not is_name(text):
                raise
            yield None


def _same(own: Sequence[float], wanted: Sequence[float]) -> bool:
    return all(
        math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_RELATIVE)
        for one, other in zip(own, wanted, strict=True)
    )


def _letters(text: str) -> frozenset[str]:
    """Return the variables of an expression; empty if a word of it is none."""
    if _SIGN.search(text) is None and not any(character.isdigit() for character in text):
        return frozenset()
    found: set[str] = set()
    for word in words_of(text):
        is_product = len(word) == 2 and word.isalpha() and word.islower()
        if word in _FUNCTIONS:
            continue
        if not (len(word) == 1 or word in _GREEK or is_product):
            return frozenset()
        found.update((word,) if word in _GREEK else word)
    return frozenset(found) if len(found) <= _MAX_LETTERS else frozenset()


def _value(text: str, letters: frozenset[str], point: int) -> float:
    return read_number(text, _assigned(letters, point)).value


def _assigned(letters: frozenset[str], point: int) -> Mapping[str, float]:
    """Return values of 0.5 to 3.5 that differ by letter; at the last point they are negative."""
    sign, step = -1.0 if point == len(_STEPS) - 1 else 1.0, _STEPS[point]
    return {one: sign * (0.5 + 3 * math.modf(sum(map(ord, one)) * step)[0]) for one in letters}


def read_several(plain: str) -> tuple[Number, ...]:
    r"""Return the values of an answer such as `3 or 4`, `x = \pm 3` or `\{3, 4\}`.

    Raises:
        UnreadableError: It has fewer than two values, more than one name, or something else.
    """
    braced = _SET.fullmatch(plain.strip())
    names: set[str] = set()
    values: list[Number] = []
    parts = _SEPARATOR.split(braced.group(1).rstrip("\\") if braced else plain)
    if len(parts) > _MAX_VALUES:
        raise UnreadableError(f"more than {_MAX_VALUES} values")
    for part in parts:
        name, _, text = part.rpartition("=")
        if name.strip():
            names.add(name.strip())
        values += (read_number(one) for one in _signed(text))
    if not 2 <= len(values) <= _MAX_VALUES or len(names) > 1 or not all(map(is_name, names)):
        raise UnreadableError("not several values of one quantity")
    return tuple(values)


def _signed(text: str) -> tuple[str, ...]:
    r"""Return a text with + and - for its \pm, or the text itself."""
    parts = _PLUS_MINUS.split(text)
    if len(parts) > 2:
        raise UnreadableError("more than one plus-minus sign")
    return ("+".join(parts), "-".join(parts)) if len(parts) == 2 else (text,)
