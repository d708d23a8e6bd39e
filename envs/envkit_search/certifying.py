"""Hooks for `envkit certify search-v0`: guesses without a search and a second grader."""

import re
import unicodedata
from collections import Counter
from fractions import Fraction
from typing import Final

from envkit.certification_hooks import CertificationHooks
from envkit.tasks import Task, TaskSource
from envkit_search.grading import exact_match
from envkit_search.protocol import MAX_ANSWER_CHARACTERS

_NAME: Final = re.compile(r"(?:[A-Z][\w'-]*(?: (?=[A-Z]))?)+|\d[\d,.]*\d|\d")
_LESSONS: Final = 1500
"""Questions used to learn the most frequent answer of each kind."""
_PART: Final = re.compile(
    r"(?<!\w)-?\.?\d[\d.,:/-]*(?<!\W)|\d[\d.,:/-]*(?<!\W)|[^\W\d_]+[-+#]*(?!\w)|\w|[^\w\s]"
)
"""A number with its sign, a word with the signs at its end, or another character."""
_IGNORED: Final = frozenset("!\"'(),-.:;?[\\]`{}")
_PLAIN: Final = str.maketrans("\u2018\u2019\u201c\u201d\u2212\u2013", "''\"\"--")


def hooks(source: TaskSource) -> CertificationHooks:
    """Return ways to answer without a search, and two graders.

    Args:
        source: The environment's questions; the last ones determine the most frequent answers.
    """
    prior = _prior(source)
    return CertificationHooks(
        choices=lambda task: _NAME.findall(task["question"]) or ["yes"],
        answer=lambda answer: f"<answer>{answer}</answer>",
        closed_book=lambda task: _most_frequent(prior, task),
        grade=lambda task, answer: float(exact_match(answer, task["answers"])),
        second_grade=lambda task, answer: float(
            any(second_match(answer, accepted) for accepted in task["answers"])
        ),
        answers=_answers,
    )


def second_match(answer: str, accepted: str) -> bool:
    """Return whether an answer equals an accepted one, independently of `grading`."""
    if len(answer) > MAX_ANSWER_CHARACTERS:
        return False
    left, right = _fraction(answer), _fraction(accepted)
    if left is not None and right is not None:
        return left == right
    gold = _parts(accepted)
    if not gold:
        return answer.strip().casefold() == accepted.strip().casefold()
    return _parts(answer) == gold


def _prior(source: TaskSource) -> dict[str, Counter[str]]:
    """Return how often each answer is right, by kind of question."""
    size = source.size
    first = 10**6 if size is None else max(0, size - _LESSONS)
    found: dict[str, Counter[str]] = {}
    for index in range(first, first + _LESSONS if size is None else size):
        task = source.task(index)
        found.setdefault(task.get("kind", ""), Counter())[task["answers"][0]] += 1
    return found


def _most_frequent(prior: dict[str, Counter[str]], task: Task) -> str:
    """Return the answer that is right most often for questions of this kind."""
    counts = prior.get(task.get("kind", ""))
    return counts.most_common(1)[0][0] if counts else "nobody knows"


def _answers(task: Task) -> list[str]:
    """Return right answers in other forms, near misses and garbage."""
    found: list[str] = []
    for gold in task["answers"]:
        found += [
            gold,
            gold.upper(),
            f"  the {gold}. ",
            f'"{gold}"',
            f"{gold} {gold}",
            f"not {gold}",
        ]
        found += [gold[:-1], f"{gold}s", f"-{gold}", f"{gold}.0", gold.replace(" ", "  ")]
        found += [unicodedata.normalize("NFD", gold), gold.replace(",", ""), f"an {gold}!"]
    return [*found, "", " ", "the", "0", "-0", "1e3", "x" * (MAX_ANSWER_CHARACTERS + 1)]


def _parts(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).translate(_PLAIN).casefold()
    parts = [part for part in _PART.findall(plain) if part not in _IGNORED]
    last = len(parts) - 1
    kept = [
        part
        for place, part in enumerate(parts)
        if place == last or not (part in ("an", "the") or (part == "a" and not place))
    ]
    return "".join(kept).removeprefix("+")


def _fraction(text: str) -> Fraction | None:
    """Parse a number as people write it: no leading zeros, thousands separators."""
    body = text.strip()
    if not body or len(body) > 64:
        return None
    sign = -1 if body[0] in "-\u2212" else 1
    body = body[1:] if body[0] in "+-\u2212" else body
    whole, point, decimals = body.partition(".")
    groups = whole.split(",")
    digits = "".join(groups)
    is_grouped = len(groups) == 1 or (
        1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])
    )
    is_number = digits.isascii() and digits.isdigit() and (not point or _are_digits(decimals))
    if not is_number or not is_grouped or (digits[0] == "0" and (len(digits) > 1)):
        return None
    return sign * Fraction(f"{digits}.{decimals or 0}")


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
