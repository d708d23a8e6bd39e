"""Multiple-choice questions: reading, showing and grading them."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Final, cast

from envkit_geo3k.answer_text import MAX_LENGTH
from envkit_geo3k.grading import Grade, How, grade

_LETTERED: Final = re.compile(r"\(?([A-Za-z])(?:[).:](?:\s.*)?|)", re.DOTALL)
"""B, (B), B., B: and B), followed by the choice's text."""
_WRAPPED: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}")
_MARKS: Final = "$*` \t\n"


def read_choices(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:  # noqa: ANN401  # any JSON
    """Return the choices of a row and the labels that its answer may use for them.

    Args:
        value: A list, a list written as a string, or `{"text": [...], "label": [...]}`.

    Raises:
        ValueError: It is something else, or does not hold 2 to 26 choices.
    """
    labels: object = None
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, Mapping):
        stated = cast("Mapping[str, Any]", value)
        value, labels = stated.get("text"), stated.get("label")
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    if not all(isinstance(one, str | int | float) for one in listed):
        listed = []
    choices = tuple(str(one).strip() for one in listed)
    if not 2 <= len(choices) <= len(ascii_uppercase) or not all(choices):
        raise ValueError("the choices must be a list of 2 to 26 texts")
    if len(set(choices)) < len(choices):
        raise ValueError("two choices are the same")
    letters = tuple(ascii_uppercase[: len(choices)])
    if labels is None:
        return choices, letters
    named = tuple(str(one) for one in cast("list[Any]", labels)) if isinstance(labels, list) else ()
    if len(set(named)) != len(choices):
        raise ValueError("the choices must have as many different labels as texts")
    return choices, named


def letter_of(answer: Any, choices: Sequence[str], labels: Sequence[str]) -> str:  # noqa: ANN401
    """Return the letter of the right choice.

    Args:
        answer: As in the row. A text is a label or a choice's own text. An integer is a zero-based
            index, also where the choices are numbers. Where the labels are numbers, it must be an
            index and a label of the same choice.
        choices: As `read_choices` returns them.
        labels: As `read_choices` returns them.

    Raises:
        ValueError: It names no choice, or its label and text name different ones.
    """
    if isinstance(answer, bool) or not isinstance(answer, int | str):
        raise ValueError("the answer names none of the choices")
    if isinstance(answer, int):
        meant = {answer} & {*range(len(choices))}
        if meant and str(answer) in labels:  # it may be a label written as a number
            meant.add(labels.index(str(answer)))
    else:
        text = answer.strip()
        bare = text.strip("().:").strip()
        meant = {n for n, label in enumerate(labels) if bare.upper() == label.upper()}
        meant |= {n for n, choice in enumerate(choices) if text == choice}
    if len(meant) != 1:
        what = "more than one" if meant else "none"
        raise ValueError(f"the answer names {what} of the choices")
    return ascii_uppercase[meant.pop()]


def with_choices(question: str, choices: Sequence[str]) -> str:
    """Append lettered choices to a question."""
    listed = "\n".join(
        f"{letter}. {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False)
    )
    return f"{question}\n{listed}\nAnswer with the letter."


def grade_choice(answer: str | None, gold: str, choices: Sequence[str], policy: str) -> Grade:
    """Grade a multiple-choice answer: its letter, or the choice itself.

    Args:
        answer: None scores 0.
        gold: The right letter.
        choices: In the order of their letters.
        policy: A `Rounding` value, for choices that are numbers.
    """
    if answer is None or not answer.strip():
        return Grade(0.0, How.NO_ANSWER)
    text = _WRAPPED.sub(r"\1", answer[:MAX_LENGTH]).strip(_MARKS)
    lettered = _LETTERED.fullmatch(text)
    letter = "" if lettered is None else lettered.group(1).upper()
    if letter and letter in ascii_uppercase[: len(choices)]:
        named = [letter]
    elif text in choices:
        named = [ascii_uppercase[list(choices).index(text)]]
    else:
        named = [
            ascii_uppercase[n]
            for n, choice in enumerate(choices)
            if grade(answer, choice, policy).score
        ]
    if len(named) != 1:  # several matches: it also reads as a wrong choice
        return Grade(0.0, How.DIFFERENT if named else How.UNREADABLE)
    return Grade(1.0, How.TEXT) if named == [gold] else Grade(0.0, How.DIFFERENT)


def _parsed(text: str) -> Any:  # noqa: ANN401
    """Parse a list written as JSON or Python; None if it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text) if len(text) <= 10 * MAX_LENGTH else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
