"""The part of the oracle that edits workbooks with Calc's keys and documents with Writer's."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Final

from envkit_linux_desktop.tasks import moves, reader
from envkit_linux_desktop.tasks.documents import Document, Pages, Paragraph
from envkit_linux_desktop.tasks.moves import Moves, View, key, press, text, wait
from envkit_linux_desktop.tasks.sheets import Cell, Sheet, Workbook, book_of, parts_of

_LOOKS: Final = {"bold", "italic", "frozen", "number_format"}
_AT_END, _RENAME = 9, 18
"""Places of "Insert Sheet at End" and "Rename Sheet" in the menu "Sheet"."""
_NOTHING: Final = Cell(value=None)


def can_edit(check: Workbook) -> bool:
    """Return whether keys give the workbook all the looks that a check asks for."""
    return set(check.looks) <= _LOOKS


def edit_book(check: Workbook, files: Mapping[str, bytes], view: View) -> Moves:
    """Rename and add sheets, and enter the cells that differ."""
    before = book_of(reader.read("xlsx", files[check.path])["model"])
    yield from moves.enter_office(view)
    for number, page in enumerate(check.book):
        is_new = number >= len(before)
        old = Sheet(name="") if is_new else before[number]
        if number and not is_new:
            yield from press(view, "ctrl", "pagedown")
        if is_new:
            yield from _name_sheet(_AT_END, "Append Sheet", page.name, view)
        elif old.name != page.name:
            yield from _name_sheet(_RENAME, "Rename Sheet", page.name, view)
        yield from _edit_sheet(old, page, view)
    yield from moves.save_office(view)


def _name_sheet(place: int, title: str, name: str, view: View) -> Moves:
    yield from moves.choose("s", place, view)
    yield from moves.await_window(title, view)
    yield key("ctrl", "a")
    yield text(f"{name}\n")
    yield wait(1.0)


def _edit_sheet(before: Sheet, after: Sheet, view: View) -> Moves:
    typed = ""
    for reference in sorted({*before.cells, *after.cells}, key=parts_of):
        old, new = before.cells.get(reference), after.cells.get(reference)
        if _unformatted(old) == _unformatted(new):
            continue
        if not typed or typed != _left_of(reference):
            yield from _go_to(reference, view)
        typed = reference if new and _content(old) != _content(new) else ""
        if new and typed:
            yield from _type_cell(new)
        else:
            yield from _edit_cell(old, new, view)
    yield from _format_numbers(before, after, view)
    if after.frozen and before.frozen != after.frozen:
        yield from _go_to(after.frozen, view)
        yield from press(view, "alt", "v")
        yield key("r")  # View > Freeze Rows and Columns
        yield wait(1.0)


def _content(cell: Cell | None) -> tuple[object, str] | None:
    return cell and (cell.value, cell.formula)


def _unformatted(cell: Cell | None) -> Cell | None:
    return cell and replace(cell, number_format="General")


def _format_numbers(before: Sheet, after: Sheet, view: View) -> Moves:
    """Set number formats, each of which the cells from one to another in a column have."""
    formats = {
        (parts_of(reference)[1], cell.number_format, reference)
        for reference, cell in after.cells.items()
        if before.cells.get(reference, _NOTHING).number_format != cell.number_format
    }
    for (_, form), rows in groupby(sorted(formats), key=lambda row: row[:2]):
        references = sorted((row[2] for row in rows), key=parts_of)
        yield from _go_to(f"{references[0]}:{references[-1]}", view)
        yield from moves.await_window("Format Cells", view, "ctrl", "1")
        yield key("alt", "f")  # its code
        yield key("ctrl", "a")
        yield text(form)
        yield wait(0.5)
        yield key("alt", "o")
        yield wait(1.0)


def _left_of(reference: str) -> str:
    row, letters = parts_of(reference)
    return f"{chr(ord(letters) - 1)}{row}"


def _go_to(reference: str, view: View) -> Moves:
    """Select cells by their name in the Name Box."""
    yield from press(view, "ctrl", "shift", "t")
    yield text(reference)
    yield from press(view, "enter")


def _type_cell(cell: Cell) -> Moves:
    """Enter a value or a formula and go to the cell on the right."""
    yield text(cell.formula or str(cell.value))
    yield key("delete")  # what auto-input has added
    yield key("tab")


def _edit_cell(old: Cell | None, new: Cell | None, view: View) -> Moves:
    """Clear the cell or change its looks."""
    if old is None or new is None:
        yield from press(view, "delete")
        return
    if old.bold != new.bold:
        yield from press(view, "ctrl", "b")
    if old.italic != new.italic:
        yield from press(view, "ctrl", "i")


_ALIGN: Final = {"center": "e", "right": "r"}
_MARKS: Final = {"bold": "b", "italic": "i", "underline": "u"}
_CHARACTER: Final = 5
"""Place of "Character" in the menu "Format"."""


def write_pages(check: Document, view: View) -> Moves:
    """Type the whole document again, then give paragraphs and pages their looks."""
    yield from moves.enter_office(view)
    yield from press(view, "ctrl", "a")
    yield from press(view, "delete")
    for number, paragraph in enumerate(check.pages.paragraphs):
        if number:
            yield key("enter")
        yield from _write_spans(paragraph, view)
    for number, paragraph in enumerate(check.pages.paragraphs):
        yield from _style(number, paragraph, view)
    yield from _set_page(check.pages, view)
    for table in check.pages.tables:
        yield from _insert_table(table, view)
    yield from moves.save_office(view)


def _style(number: int, paragraph: Paragraph, view: View) -> Moves:
    """Give a paragraph its style, alignment and size."""
    chords, size = _paragraph_keys(paragraph), paragraph.spans[0].size
    if chords or size:
        yield key("ctrl", "home")
        for _ in range(number):
            yield key("ctrl", "down")
    for chord in chords:
        yield key("ctrl", chord)
        yield wait(0.2)
    if size:
        yield key("shift", "end")
        yield from moves.choose("o", _CHARACTER, view)
        yield from moves.await_window("Character", view)
        yield key("alt", "z")
        yield key("ctrl", "a")
        yield text(f"{size:g}")
        yield wait(0.5)
        yield key("alt", "o")
        yield wait(1.0)


def _paragraph_keys(paragraph: Paragraph) -> list[str]:
    """Return the keys that, with Ctrl, set style and alignment."""
    style = [paragraph.style[-1]] if paragraph.style.startswith("Heading") else []
    return style + ([_ALIGN[paragraph.align]] if paragraph.align in _ALIGN else [])


def _set_page(pages: Pages, view: View) -> Moves:
    """Turn the page and write into its header and footer."""
    if pages.landscape:
        yield from moves.await_window("Page Style", view, "alt", "shift", "p")
        yield key("ctrl", "pagedown")
        yield wait(0.5)
        yield key("alt", "a")  # landscape
        yield key("enter")
        yield wait(1.0)
    for end in ("header", "footer"):
        content = getattr(pages, end)
        if content:
            yield from _open_end(end, view)
            yield text(content)
            yield wait()


def _open_end(end: str, view: View) -> Moves:
    """Turn on the header or the footer, which puts the cursor there."""
    yield from press(view, "alt", "i")
    yield from press(view, "a")  # Insert > Header and Footer
    if end == "footer":
        yield from press(view, "down")
    for _ in range(2):
        yield from press(view, "enter")


def _insert_table(table: tuple[tuple[str, ...], ...], view: View) -> Moves:
    """Insert a table below the text and fill it."""
    yield key("ctrl", "end")
    yield key("enter")
    yield wait()
    yield from moves.await_window("Insert Table", view, "ctrl", "f12")
    for letter, count in (("c", len(table[0])), ("r", len(table))):
        yield key("alt", letter)
        yield key("ctrl", "a")
        yield text(str(count))
    yield key("enter")
    yield wait(1.0)
    cells = [cell for row in table for cell in row]
    for number, cell in enumerate(cells):
        if number:
            yield key("tab")
        yield text(cell)


def _write_spans(paragraph: Paragraph, view: View) -> Moves:
    for span in paragraph.spans:
        marks = [letter for look, letter in _MARKS.items() if getattr(span, look)]
        yield from _toggle(marks, view)
        yield text(span.text)
        yield from _toggle(marks, view)


def _toggle(marks: list[str], view: View) -> Moves:
    """Turn looks on or off; Writer carries such keys out after text that comes at once."""
    for letter in marks:
        yield wait(0.3)
        yield from press(view, "ctrl", letter)
