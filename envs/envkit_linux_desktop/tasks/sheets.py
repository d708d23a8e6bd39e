"""Workbooks: a small model, xlsx bytes from it, and the check of a final xlsx file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envkit_linux_desktop.tasks import packing, reading
from envkit_linux_desktop.tasks.checks import MAX_BYTES, Home, PathCheck

Scalar = str | int | float | bool | None
_MAIN: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_BUILT_IN: Final = {
    "General": 0,
    "0": 1,
    "0.00": 2,
    "#,##0": 3,
    "#,##0.00": 4,
    "0%": 9,
    "0.00%": 10,
}
_REFERENCE: Final = re.compile(r"\$?[A-Z]{1,3}\$?[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: its value, the formula behind it, and its looks."""

    value: Scalar
    formula: str = ""
    """Begins with "="; empty for a plain value."""
    bold: bool = False
    italic: bool = False
    number_format: str = "General"
    fill: str = ""
    """Background as "RRGGBB"; empty for none."""
    align: str = ""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One sheet: cells by reference."""

    name: str
    cells: Mapping[str, Cell] = field(default_factory=dict[str, Cell])
    frozen: str = ""
    """Top left cell below and right of the frozen rows and columns."""

    def with_cells(self, cells: Mapping[str, Cell]) -> "Sheet":
        """Return the sheet with some cells replaced."""
        return replace(self, cells={**self.cells, **cells})


def column(index: int) -> str:
    """Return the letter of a column, 0 being "A"."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[index]


def sheet(name: str, rows: Iterable[Sequence[Scalar | Cell]]) -> Sheet:
    """Return a sheet filled from A1; a text that begins with "=" needs a `Cell`."""
    cells: dict[str, Cell] = {}
    for number, row in enumerate(rows, 1):
        for index, value in enumerate(row):
            if value is not None:
                cell = value if isinstance(value, Cell) else Cell(value=value)
                cells[f"{column(index)}{number}"] = cell
    return Sheet(name=name, cells=cells)


def parts_of(reference: str) -> tuple[int, str]:
    """Split "B12" into (12, "B"), which sorts by rows."""
    letters = reference.rstrip("0123456789")
    return int(reference[len(letters) :]), letters


class _Styles:
    """Collects cell styles and numbers them."""

    def __init__(self) -> None:
        self.xfs: list[str] = ['<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>']
        self.fills: list[str] = []
        self.formats: list[str] = []

    def number(self, cell: Cell) -> int:
        """Return the index of the cell's style."""
        if replace(cell, value=None, formula="") == Cell(value=None):
            return 0
        form = _BUILT_IN.get(cell.number_format)
        if form is None:
            if cell.number_format not in self.formats:
                self.formats.append(cell.number_format)
            form = 164 + self.formats.index(cell.number_format)
        if cell.fill and cell.fill not in self.fills:
            self.fills.append(cell.fill)
        fill = 2 + self.fills.index(cell.fill) if cell.fill else 0
        align = f'<alignment horizontal="{cell.align}"/>' if cell.align else ""
        xf = (
            f'<xf numFmtId="{form}" fontId="{int(cell.bold) + 2 * int(cell.italic)}" '
            f'fillId="{fill}" borderId="0" xfId="0" applyNumberFormat="1" applyFont="1" '
            f'applyFill="1"{f">{align}</xf>" if align else "/>"}'
        )
        if xf not in self.xfs:
            self.xfs.append(xf)
        return self.xfs.index(xf)

    def xml(self) -> str:
        """Return the part of styles."""
        fonts = "".join(
            f'<font>{bold}{italic}<sz val="11"/><name val="Calibri"/></font>'
            for italic in ("", "<i/>")
            for bold in ("", "<b/>")
        )
        fills = "".join(
            f'<fill><patternFill patternType="solid"><fgColor rgb="FF{fill}"/></patternFill></fill>'
            for fill in self.fills
        )
        formats = "".join(
            f'<numFmt numFmtId="{164 + n}" formatCode={packing.attribute(form)}/>'
            for n, form in enumerate(self.formats)
        )
        return (
            f'{packing.XML_HEAD}<styleSheet xmlns="{_MAIN}">'
            + (f'<numFmts count="{len(self.formats)}">{formats}</numFmts>' if formats else "")
            + f'<fonts count="4">{fonts}</fonts><fills count="{2 + len(self.fills)}">'
            '<fill><patternFill patternType="none"/></fill>'
            f'<fill><patternFill patternType="gray125"/></fill>{fills}</fills>'
            '<borders count="1"><border/></borders><cellStyleXfs count="1">'
            '<xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
            f'<cellXfs count="{len(self.xfs)}">{"".join(self.xfs)}</cellXfs>'
            '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>'
            "</styleSheet>"
        )


def _cell_xml(reference: str, cell: Cell, style: int) -> str:
    formula = f"<f>{packing.text(cell.formula[1:])}</f>" if cell.formula else ""
    value, kind = cell.value, ""
    if isinstance(value, bool):
        kind, body = ' t="b"', f"<v>{int(value)}</v>"
    elif isinstance(value, int | float):
        body = f"<v>{value!r}</v>"
    elif value is None:
        body = ""
    elif formula:
        kind, body = ' t="str"', f"<v>{packing.text(value)}</v>"
    else:
        kind, body = ' t="inlineStr"', f"<is><t>{packing.text(value)}</t></is>"
    return f'<c r="{reference}" s="{style}"{kind}>{formula}{body}</c>'


def _sheet_xml(page: Sheet, styles: _Styles) -> str:
    rows: dict[int, list[str]] = {}
    for reference in sorted(page.cells, key=lambda r: (parts_of(r)[0], len(r), r)):
        cell = page.cells[reference]
        row = rows.setdefault(parts_of(reference)[0], [])
        row.append(_cell_xml(reference, cell, styles.number(cell)))
    body = "".join(f'<row r="{number}">{"".join(cells)}</row>' for number, cells in rows.items())
    view = ""
    if page.frozen:
        row, letters = parts_of(page.frozen)
        across = ord(letters) - ord("A")
        splits = f' xSplit="{across}"' if across else ""
        splits += f' ySplit="{row - 1}"' if row > 1 else ""
        pane = "bottomRight" if across and row > 1 else "topRight" if across else "bottomLeft"
        view = (
            '<sheetViews><sheetView tabSelected="1" workbookViewId="0">'
            f'<pane{splits} topLeftCell="{page.frozen}" activePane="{pane}" state="frozen"/>'
            "</sheetView></sheetViews>"
        )
    return (
        f'{packing.XML_HEAD}<worksheet xmlns="{_MAIN}">{view}'
        '<cols><col min="1" max="8" width="18" customWidth="1"/></cols>'
        f"<sheetData>{body}</sheetData></worksheet>"
    )


def xlsx(book: Sequence[Sheet]) -> bytes:
    """Return the bytes of a workbook."""
    styles, numbers = _Styles(), range(1, len(book) + 1)
    parts = {
        f"xl/worksheets/sheet{number}.xml": _sheet_xml(page, styles)
        for number, page in zip(numbers, book, strict=True)
    }
    listed = "".join(
        f'<sheet name={packing.attribute(page.name)} sheetId="{number}" r:id="rId{number}"/>'
        for number, page in zip(numbers, book, strict=True)
    )
    targets = {f"rId{n}": ("worksheet", f"worksheets/sheet{n}.xml") for n in numbers}
    kinds = {f"xl/worksheets/sheet{n}.xml": "spreadsheetml.worksheet" for n in numbers}
    kinds |= {
        "xl/workbook.xml": "spreadsheetml.sheet.main",
        "xl/styles.xml": "spreadsheetml.styles",
    }
    return packing.zipped(
        {
            "[Content_Types].xml": packing.content_types(kinds),
            "_rels/.rels": packing.relationships({"rId1": ("officeDocument", "xl/workbook.xml")}),
            "xl/workbook.xml": f'{packing.XML_HEAD}<workbook xmlns="{_MAIN}" '
            f'xmlns:r="{packing.OFFICE}"><bookViews><workbookView/></bookViews><sheets>{listed}</sheets></workbook>',
            "xl/_rels/workbook.xml.rels": packing.relationships(
                {**targets, "rIdStyles": ("styles", "styles.xml")}
            ),
            "xl/styles.xml": styles.xml(),
            **parts,
        }
    )


def book_of(model: Any) -> tuple[Sheet, ...]:  # noqa: ANN401  # plain JSON data from the reader
    """Return the sheets that a reader found."""
    return tuple(
        Sheet(
            name=page["name"],
            frozen=page["frozen"],
            cells={reference: Cell(**cell) for reference, cell in page["cells"].items()},
        )
        for page in model["sheets"]
    )


def _is_same(value: Scalar, expected: Scalar) -> bool:
    if isinstance(value, str | bool) or isinstance(expected, str | bool):
        return type(value) is type(expected) and value == expected
    if value is None or expected is None:
        return value is expected
    return abs(value - expected) <= 1e-6 * max(1.0, abs(expected))


def _look(cell: Cell, look: str) -> object:
    """Return a look; the separator of thousands, which Calc's own button adds, does not count."""
    value = getattr(cell, look)
    return value.replace("#,##0", "0") if look == "number_format" else value


@dataclass(frozen=True, kw_only=True)
class Workbook(PathCheck):
    """An xlsx file has exactly these sheets, values and formulas, and the named looks."""

    book: tuple[Sheet, ...]
    looks: tuple[str, ...] = ()
    """Fields of `Cell` that must match too, and "frozen" of `Sheet`."""

    def holds(self, home: Home) -> bool:
        """Compare the workbook."""
        data = home.read(self.path, limit=MAX_BYTES)
        model = reading.read_document("xlsx", data) if data else None
        if model is None:
            return False
        book = book_of(model)
        return [page.name for page in book] == [page.name for page in self.book] and all(
            self._is_sheet(page, expected) for page, expected in zip(book, self.book, strict=True)
        )

    def _is_sheet(self, page: Sheet, expected: Sheet) -> bool:
        filled = {key: cell for key, cell in page.cells.items() if cell.value not in (None, "")}
        if "frozen" in self.looks and page.frozen != expected.frozen:
            return False
        return filled.keys() == expected.cells.keys() and all(
            self._is_cell(filled[key], cell) for key, cell in expected.cells.items()
        )

    def _is_cell(self, cell: Cell, expected: Cell) -> bool:
        if not _is_same(cell.value, expected.value):
            return False
        if expected.formula and not _REFERENCE.search(cell.formula):
            return False  # a number typed in place of the formula
        looks = [look for look in self.looks if look != "frozen"]
        return all(_look(cell, look) == _look(expected, look) for look in looks)

    def apply(self, files: dict[str, bytes]) -> None:
        """Write the workbook."""
        files[self.path] = xlsx(self.book)
