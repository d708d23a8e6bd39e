r"""Read the JSON that models write, accepting mistakes whose intent is clear.

Accepted: a trailing comma, single quotes, Python's True/False/None, raw line breaks in strings, and
single LaTeX backslashes. `"\frac{5}{2}"` is valid JSON for a form feed and `rac{5}{2}`, so a
correct answer would be graded as wrong; `"\sqrt{2}"` is not valid JSON. Both are read as the
intended LaTeX,
while `\n`, `\t`, `\"` and `\u00e9` keep their JSON meaning.

Rejected with a message: NaN and infinities, duplicate keys, nesting beyond `MAX_DEPTH`, and numbers
out of float range. Lone surrogates become U+FFFD because no tokenizer or file accepts them. Time is
linear in the length of the text. The only exception raised is `MalformedJson`.
"""

import math
import re
from typing import Any, Final

MAX_DEPTH: Final = 64
"""Maximum nesting depth of lists and objects."""

# LaTeX commands that begin with a JSON escape letter. \n and \t are common in real arguments.
# Commands that could also be a line break or a tab before a word (\nu, \ne, \not, \to) are
# therefore excluded.
_COMMANDS: Final = (
    "beta|begin|bar|bigg?|binom|boldsymbol|bot|boxed|bullet|"
    "fbox|flat|forall|frac|"
    "nabla|neq|"
    "rangle|rbrace|rceil|rfloor|rho|right|rightarrow|rm|"
    "tan|tau|text(?:bf|it|rm|normal)?|tfrac|theta|tilde|times|triangle"
)
_ESCAPE: Final = re.compile(
    rf"\\(?:(?P<latex>(?:{_COMMANDS})(?![A-Za-z]))"
    r"|u(?P<hex>[0-9a-fA-F]{4})"
    r"""|(?P<plain>["'\\/bfnrt\n]))"""
)
_PLAIN: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "\n": "\n"}
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = {
    '"': re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL),
}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?(?![\w.])", re.ASCII)
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WORDS: Final[dict[str, bool | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_EXACT: Final = 2**53
_MAX_DIGITS: Final = 400  # no tool takes a longer integer, and converting it is slow


class MalformedJson(ValueError):
    """The text is not valid JSON, even with the accepted deviations."""

    def __init__(self, what: str, position: int, *, is_open_string: bool = False) -> None:
        super().__init__(f"{what} at character {position}")
        self.position = position
        self.is_open_string = is_open_string
        """Whether the text ended inside a string, so that more text might fix it."""


def decode(text: str) -> Any:  # noqa: ANN401  # any JSON
    """Parse a text that contains exactly one JSON value.

    Raises:
        MalformedJson: It does not.
    """
    value, end = decode_prefix(text)
    end = skip_space(text, end)
    if end != len(text):
        raise MalformedJson(f"unexpected {text[end : end + 12]!r} after the value", end)
    return value


def decode_prefix(text: str, start: int = 0, limit: int | None = None) -> tuple[Any, int]:
    """Parse the JSON value that begins at `start`; return it and the position after it.

    Args:
        text: The text around the value.
        start: Where the value, or whitespace before it, begins.
        limit: The value must end before this position; None is the text's end.

    Raises:
        MalformedJson: No value begins there.
    """
    return _Reader(text, start, len(text) if limit is None else limit).read()


def skip_space(text: str, start: int) -> int:
    """Return the position of the first non-whitespace character at or after `start`."""
    found = _SPACE.match(text, start)
    return start if found is None else found.end()


def scrub(text: str) -> str:
    """Return the text with lone surrogates replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


class _Reader:
    """A recursive-descent reader over one text."""

    def __init__(self, text: str, start: int, limit: int) -> None:
        self._text = text
        self._at = start
        self._limit = limit
        self._depth = 0

    def read(self) -> tuple[Any, int]:
        return self._value(), self._at

    def _value(self) -> Any:  # noqa: ANN401  # any JSON
        match self._peek():
            case "{":
                return self._nested(self._object)
            case "[":
                return self._nested(self._list)
            case '"' | "'":
                return self._string()
            case _:
                return self._scalar()

    def _nested(self, read: Any) -> Any:  # noqa: ANN401  # one of the two methods below
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedJson(f"nested more than {MAX_DEPTH} deep", self._at)
        self._at += 1
        value = read()
        self._depth -= 1
        return value

    def _object(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not self._take("}"):
            if self._peek() not in ('"', "'"):
                raise self._unexpected("a quoted key or '}'")
            start = self._at
            key = self._string()
            if key in result:
                raise MalformedJson(f"duplicate key {key[:40]!r}", start)
            if not self._take(":"):
                raise self._unexpected("':'")
            result[key] = self._value()
            if not self._take(",") and self._peek() != "}":
                raise self._unexpected("',' or '}'")
        return result

    def _list(self) -> list[Any]:
        result: list[Any] = []
        while not self._take("]"):
            result.append(self._value())
            if not self._take(",") and self._peek() != "]":
                raise self._unexpected("',' or ']'")
        return result

    def _string(self) -> str:
        found = _STRING[self._text[self._at]].match(self._text, self._at, self._limit)
        if found is None:
            raise MalformedJson("unterminated string", self._at, is_open_string=True)
        self._at = found.end()
        return unescape(found.group(1))

    def _scalar(self) -> Any:  # noqa: ANN401  # number, boolean or None
        if found := _NUMBER.match(self._text, self._at, self._limit):
            value = self._number(found)
        elif (found := _WORD.match(self._text, self._at, self._limit)) and found.group() in _WORDS:
            value = _WORDS[found.group()]
        else:
            raise self._unexpected("a JSON value")
        self._at = found.end()
        return value

    def _number(self, found: re.Match[str]) -> int | float:
        digits = found.group()
        if len(digits) > _MAX_DIGITS:
            raise MalformedJson(f"a number of {len(digits)} digits", self._at)
        whole, _, fraction = digits.partition(".")
        if found.group(2) is None and not fraction.strip("0"):
            value = int(whole)
            if not fraction or abs(value) > _EXACT:  # a float would be another number
                return value
        value = float(digits)
        if not math.isfinite(value):
            raise MalformedJson(f"number out of range: {digits[:40]}", self._at)
        return value

    def _peek(self) -> str:
        self._at = skip_space(self._text, self._at)
        return self._text[self._at : min(self._at + 1, self._limit)]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _unexpected(self, expected: str) -> MalformedJson:
        seen = self._text[self._at : min(self._at + 12, self._limit)]
        got = f"got {seen!r}" if seen else "the text ends"
        return MalformedJson(f"expected {expected}, {got}", self._at)


def unescape(body: str) -> str:
    r"""Decode the body of a JSON string, keeping single LaTeX backslashes.

    >>> unescape(r"\frac{5}{2}\n\u00e9")
    '\\frac{5}{2}\né'
    """
    if "\\" not in body:
        return scrub(body)
    text = _ESCAPE.sub(_unescape_one, body)
    if _SURROGATE.search(text):  # two escapes may have formed a surrogate pair
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _unescape_one(found: re.Match[str]) -> str:
    if found["latex"]:
        return found.group()
    if found["hex"]:
        return chr(int(found["hex"], 16))
    return _PLAIN.get(found["plain"], found["plain"])
