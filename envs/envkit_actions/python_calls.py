"""Read calls with literal arguments from Python source with `ast`; nothing is executed.

UI-TARS, BrowserGym and OSWorld write actions as calls. The reader accepts calls of plain or dotted
names whose arguments are strings, numbers, booleans, None, and lists or tuples of those.

Parse time and stack depth grow with tokens and nesting. A scan that knows strings and comments
therefore limits the source before parsing: `MAX_TOKENS`, `MAX_NESTING`, no f-strings.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envkit_actions.malformed import MalformedActionError, quoted

MAX_TOKENS: Final = 1_500
"""Maximum tokens; a string is one."""
MAX_NESTING: Final = 8
"""Maximum nesting of brackets."""
MAX_WORD: Final = 200
"""Longest name or number, in characters."""
MAX_ESCAPES: Final = 1_500
"""Maximum backslashes."""

_STRING: Final = (
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^'\\]++|\\.|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]++|\\.)*+"?'
    r"|'(?:[^'\\\n]++|\\.)*+'?"
)
_TOKEN: Final = re.compile(
    r"\s*+(?:(?P<format>\b[rR]?[fF][rR]?(?=[\"']))|(?P<raw>\b[bB]?[rR][bB]?(?=[\"']))"
    rf"|(?P<string>{_STRING})|(?P<comment>\#[^\n]*+)"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<word>\w++)|[^\w\s])",
    re.DOTALL,
)
_NEXT_CALL: Final = re.compile(r"['\"][ \t]*\)\s*\n\s*\w+\(")
_ESCAPE: Final = re.compile(r"\\([nt'\"\\])")
_ESCAPED: Final = {"n": "\n", "t": "\t"}
_BACKSLASH: Final = re.compile(r"\\([\r\n\\'\"abfnrtvxuUN0-7])?")

Value = Any
"""A literal: str, int, float, bool, None, or a list of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCall:
    """One call statement."""

    name: str
    """Dotted, such as "pyautogui.click"."""
    arguments: tuple[Value, ...]
    keywords: dict[str, Value]

    def bind(self, parameters: Sequence[str]) -> dict[str, Value]:
        """Return the arguments by name.

        Args:
            parameters: The function's parameters, in order.

        Raises:
            MalformedActionError: An argument is unknown, repeated or one too many.
        """
        if len(self.arguments) > len(parameters):
            raise MalformedActionError(
                f"{self.name} takes at most {len(parameters)} arguments, got {len(self.arguments)}"
            )
        bound = dict(zip(parameters, self.arguments, strict=False))
        for key, value in self.keywords.items():
            if key not in parameters or key in bound:
                what = "is given twice" if key in bound else "is unknown"
                raise MalformedActionError(
                    f"{self.name}: argument {quoted(key)} {what}; it takes {', '.join(parameters)}"
                )
            bound[key] = value
        return bound


def read_statements(source: str) -> list[ast.stmt]:
    """Return the statements of a source.

    Raises:
        MalformedActionError: It is not Python, or exceeds the limits.
    """
    has_raw_strings = _check_bounds(source)
    if not has_raw_strings:  # "C:\dir" is legal, but Python warns of it
        source = _BACKSLASH.sub(lambda found: found[0] if found[1] else r"\\", source)
    try:
        return ast.parse(source).body
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise MalformedActionError(
            f"the actions are not Python calls: {error.msg}{where}"
        ) from None
    except (ValueError, MemoryError, RecursionError):
        raise MalformedActionError("the actions are not Python calls") from None


def read_calls(source: str, loose: re.Pattern[str]) -> Iterator[PythonCall]:
    """Yield the calls of a source, which may be one call whose text has unescaped quotes.

    Args:
        source: Python calls.
        loose: Matches the whole of such a call, with the groups `head`, up to the text's =, and
            `text`.

    Raises:
        MalformedActionError: While iterating, at the first part that is not a call.
    """
    try:
        statements = read_statements(source)
    except MalformedActionError:
        found = loose.fullmatch(source)
        if found is None or _NEXT_CALL.search(found["text"]) or source.count("\\") > MAX_ESCAPES:
            raise
        text = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), found["text"])
        statements = read_statements(f"{found['head']}={text!r})")
    yield from calls_in(statements)


def calls_in(statements: Sequence[ast.stmt]) -> Iterator[PythonCall]:
    """Yield the call of each statement, skipping imports and strings.

    Raises:
        MalformedActionError: While iterating, at the first statement of another kind.
    """
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass):
            continue
        if not isinstance(statement, ast.Expr):
            kind = type(statement).__name__.lower()
            raise MalformedActionError(f"only calls are read, got a statement of kind {kind}")
        if isinstance(statement.value, ast.Constant):
            continue  # a docstring, or a leading string that some agents write
        yield _call(statement.value)


def _call(node: ast.expr) -> PythonCall:
    if not isinstance(node, ast.Call):
        raise MalformedActionError(f"only calls are read, got {_shown(node)}")
    name = _dotted(node.func)
    keywords: dict[str, Value] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise MalformedActionError(f"{name}: write the arguments out, without **")
        keywords[keyword.arg] = _literal(keyword.value, name)
    arguments = tuple(_literal(argument, name) for argument in node.args)
    return PythonCall(name=name, arguments=arguments, keywords=keywords)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    raise MalformedActionError(f"only plain functions can be called, got {_shown(node)}")


def _literal(node: ast.expr, name: str) -> Value:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element, name) for element in elements]
        case _:
            raise MalformedActionError(
                f"{name}: arguments must be plain strings and numbers, got {_shown(node)}"
            )


def _shown(node: ast.expr) -> str:
    """Return a short description of an expression; unparsing a hostile one takes too long."""
    if isinstance(node, ast.Name):
        return f"the name {quoted(node.id)}"
    return f"an expression of kind {type(node).__name__.lower()}"


def _check_bounds(source: str) -> bool:
    """Return whether there are raw strings.

    Raises:
        MalformedActionError: The source exceeds the limits.
    """
    if source.count("\\") > MAX_ESCAPES:
        raise MalformedActionError(f"the actions have more than {MAX_ESCAPES} backslashes")
    depth, has_raw_strings = 0, False
    for count, found in enumerate(_TOKEN.finditer(source)):
        kind = found.lastgroup
        if kind == "format":
            raise MalformedActionError("f-strings are not read: write the text out")
        depth += (kind == "open") - (kind == "close")
        is_long = kind == "word" and found.end("word") - found.start("word") > MAX_WORD
        if count >= MAX_TOKENS or depth > MAX_NESTING or is_long:
            raise MalformedActionError("the actions are too long or nested too deep")
        has_raw_strings = has_raw_strings or kind == "raw"
    return has_raw_strings
