"""The part of the oracle that edits workbooks with Calc's keys."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Final

from envkit_linux_desktop.tasks import moves, reader
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
