"""Convert text drawn for a terminal to text that a model can read.

Gymnasium's toy environments use colour for what their letters do not show: where the player is, who
waits for the taxi. The colours become a list of marks below the image.
"""

import re
from typing import Final, NamedTuple

_ESCAPE: Final = re.compile(
    r"\x1b(?:\[(?P<parameters>[0-9;:]*)(?P<kind>[@-~])"
    r"|\[[0-?]*[ -/]*[@-~]?"
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|.)?",
    re.DOTALL,
)
"""ECMA-48 control sequences; "m" selects a style, all others are dropped."""
_COLOURS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_CAPTION: Final = re.compile(r"\s*\([A-Z][a-z]+\)\s*")
"""FrozenLake writes the last action above its drawing, but nothing before the first one."""
_MAX_MARKS: Final = 200


class Mark(NamedTuple):
    """A run of characters with one style."""

    row: int
    column: int
    text: str
    style: str


class _Style(NamedTuple):
    foreground: str = ""
    background: str = ""
    is_bold: bool = False
    is_inverse: bool = False

    def describe(self) -> str:
        words = ["bold"] * self.is_bold + ([self.foreground] if self.foreground else [])
        words += [f"on {self.background}"] if self.background else []
        return " ".join(words + ["inverse"] * self.is_inverse)


def read_ansi(drawn: str) -> tuple[str, list[Mark]]:
    """Return the text without control sequences, and its styled runs.

    Rows and columns count from 1 in the returned text; empty lines around it are dropped. An action
    above the drawing goes below it, as in Taxi, so a place has the same row in every turn.
    """
    lines: list[str] = [""]
    marks: list[Mark] = []
    style, place = _Style(), 0
    for found in _ESCAPE.finditer(drawn):
        _write(lines, marks, drawn[place : found.start()], style)
        place = found.end()
        if found["kind"] == "m":
            style = _select(style, found["parameters"])
    _write(lines, marks, drawn[place:], style)
    return _trim(lines, marks)


def show_ansi(drawn: str) -> str:
    """Return the text for the model: the drawing, then its marks."""
    text, marks = read_ansi(drawn)
    if not marks:
        return text
    shown = [
        f"- row {mark.row}, column {mark.column}: {mark.text!r}, {mark.style}"
        for mark in marks[:_MAX_MARKS]
    ]
    if len(marks) > _MAX_MARKS:
        shown.append(f"- and {len(marks) - _MAX_MARKS} more")
    return "\n".join([text, "", "Coloured (rows and columns count from 1):", *shown])


def _write(lines: list[str], marks: list[Mark], text: str, style: _Style) -> None:
    described = style.describe()
    for number, piece in enumerate(text.replace("\r\n", "\n").split("\n")):
        if number:
            lines.append("")
        if piece and described:
            marks.append(Mark(len(lines), len(lines[-1]) + 1, piece, described))
        lines[-1] += piece


def _select(style: _Style, parameters: str) -> _Style:
    """Apply SGR parameters to a style; extended colours are skipped."""
    codes = [int(code[:9]) if code else 0 for code in re.split("[;:]", parameters)]
    skip = 0
    for place, code in enumerate(codes):
        if skip:
            skip -= 1
        elif code in (38, 48):
            kind = codes[place + 1] if place + 1 < len(codes) else 0
            skip = 4 if kind == 2 else 2
            word = "coloured"
            style = style._replace(**{"foreground" if code == 38 else "background": word})
        else:
            style = _apply(style, code)
    return style


def _apply(style: _Style, code: int) -> _Style:
    match code:
        case 0:
            return _Style()
        case 1 | 22:
            return style._replace(is_bold=code == 1)
        case 7 | 27:
            return style._replace(is_inverse=code == 7)
        case _ if 30 <= code % 60 <= 37 and code < 98:
            return style._replace(foreground=_COLOURS[code % 60 - 30])
        case _ if 40 <= code % 60 <= 47 and code < 108:
            return style._replace(background=_COLOURS[code % 60 - 40])
        case 39:
            return style._replace(foreground="")
        case 49:
            return style._replace(background="")
        case _:
            return style


def _trim(lines: list[str], marks: list[Mark]) -> tuple[str, list[Mark]]:
    marked = {mark.row - 1 for mark in marks}
    kept = [row for row, line in enumerate(lines) if line.strip() or row in marked]
    if not kept:
        return "", []
    first, last = kept[0], kept[-1]
    caption: list[str] = []
    if first < last and first not in marked and _CAPTION.fullmatch(lines[first]):
        caption, first = [lines[first].rstrip()], kept[1]
    drawn = [
        line.rstrip() if row + first not in marked else line
        for row, line in enumerate(lines[first : last + 1])
    ]
    return "\n".join(drawn + caption), [mark._replace(row=mark.row - first) for mark in marks]
