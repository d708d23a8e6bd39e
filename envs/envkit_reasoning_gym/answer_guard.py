r"""Guard graders of reasoning-gym that evaluate the model's answer.

Nine graders evaluate the model's answer: four by Python's `eval`
(reasoning_gym/algorithmic/string_insertion.py, spiral_matrix.py, binary_matrix.py,
games/n_queens.py), five by sympy's `parse_expr`, which ends in `eval` too
(reasoning_gym/games/countdown.py, puzzle24.py, algebra/simple_integration.py,
intermediate_integration.py, polynomial_multiplication.py). An answer such as
`__import__("os").system("...")` would be run, and `9**9**9**9` would never end. This module lets
only lists of plain values reach the first kind and only short arithmetic the second; one more
grader is slow on long text, and one takes NaN for a distance of 0
(algebra/complex_arithmetic.py). Any other answer scores 0, as it would with the grader, except an
integral whose solution is the unsolved `Integral(...)`.
"""

import ast
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

_MAX_LIST: Final = 1200
"""Maximum characters of a list answer, which take at most 5 ms to read."""
_MAX_FORMULA: Final = 500
"""Maximum characters of a formula; `_MAX_TOKENS` limits its tokens."""
_MAX_TOKENS: Final = 150
_MAX_DEPTH: Final = 20
_MAX_EXPONENT: Final = 20
_PLAIN_NODES: Final = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Name, ast.Load, ast.UnaryOp, ast.USub,
    ast.UAdd, ast.BinOp, ast.Add, ast.Sub,
)  # fmt: skip
"""Allowed syntax: no calls, attributes, subscripts, powers, products, comprehensions or f-strings.

A bare name covers answers such as ABCDA; a difference covers "3 -1 2".
"""
_TOKEN: Final = re.compile(
    r"\s*(?:((?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?![\w.]))|([A-Za-z]{1,5})|(\*\*|[-+*/^(),]))",
    re.ASCII,
)
_FUNCTIONS: Final = frozenset(
    (
        *("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh", "asin", "acos", "atan"),
        *("asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "Abs", "pi"),
    )
)
_POWERS: Final = ("**", "^")


def is_safe(dataset: str, answer: str) -> bool:
    """Return whether the dataset's grader may see the answer."""
    rule = _RULES.get(dataset)
    return rule is None or rule(answer)


def is_plain(answer: str) -> bool:
    """Return whether evaluating an answer has no effect."""
    if len(answer) > _MAX_LIST:
        return False
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except SyntaxError:
        return True  # the grader's own evaluation stops there too
    except (ValueError, MemoryError, RecursionError):
        return False
    return all(isinstance(node, _PLAIN_NODES) for node in ast.walk(tree))


def is_short(answer: str) -> bool:
    """Return whether an answer has the length of a formula."""
    return len(answer) <= _MAX_FORMULA


def is_number(answer: str) -> bool:
    """Return whether a short answer has no letters but a complex number's, so is never NaN."""
    return is_short(answer) and not any(
        letter.isalpha() and letter not in "ijeEJI" for letter in answer
    )


def is_arithmetic(answer: str) -> bool:
    """Return whether an answer is a sum of products of numbers, without powers."""
    tokens = _tokens(answer)
    return tokens is not None and not any(
        token in (*_POWERS, ",") or token[0].isalpha() for token in tokens
    )


def is_formula(answer: str) -> bool:
    """Return whether an answer is a short formula of variables, functions and small powers.

    An exponent is a number up to 20, a variable, or a group without a power in it.
    """
    tokens = _tokens(answer)
    if tokens is None:
        return False
    names = (token for token in tokens if token[0].isalpha())
    if not all(len(name) == 1 or name in _FUNCTIONS for name in names):
        return False
    return all(_has_small_exponent(tokens, at) for at, t in enumerate(tokens) if t in _POWERS)


def _tokens(answer: str) -> list[str] | None:
    """Return the tokens; None if there are unknown or too many tokens."""
    text, at, depth = answer.strip(), 0, 0
    if not is_short(text):
        return None
    tokens: list[str] = []
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        tokens.append(found.group().strip())
        depth += (tokens[-1] == "(") - (tokens[-1] == ")")
        at = found.end()
        if len(tokens) > _MAX_TOKENS or not 0 <= depth <= _MAX_DEPTH:
            return None
    return tokens


def _has_small_exponent(tokens: list[str], at: int) -> bool:
    """Return whether the power at `at` is cheap: neither its base nor its exponent has a power."""
    if _holds_power(_group(tokens[:at][::-1], ")", "(")):
        return False
    following = [token for token in tokens[at + 1 :] if token not in "+-"]
    exponent = _group(following, "(", ")")
    if _holds_power(following[: len(exponent) + 1]):  # a ** b ** c is a ** (b ** c)
        return False
    return all(float(t) <= _MAX_EXPONENT for t in exponent if t[0].isdigit() or t[0] == ".")


def _group(tokens: list[str], opening: str, closing: str) -> list[str]:
    """Return the first token, or the group in parentheses that begins with it."""
    depth = 0
    for end, token in enumerate(tokens):
        depth += (token == opening) - (token == closing)
        if depth <= 0:
            return tokens[: end + 1]
    return tokens


def _holds_power(tokens: list[str]) -> bool:
    return any(token in _POWERS for token in tokens)


_RULES: Final[Mapping[str, Callable[[str], bool]]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"), is_plain
        ),
        **dict.fromkeys(("countdown", "puzzle24"), is_arithmetic),
        **dict.fromkeys(
            ("simple_integration", "intermediate_integration", "polynomial_multiplication"),
            is_formula,
        ),
        "propositional_logic": is_short,
        "complex_arithmetic": is_number,
    }
)
