"""What makes top level tasks span applications: a value to look up, a result to log."""

from collections.abc import Sequence
from typing import Final

from envkit_linux_desktop.tasks import documents, sheets, words
from envkit_linux_desktop.tasks.checks import Check, Text
from envkit_linux_desktop.tasks.packing import text as escaped
from envkit_linux_desktop.tasks.scenario import BROWSER, CALC, WRITER, Draft

_MEDIA: Final = {"editor": "txt", "calc": "xlsx", "writer": "docx", "browser": "html"}
"""Application -> ending of the documents in which it shows a value."""


def page(title: str, body: str, script: str = "") -> str:
    """Return an HTML page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}'
        "</title><style>body{font:16px sans-serif;margin:2em}td,th{padding:4px 14px;"
        "border:1px solid #999}label{display:block;margin:8px 0}</style></head>\n"
        f"<body><h1>{escaped(title)}</h1>\n{body}\n{f'<script>{script}</script>' if script else ''}"
        "</body></html>\n"
    )


def html_table(rows: "list[tuple[str, ...]]") -> str:
    """Return an HTML table; its first row is the head."""
    head = "".join(f"<th>{escaped(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>\n" for row in rows[1:]
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _table(ending: str, what: str, rows: list[tuple[str, str]]) -> str | bytes:
    """Return a document that shows one value per key."""
    if ending == "txt":
        return "".join(f"{key}: {value}\n" for key, value in rows)
    if ending == "xlsx":
        return sheets.xlsx([sheets.sheet("List", [("Place", what.capitalize()), *rows])])
    if ending == "docx":
        return documents.docx(documents.pages(*(f"{key}: {value}" for key, value in rows)))
    return page("List", html_table([("Place", what.capitalize()), *rows]))


_VIEWERS: Final = {"txt": ("mousepad",), "xlsx": CALC, "docx": WRITER, "html": BROWSER}


def told(
    draft: Draft, what: str, value: str, others: Sequence[str], *, is_named: bool = False
) -> str:
    """Return a noun phrase for a value.

    Up to level 3 it is the quoted value, after its noun if `is_named`. At level 4 it names an entry
    of a document that another application shows, among other values.
    """
    if draft.level < 4:
        return f"the {what} {words.quoted(value)}" if is_named else words.quoted(value)
    ending = draft.one([end for app, end in _MEDIA.items() if app != draft.app])
    values = [value, *draft.some([other for other in others if other != value], 5)]
    keys = draft.some(words.CITIES, len(values))
    rows = sorted(zip(keys, values, strict=True))
    path = draft.add(draft.path(ending, "Desktop"), _table(ending, what, rows))
    draft.open(*_VIEWERS[ending], path)
    return f"the {what} listed for {keys[0]} in {path}"


def then_log(draft: Draft) -> None:
    """At level 4, ask for a line in a log once the task is done."""
    if draft.level < 4:
        return
    lines = draft.some(words.LINES, 4)
    path, done = draft.path("txt", "Desktop"), f"Done {words.code(draft.rng)}"
    draft.add(path, "\n".join(lines) + "\n")
    draft.open("mousepad", path)
    draft.expect(Text(path=path, text="\n".join([*lines, done])))
    draft.also(
        f'When you have finished, add "{done}" as the last line of {path} and save it.',
        f'Afterwards, put "{done}" on a line of its own at the end of {path}, and save the file.',
        f'Then record it: the last line of {path} must be "{done}". Save the file.',
    )


def clutter(draft: Draft) -> None:
    """Add files nobody asks for, and from level 3 on windows that show some."""
    notes: list[str] = []
    for _ in range(draft.at(0, 2, 4, 6)):
        notes.append(draft.path("txt", draft.one(("Documents", "Downloads"))))
        draft.add(notes[-1], "\n".join(draft.some(words.LINES, 3)) + "\n")
    windows = (("mousepad", notes[0]), ("pcmanfm", "Downloads"), ("galculator",)) if notes else ()
    for command in draft.rng.sample(windows, draft.at(0, 0, 1, 1)):
        if command not in draft.launch:
            draft.launch.insert(draft.rng.randint(0, len(draft.launch)), command)


def expect(draft: Draft, *checks: Check) -> None:
    """Add the clutter, and the checks of what a task leaves amid it."""
    clutter(draft)
    draft.expect(*checks)
