"""Grade a geometry answer against the gold answer, in bounded time. Thread-safe.

The page docs/environments/geo3k.md documents the policy: markup, prose, units, rounding.

`grade` never raises for model output: an unreadable answer scores 0, with the reason.
"""

import functools
import math
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from envkit import ranges
from envkit_geo3k.answer_text import simplify
from envkit_geo3k.claims import Answer, Claim, Shape, read_answer
from envkit_geo3k.expression import Number, UnreadableError
from envkit_geo3k.formulas import Formula, equals, read_formula, read_several
from envkit_geo3k.units import RADIANS, Unit


class Rounding(StrEnum):
    """Which decimals are accepted for a value that is not a decimal."""

    EXACT = "exact"
    """The value itself, to a relative 1e-6."""
    ROUND = "round"
    """Also a correct rounding of an exact gold value (at least one decimal and three significant
    digits), and any value that rounds to a gold decimal. Ties round away from zero."""


class How(StrEnum):
    """Reason for a grade."""

    TEXT = "text"
    """Correct: the same text, ignoring spacing and wrappers."""
    VALUE = "value"
    """Correct: the same value."""
    ROUNDED = "rounded"
    """Correct: the same value after rounding."""
    DIFFERENT = "different"
    """Wrong: another value."""
    UNREADABLE = "unreadable"
    """Wrong: no value can be read from the answer."""
    NO_ANSWER = "no_answer"
    """Wrong: there is no answer."""
    GOLD_UNREADABLE = "gold_unreadable"
    """Wrong: the gold answer is not a value, and the answer differs as text."""


class Grade(NamedTuple):
    """The outcome of grading."""

    score: float
    """1.0 for a correct answer, else 0.0."""
    how: How


_RELATIVE: Final = 1e-6  # to a decimal, which was truncated somewhere
_EXACT_RELATIVE: Final = 1e-9  # between expressions, for the errors of float64
_BARE_RELATIVE: Final = 1e-12  # between plain decimals: 1000000 is not 1000001
_ZERO: Final = 1e-9  # to a gold value of 0, absolute
_NOISE: Final = 1e-12  # of the largest term, where terms cancel
_MIN_SIGNIFICANT: Final = 3
_SPACING: Final = re.compile(r"\s*([^\w\s])\s*")


def grade(answer: str | None, gold: str, policy: str = Rounding.ROUND) -> Grade:
    r"""Compare an answer with the gold answer.

    Args:
        answer: Plain text or LaTeX, boxed or not, with or without units. None scores 0.
        gold: The correct answer, in the same forms.
        policy: A `Rounding` value.

    Raises:
        ConfigurationError: `policy` is not a `Rounding` value.
    """
    rounding = rounding_of(policy)
    if not isinstance(answer, str) or not answer.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # a tool call holds any JSON
        return Grade(0.0, How.NO_ANSWER)
    if answer.strip() == gold.strip():
        return Grade(1.0, How.TEXT)
    truth = _gold(gold)
    try:
        plain = simplify(answer)
        if truth.answer is not None:
            how = _compare(read_answer(plain), truth.answer, rounding)
        else:
            how = _compare_other(plain, truth, rounding)
    except UnreadableError:
        return Grade(0.0, How.UNREADABLE)
    return Grade(0.0 if how in (How.DIFFERENT, How.GOLD_UNREADABLE) else 1.0, how)


def is_readable(gold: str) -> bool:
    """Return whether a gold answer is read; if not, answers are compared with it as text."""
    truth = _gold(gold)
    return truth.answer is not None or truth.formula is not None or bool(truth.several)


def rounding_of(policy: str) -> Rounding:
    """Return the rounding policy of this name.

    Raises:
        ConfigurationError: There is no such policy.
    """
    return Rounding(ranges.one_of("rounding", policy, Rounding))


class _Gold(NamedTuple):
    text: str
    """For comparing as text; empty if it is too long to read."""
    answer: Answer | None
    formula: Formula | None = None
    several: tuple[Number, ...] = ()
    """Two or more values that are the answer together; empty otherwise."""


@functools.lru_cache(maxsize=4096)
def _gold(gold: str) -> _Gold:
    """Read a gold answer; cached, because a training run grades against it many times."""
    text = plain = ""
    try:
        plain = simplify(gold)
        text = _as_text(plain)
        return _Gold(text, read_answer(plain))
    except UnreadableError:
        pass
    try:
        return _Gold(text, None, several=_distinct(read_several(plain)))
    except UnreadableError:
        return _Gold(text, None, formula=read_formula(plain))


def _distinct(values: tuple[Number, ...]) -> tuple[Number, ...]:
    """Return the values, unless two are equal: 3 or 3 is one value."""
    return values if len({one.value for one in values}) == len(values) else ()


def _as_text(plain: str) -> str:
    text = " ".join(_SPACING.sub(r"\1", plain).split())
    return text.casefold() if text.replace(" ", "").isalpha() else text


def _compare(claimed: Answer, truth: Answer, rounding: Rounding) -> How:
    """Compare every claim with the gold value: "x = 5 = 6" is not an answer of 5."""
    first = claimed.claims[0]
    if not all(_is_rounding(claim, first) for claim in claimed.roundings):
        return How.DIFFERENT
    gold = truth.claims[-1]
    return _worst(_compare_claim(claim, gold, rounding) for claim in claimed.claims)


def _compare_other(plain: str, truth: _Gold, rounding: Rounding) -> How:
    """Compare with a gold answer that is not one value."""
    if truth.text and _as_text(plain) == truth.text:
        return How.TEXT
    if truth.formula is not None:
        return How.VALUE if equals(plain, truth.formula) else How.DIFFERENT
    if truth.several:
        return _compare_several(read_several(plain), truth.several, rounding)
    return How.GOLD_UNREADABLE


def _compare_several(claimed: Sequence[Number], truth: Sequence[Number], rounding: Rounding) -> How:
    """Compare values in any order: each is the answer for exactly one gold value."""
    ordered = (sorted(values, key=lambda number: number.value) for values in (claimed, truth))
    pairs = list(zip(*ordered, strict=False))
    if len(claimed) != len(truth) or not all(_units_agree(one.unit, gold) for one, gold in pairs):
        return How.DIFFERENT
    return _worst(_compare_numbers(one, gold, rounding) for one, gold in pairs)


def _worst(outcomes: Iterable[How]) -> How:
    found = set(outcomes)
    if How.DIFFERENT in found:
        return How.DIFFERENT
    return How.ROUNDED if How.ROUNDED in found else How.VALUE


def _paired(claim: Claim, gold: Claim) -> list[tuple[Number, Number]] | None:
    """Return the parts of two claims in pairs; None if their shapes or lengths differ."""
    is_alike = claim.shape is gold.shape or (_may_be_clock(claim) and _may_be_clock(gold))
    if not is_alike or len(claim.parts) != len(gold.parts):
        return None
    return list(zip(claim.parts, gold.parts, strict=False))


def _may_be_clock(claim: Claim) -> bool:
    """Whether a claim is a time, or a ratio that could be one: 9:30, but not 3:1."""
    if claim.shape is Shape.RATIO:
        return all(part.value >= 10 for part in claim.parts[1:])
    return claim.shape is Shape.CLOCK


def _is_rounding(claim: Claim, exact: Claim) -> bool:
    """Whether a claim after an approximately sign rounds the one before it."""
    pairs = _paired(claim, exact)
    return pairs is not None and all(
        _is_close(rounded, part)
        or (rounded.decimals is not None and _rounds_to(part.value, rounded, rounded.decimals))
        for rounded, part in pairs
    )


def _compare_claim(claim: Claim, gold: Claim, rounding: Rounding) -> How:
    if gold.shape is Shape.RATIO and claim.shape is Shape.NUMBER:
        gold = _quotient(gold)
    pairs = _paired(claim, gold)
    if pairs is None or not all(_units_agree(part.unit, true_part) for part, true_part in pairs):
        return How.DIFFERENT
    if claim.shape is Shape.CLOCK or gold.shape is Shape.CLOCK:
        return _compare_clock(pairs)
    if gold.shape is Shape.RATIO:
        return _compare_ratio(pairs)
    return _worst(_compare_numbers(part, true_part, rounding) for part, true_part in pairs)


def _quotient(ratio: Claim) -> Claim:
    """Return a ratio of two terms as a number, so that 2/3 answers 2:3."""
    if len(ratio.parts) != 2:
        return ratio
    first, second = ratio.parts
    if not second.value:
        return ratio
    return Claim(shape=Shape.NUMBER, parts=(Number(value=first.value / second.value),))


def _units_agree(unit: Unit, gold: Number) -> bool:
    if unit and gold.unit:
        return unit == gold.unit
    return unit != RADIANS or gold.has_pi


def _compare_ratio(pairs: Sequence[tuple[Number, Number]]) -> How:
    """Compare by cross products with the largest term, so that 4:6 equals 2:3."""
    largest, true_largest = max(pairs, key=lambda pair: abs(pair[1].value))
    is_equal = 0.0 not in (largest.value, true_largest.value) and all(
        math.isclose(
            part.value * true_largest.value, true_part.value * largest.value, rel_tol=_RELATIVE
        )
        for part, true_part in pairs
    )
    return How.VALUE if is_equal else How.DIFFERENT


def _compare_clock(pairs: Sequence[tuple[Number, Number]]) -> How:
    """Compare term by term: 9:00 is another time than 3:00."""
    return _worst(
        How.VALUE if part.value == true_part.value else How.DIFFERENT for part, true_part in pairs
    )


def _compare_numbers(claim: Number, gold: Number, rounding: Rounding) -> How:
    if _is_close(claim, gold):
        return How.VALUE
    if rounding is Rounding.ROUND and _rounds(claim, gold):
        return How.ROUNDED
    return How.DIFFERENT


def _is_close(claim: Number, gold: Number) -> bool:
    relative = _RELATIVE if claim.has_decimals or gold.has_decimals else _EXACT_RELATIVE
    if _bare_decimals(claim) is not None and _bare_decimals(gold) is not None:
        relative = _BARE_RELATIVE
    if not gold.value:
        return abs(claim.value) <= _ZERO
    noise = _NOISE * max(claim.noise, gold.noise)
    return math.isclose(claim.value, gold.value, rel_tol=relative, abs_tol=noise)


def _bare_decimals(number: Number) -> int | None:
    """Return the decimals of a plain integer or decimal; None for anything else."""
    return number.decimals if number.scale == 1.0 else None


def _rounds(claim: Number, gold: Number) -> bool:
    """Whether one is a correct rounding of the other, as `Rounding.ROUND` allows."""
    given = _bare_decimals(gold)
    if given is not None:  # the claim may be more precise
        return given >= 1 and _rounds_to(claim.value, gold, given)
    if claim.decimals is None or claim.decimals < 1 or claim.significant < _MIN_SIGNIFICANT:
        return False
    return _rounds_to(gold.value, claim, claim.decimals)


def _rounds_to(value: float, rounded: Number, decimals: int) -> bool:
    """Whether a value rounds to a decimal, ties away from zero."""
    value, target = value / rounded.scale, rounded.value / rounded.scale
    distance, half = abs(value - target), 0.5 * 10.0**-decimals
    if math.isclose(distance, half, rel_tol=1e-9, abs_tol=4e-16 * abs(value)):  # a tie
        return abs(target) > abs(value)
    return distance < half
