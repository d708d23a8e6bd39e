r"""Hooks for `envkit certify geo3k-v0`: guesses from the text and a second grader.

The second grader shares no code with `grading`: it rewrites LaTeX to a Python expression, reads it
by `ast`, and compares numbers. It supports only the forms of generated answers, so it grades only
those.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from envkit.certification_hooks import CertificationHooks
from envkit.images import Image
from envkit.tasks import Task
from envkit.turns import Step
from envkit_geo3k.drawing import draw
from envkit_geo3k.figure import Figure
from envkit_geo3k.grading import grade

_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_ROOT: Final = re.compile(r"\\sqrt\s*\{([^{}]*)\}")
_FRACTION: Final = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SIDE_BY_SIDE: Final = re.compile(r"(?<=[\d)])\s*(?=\()")
_DECIMAL: Final = re.compile(r"-?\d*\.(\d+)")
_BOX: Final = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)
_OPERATIONS: Final[Mapping[type, Callable[[float, float], float]]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.Pow: math.pow,
}


def hooks() -> CertificationHooks:
    """Return ways to guess an answer without the figure, and to grade it twice."""
    return CertificationHooks(
        choices=numbers,
        answer=lambda answer: f"\\boxed{{{answer}}}",
        ask=_ask,
        confirms_guess=_confirms_guess,
        closed_book=lambda task: numbers(task)[-1],
        grade=lambda task, answer: grade(answer, task["answer"]).score,
        second_grade=lambda task, answer: second_grade(answer, task["answer"]),
        answers=answers,
        shows=_shows,
    )


def _shows(task: Task, images: Sequence[Image]) -> bool:
    """Return whether the image equals the task's figure, redrawn."""
    if task.get("figure") is None:
        return True  # a dataset's image, which cannot be redrawn
    wanted = draw(Figure.from_json(task["figure"])).array()
    return len(images) == 1 and np.array_equal(images[0].array(), wanted)


def numbers(task: Task) -> list[str]:
    """Return the numbers in the question's text, or a right angle if it has none."""
    return list(dict.fromkeys(_NUMBER.findall(task["question"]))) or ["90"]


def answers(task: Task) -> list[str]:
    """Return the right answer in other forms, near misses and garbage."""
    gold: str = task["answer"]
    found = [gold, f"${gold}$", f"\\boxed{{{gold}}}", f" {gold} ", f"0 + {gold}", "", "none", "(1"]
    values = _values(gold)
    if values is None or len(values) != 1:
        return [*found, "(1, 2, 3)", "(0.123, 9)"]
    value = values[0]
    near = [f"{value + 1:.6f}", f"{value * 1.01:.6f}", f"{-value:.6f}", f"{value:.10f}"]
    return [*found, *near, f"{value:.1f}", f"{value:.2f}", f"{value:.3f}", f"({gold}) * 2"]


def second_grade(answer: str, gold: str) -> float:
    """Return 1.0 if the numbers of both agree under `Rounding.ROUND`."""
    claimed, truth = _values(answer), _values(gold)
    if claimed is None or truth is None or len(claimed) != len(truth):
        return 0.0
    agree = all(
        _agrees(value, text, right, gold)
        for value, text, right in zip(claimed, _parts(answer), truth, strict=True)
    )
    return float(agree)


def _agrees(value: float, text: str, right: float, gold: str) -> bool:
    if abs(value - right) <= 1e-6 * max(abs(value), abs(right), 1e-3):
        return True
    gap = abs(value - right)
    written, wanted = _DECIMAL.fullmatch(text), _DECIMAL.fullmatch(gold.strip())
    if wanted is not None:  # a rounded gold value: anything more precise that rounds to it
        is_finer = written is None or len(written.group(1)) > len(wanted.group(1))
        return is_finer and gap <= 0.5000000001 * 10.0 ** -len(wanted.group(1))
    if written is None or len(text.replace(".", "").lstrip("-0")) < 3:
        return False
    return gap <= 0.5000000001 * 10.0 ** -len(written.group(1))


def _parts(text: str) -> list[str]:
    """Return the coordinates of a point, or the one value."""
    boxed = _BOX.fullmatch(text.strip())
    plain = (boxed.group(1) if boxed else text).replace("$", "").strip()
    is_point = plain.startswith("(") and plain.endswith(")") and "," in plain
    return [part.strip() for part in plain[1:-1].split(",")] if is_point else [plain]


def _values(text: str) -> list[float] | None:
    """Return the numbers in a text; None if it cannot be read."""
    try:
        return [_number(part) for part in _parts(text)]
    except (SyntaxError, ValueError, ArithmeticError, TypeError, KeyError):
        return None


def _number(text: str) -> float:
    rest = text.replace("\\pi", f"({math.pi!r})")
    for _ in range(6):
        rest = _FRACTION.sub(r"((\1)/(\2))", _ROOT.sub(r"((\1)**0.5)", rest))
    return _computed(ast.parse(_SIDE_BY_SIDE.sub("*", rest).strip(), mode="eval").body)


def _computed(node: ast.expr) -> float:
    """Return the value of an expression of numbers.

    Raises:
        ValueError: It contains something else.
    """
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_computed(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATIONS[type(op)](_computed(left), _computed(right))
        case _:
            raise ValueError("no number")


def _ask(answer: str) -> str:
    call = {"name": "calc_score", "arguments": {"answer": answer}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def _confirms_guess(step: Step) -> bool:
    return step.info.get("score") == 1.0
