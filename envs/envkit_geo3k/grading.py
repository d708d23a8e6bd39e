"""Grade a geometry answer against the gold one, in bounded time, from any thread.

`grade` never raises for what a model wrote: an answer that cannot be read scores 0 and says so.
"""

import functools
import math
from enum import StrEnum
from typing import Final, NamedTuple

from envkit.errors import ConfigurationError
from envkit_geo3k.answer_text import Answer, Reading, read_answer, simplify
from envkit_geo3k.expression import UnreadableError


class Rounding(StrEnum):
    """Which decimals stand for a value that is not a decimal."""

    EXACT = "exact"
    """The value itself, to a relative 1e-6."""
    ROUND = "round"
    """Also a correct rounding of an exact gold value (at least one decimal and three significant
    digits), and any value that rounds to a gold decimal."""


class How(StrEnum):
    """Why a grade is what it is."""

    TEXT = "text"
    """Correct: the same text, spacing and wrappers aside."""
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
    """Wrong: the gold answer is no value, and the answer is not the same text."""


class Grade(NamedTuple):
    """The outcome of grading."""

    score: float
    """1.0 for a correct answer, else 0.0."""
    how: How


_RELATIVE: Final = 1e-6
_ABSOLUTE: Final = 1e-9
_BARE_RELATIVE: Final = 1e-12  # two plain decimals: 1000000 is not 1000001
_MIN_SIGNIFICANT: Final = 3


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
        if truth.text and _squeezed(plain) == truth.text:
            return Grade(1.0, How.TEXT)
        if truth.answer is None:
            return Grade(0.0, How.GOLD_UNREADABLE)
        how = _compare(read_answer(plain), truth.answer, rounding)
    except UnreadableError:
        return Grade(0.0, How.UNREADABLE)
    return Grade(0.0 if how is How.DIFFERENT else 1.0, how)


def rounding_of(policy: str) -> Rounding:
    """Return the rounding policy of this name.

    Raises:
        ConfigurationError: There is none.
    """
    try:
        return Rounding(policy)
    except ValueError as error:
        raise ConfigurationError(
            f"rounding must be one of {[str(p) for p in Rounding]}, got {policy!r}"
        ) from error


class _Gold(NamedTuple):
    text: str
    """Without wrappers and spaces; empty when it is too long to be read."""
    answer: Answer | None


@functools.lru_cache(maxsize=4096)
def _gold(gold: str) -> _Gold:
    """Read a gold answer; a training run grades against the same one many times."""
    text = ""
    try:
        plain = simplify(gold)
        text = _squeezed(plain)
        return _Gold(text, read_answer(plain))
    except UnreadableError:
        return _Gold(text, None)


def _squeezed(plain: str) -> str:
    return "".join(plain.split())


def _compare(claimed: Answer, truth: Answer, rounding: Rounding) -> How:
    """Compare every claim with the gold value: "x = 5 = 6" is not an answer of 5."""
    if claimed.is_ratio != truth.is_ratio:
        claimed, truth = _as_quotient(claimed), _as_quotient(truth)
    how = _compare_claims(claimed, truth, rounding)
    if how is How.DIFFERENT and claimed.is_percent != truth.is_percent:
        how = _compare_claims(_as_fraction(claimed), _as_fraction(truth), rounding)
    return how


def _as_fraction(answer: Answer) -> Answer:
    """Return 36% as 0.36; an answer without a percent sign is returned as it is."""
    if not answer.is_percent:
        return answer
    claims = tuple(tuple(_expression(part.value / 100) for part in c) for c in answer.claims)
    return Answer(claims=claims)


def _expression(value: float) -> Reading:
    return Reading(value=value, decimals=None, significant=0)


def _compare_claims(claimed: Answer, truth: Answer, rounding: Rounding) -> How:
    gold = truth.claims[-1]
    outcomes = {
        _compare_parts(claim, gold, rounding, is_ratio=truth.is_ratio) for claim in claimed.claims
    }
    if How.DIFFERENT in outcomes:
        return How.DIFFERENT
    return How.ROUNDED if How.ROUNDED in outcomes else How.VALUE


def _as_quotient(answer: Answer) -> Answer:
    """Return a two-part ratio as its value, so that 2:3 equals 2/3."""
    if not answer.is_ratio:
        return answer
    return Answer(claims=tuple(_quotient(claim) for claim in answer.claims))


def _quotient(claim: tuple[Reading, ...]) -> tuple[Reading, ...]:
    if len(claim) != 2 or claim[1].value == 0:
        return claim
    return (_expression(claim[0].value / claim[1].value),)


def _compare_parts(
    claim: tuple[Reading, ...], gold: tuple[Reading, ...], rounding: Rounding, *, is_ratio: bool
) -> How:
    if len(claim) != len(gold):
        return How.DIFFERENT
    if is_ratio:
        return _compare_ratio(claim, gold)
    outcomes = {_compare_values(a, b, rounding) for a, b in zip(claim, gold, strict=True)}
    if How.DIFFERENT in outcomes:
        return How.DIFFERENT
    return How.ROUNDED if How.ROUNDED in outcomes else How.VALUE


def _compare_ratio(claim: tuple[Reading, ...], gold: tuple[Reading, ...]) -> How:
    """Compare by cross products, so that 4:6 equals 2:3."""
    for part, true_part in zip(claim[1:], gold[1:], strict=True):
        left, right = part.value * gold[0].value, true_part.value * claim[0].value
        if not math.isclose(left, right, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            return How.DIFFERENT
    if claim[0].value == 0 and gold[0].value != 0:
        return How.DIFFERENT
    return How.VALUE


def _compare_values(claim: Reading, gold: Reading, rounding: Rounding) -> How:
    both_bare = claim.decimals is not None and gold.decimals is not None
    relative = _BARE_RELATIVE if both_bare else _RELATIVE
    if math.isclose(claim.value, gold.value, rel_tol=relative, abs_tol=_ABSOLUTE):
        return How.VALUE
    if rounding is Rounding.ROUND and _rounds(claim, gold):
        return How.ROUNDED
    return How.DIFFERENT


def _rounds(claim: Reading, gold: Reading) -> bool:
    """Whether one is a correct rounding of the other, as `Rounding.ROUND` allows."""
    gap = abs(claim.value - gold.value)
    if gold.decimals is not None:  # a decimal gold value: the claim may be more precise
        is_finer = claim.decimals is None or claim.decimals > gold.decimals
        return gold.decimals >= 1 and is_finer and gap <= _half_unit(gold.decimals)
    if claim.decimals is None or claim.decimals < 1 or claim.significant < _MIN_SIGNIFICANT:
        return False
    return gap <= _half_unit(claim.decimals)


def _half_unit(decimals: int) -> float:
    return 0.5 * 10.0 ** -min(decimals, 300) * (1 + 1e-9)
