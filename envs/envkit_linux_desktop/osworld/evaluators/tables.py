"""Compare workbooks: OSWorld's `compare_table` and its rules."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import openpyxl
from openpyxl.cell.cell import MergedCell
from openpyxl.utils import get_column_letter, range_boundaries
from openpyxl.workbook.workbook import Workbook
from openpyxl.worksheet.cell_range import MultiCellRange
from openpyxl.worksheet.worksheet import Worksheet

from envkit_linux_desktop.osworld.evaluators import matching
from envkit_linux_desktop.osworld.evaluators.values import (
    File,
    Options,
    UnreadableError,
    of_file,
    open_zip,
    similarity,
    text_of,
)

_Rule = Mapping[str, Any]


def _if_filled(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader that gives None for empty cells."""
    return lambda cell: read(cell) if cell.value is not None else None


def _colour(colour: Any) -> Any:  # noqa: ANN401  # openpyxl's colour or None
    value = getattr(colour, "rgb", None)
    return value if isinstance(value, str) else None


LOOKS: Final[dict[str, Callable[[Any], Any]]] = {
    "number_format": lambda cell: (
        cell.number_format if cell.value is not None and cell.data_type == "n" else None
    ),
    "font_name": _if_filled(lambda cell: cell.font.name),
    "font_family": _if_filled(lambda cell: cell.font.family),
    "font_color": _if_filled(lambda cell: _colour(cell.font.color)),
    "font_bold": _if_filled(lambda cell: cell.font.bold),
    "font_italic": _if_filled(lambda cell: cell.font.italic),
    "font_underline": _if_filled(lambda cell: cell.font.underline),
    "font_size": _if_filled(lambda cell: cell.font.size),
    "fill_type": lambda cell: getattr(cell.fill, "tagname", None),
    "bgcolor": lambda cell: _colour(cell.fill.fgColor) if hasattr(cell.fill, "fgColor") else None,
    "fgcolor": lambda cell: _colour(cell.fill.fgColor) if hasattr(cell.fill, "fgColor") else None,
    "hyperlink": _if_filled(lambda cell: cell.hyperlink or ""),
    "merge": lambda cell: isinstance(cell, MergedCell),
}
"""Properties of a cell by their names in task files."""


def look(name: str, cell: Any) -> Any:  # noqa: ANN401  # openpyxl's cells
    """Return a property of a cell; a merged cell has no looks of its own."""
    if isinstance(cell, MergedCell) and name != "merge":
        return None
    return LOOKS[name](cell)


def styles(sheet: Worksheet, rule: _Rule) -> object:
    """Return the named looks of all cells that have one."""
    found = {
        cell.coordinate: [look(name, cell) for name in rule.get("props", ())]
        for row in sheet.iter_rows()
        for cell in row
    }
    return {place: looks for place, looks in found.items() if any(one is not None for one in looks)}


def frozen(sheet: Worksheet, _: _Rule) -> object:
    """Return the first cell below and right of the frozen ones."""
    return sheet.freeze_panes


def row_props(sheet: Worksheet, rule: _Rule) -> object:
    """Return the named properties of rows."""
    return _dimensions(sheet.row_dimensions, rule)


def column_props(sheet: Worksheet, rule: _Rule) -> object:
    """Return the named properties of columns."""
    return _dimensions(sheet.column_dimensions, rule)


def _dimensions(dimensions: Any, rule: _Rule) -> object:  # noqa: ANN401  # openpyxl's mapping
    wanted = rule.get("props", ())
    return {
        key: {name: getattr(one, name, None) for name in wanted} for key, one in dimensions.items()
    }


def charts(sheet: Worksheet, rule: _Rule) -> object:
    """Return the named properties of charts by the ranges that they show."""
    wanted = rule.get("chart_props", ())
    found: Any = sheet
    return {
        ";".join(_series(one) for one in chart.series): {
            name: _CHART[name](chart) if name in _CHART else getattr(chart, name, None)
            for name in wanted
        }
        for chart in found._charts
    }


def _series(series: Any) -> str:  # noqa: ANN401
    return f"{_range(getattr(series, 'val', None))},{_range(getattr(series, 'cat', None))}"


def _range(source: Any) -> str:  # noqa: ANN401
    for name in ("numRef", "strRef"):
        formula = getattr(getattr(source, name, None), "f", None)
        if formula:
            return str(formula)
    return ""


def _title(title: Any) -> str | None:  # noqa: ANN401
    try:
        return "".join(run.t for part in title.tx.rich.p for run in part.r or ())
    except (AttributeError, TypeError):
        return None


_CHART: Final[dict[str, Callable[[Any], Any]]] = {
    "type": lambda chart: chart.tagname,
    "title": lambda chart: _title(chart.title),
    "direction": lambda chart: getattr(chart, "barDir", None),
    "legend": lambda chart: getattr(chart.legend, "position", None),
    "xtitle": lambda chart: _title(getattr(getattr(chart, "x_axis", None), "title", None)),
    "ytitle": lambda chart: _title(getattr(getattr(chart, "y_axis", None), "title", None)),
    "ztitle": lambda chart: _title(getattr(getattr(chart, "z_axis", None), "title", None)),
}


def filters(sheet: Worksheet, _: _Rule) -> object:
    """Return the sheet's automatic filter."""
    used: Any = sheet.auto_filter
    columns = [
        (
            column.colId,
            sorted(column.filters.filter) if column.filters is not None else None,
            sorted((one.operator or "", one.val) for one in column.customFilters.customFilter)
            if column.customFilters is not None
            else None,
        )
        for column in used.filterColumn
    ]
    return used.ref, sorted(columns, key=lambda column: column[0])


def pivots(sheet: Worksheet, rule: _Rule) -> object:
    """Return the named properties of pivot tables by the range that they summarise."""
    wanted = set(rule.get("pivot_props", ()))
    if "filter" in wanted:
        wanted.add("selection")
    found: Any = sheet
    return dict(_pivot(pivot, wanted) for pivot in found._pivots)


def _pivot(pivot: Any, wanted: set[str]) -> tuple[str, dict[str, Any]]:  # noqa: ANN401
    """Return a pivot table's source and properties.

    A source often includes empty columns beside its table. Their fields have no items. Those at
    both ends are left out, and the other fields are counted from the first that has some.
    """
    items = [
        sorted((bool(item.h), item.x) for item in field.items if item.x is not None)
        for field in pivot.pivotFields
    ]
    used = [index for index, found in enumerate(items) if found] or [0]
    first, last = used[0], used[-1]
    values: dict[str, Any] = {
        "name": pivot.name,
        "location": str(pivot.location.ref),
        "show_total": pivot.visualTotals,
        "show_empty_row": pivot.showEmptyRow,
        "show_empty_col": pivot.showEmptyCol,
        "show_headers": pivot.showHeaders,
        "filter": {field.fld - first for field in pivot.pageFields},
        "selection": items[first : last + 1],
        "col_fields": [field.x - first for field in pivot.colFields],
        "row_fields": [field.x - first for field in pivot.rowFields],
        "data_fields": [
            (
                field.fld - first,
                field.name if "data_fields_name" in wanted else "",
                field.subtotal,
                field.showDataAs,
            )
            for field in pivot.dataFields
        ],
    }
    source = pivot.cache.cacheSource.worksheetSource
    left, top, right, bottom = range_boundaries(source.ref)
    ends = (left or 0) + first, (right or 0) - len(items) + 1 + last
    name = f"{source.sheet}!{ends[0]},{top}:{ends[1]},{bottom}"
    return name, {key: value for key, value in values.items() if key in wanted}


MAX_CELLS: Final = 400_000
"""Maximum cells of the rectangle that a sheet's rows and columns span."""
_PRECISION: Final = 4
Rows = list[list[Any]]


@dataclass(frozen=True)
class Book:
    """A workbook read twice: as formulas, and as the values that were stored with them."""

    file: File

    @cached_property
    def formulas(self) -> Workbook:
        """The workbook with formulas."""
        return self._read(data_only=False)

    @cached_property
    def values(self) -> Workbook:
        """The workbook with stored values."""
        return self._read(data_only=True)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its sheets."""
        return tuple(self.values.sheetnames)

    def sheet(self, name: str | None, *, values: bool = False) -> Worksheet | None:
        """Return a worksheet, or None if there is none of this name."""
        book = self.values if values else self.formulas
        found: Any = book[name] if name in book.sheetnames else None
        return found if isinstance(found, Worksheet) else None

    def rows(self, name: str | None) -> Rows | None:
        """Return a sheet's stored values without empty rows and columns at its ends."""
        sheet = self.sheet(name, values=True)
        return None if sheet is None else _trimmed([list(row) for row in sheet.values])

    def printed(self, name: str) -> list[str] | None:
        """Return the lines of the sheet's CSV file, which was exported beside the workbook."""
        stem = self.file.name.rpartition(".")[0] or self.file.name
        data = self.file.others.get(f"{stem}-{name}.csv")
        if data is None:
            return None
        csv = File(name=f"{stem}-{name}.csv", data=data, is_result=self.file.is_result)
        lines = [line.strip() for line in text_of(csv).splitlines()]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _read(self, *, data_only: bool) -> Workbook:
        open_zip(self.file).close()
        try:
            book = openpyxl.load_workbook(io.BytesIO(self.file.data), data_only=data_only)
        except Exception as error:
            raise UnreadableError(self.file, f"{type(error).__name__}: {error}") from error
        for sheet in book.worksheets:
            if sheet.max_row * sheet.max_column > MAX_CELLS:
                raise UnreadableError(self.file, "more cells than any task needs")
        return book


@dataclass(frozen=True)
class Side:
    """A sheet of the result or of the expected workbook."""

    book: Book
    name: str | None
    """None if the book has no sheet of this number."""

    @property
    def sheet(self) -> Worksheet | None:
        """The worksheet with formulas."""
        return self.book.sheet(self.name)

    def value(self, place: str) -> Any:  # noqa: ANN401  # any cell's value
        """Return the stored value of a cell; numbers as floats."""
        sheet = self.book.sheet(self.name, values=True)
        value = None if sheet is None else sheet[place].value
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@of_file
def compare_table(result: File, expected: Any, options: Options) -> float:  # noqa: ANN401
    """Return 1.0 if all rules hold between two workbooks."""
    own = Book(result)
    gold = Book(expected) if isinstance(expected, File) else None
    _ = own.names  # a broken result is told from a broken rule here
    return float(all(_RULES[rule["type"]](rule, own, gold) for rule in options["rules"]))


def problem_of(options: Mapping[str, Any], *, has_gold: bool) -> str | None:
    """Return why the rules cannot be used, or None if they can."""
    rules = options.get("rules")
    if not isinstance(rules, list) or not rules:
        return "no rules"
    for rule in rules:
        kind = rule.get("type") if isinstance(rule, dict) else None
        if kind not in _RULES:
            return f"the rule {kind!r}"
        if kind not in _ALONE and not has_gold:
            return f"the rule {kind!r} without an expected workbook"
        if (problem := _details(rule)) is not None:
            return problem
    return None


def _details(rule: _Rule) -> str | None:
    for key in ("sheet_idx", "sheet_idx0", "sheet_idx1"):
        place = rule.get(key, 0)
        if not (isinstance(place, int) or str(place)[:2] in ("RI", "RN", "EI", "EN")):
            return f"the sheet {place!r}"
    match rule["type"]:
        case "check_cell":
            conditions = list(rule["props"].values())
        case "data_validation":
            conditions = [one for prop in rule["dv_props"] for one in prop.values()]
        case "zoom":
            conditions = [rule]
        case _:
            conditions = []
    problems = [problem for one in conditions if (problem := matching.problem_of(one)) is not None]
    wanted = rule.get("props", ())
    if rule["type"] in ("style", "check_cell"):
        unknown = set(wanted) - set(LOOKS) - {"value"}
        problems += [f"the property {name!r}" for name in sorted(unknown)]
    return problems[0] if problems else None


def _side(place: int | str, own: Book, gold: Book | None) -> Side:
    """Return the sheet that `0`, "RI0", "RNname", "EI0" or "ENname" means."""
    if isinstance(place, int):
        place = f"RI{place}"
    book = own if place[0] == "R" or gold is None else gold
    if place[1] == "N":
        return Side(book, place[2:])
    number = int(place[2:])
    return Side(book, book.names[number] if number < len(book.names) else None)


def _pair(rule: _Rule, own: Book, gold: Book | None) -> tuple[Side, Side]:
    return _side(rule["sheet_idx0"], own, gold), _side(rule["sheet_idx1"], own, gold)


def _sheet_names(_: _Rule, own: Book, gold: Book | None) -> bool:
    return gold is not None and own.names == gold.names


def _sheet_data(rule: _Rule, own: Book, gold: Book | None) -> bool:
    digits = int(rule.get("precision", _PRECISION))
    one, two = (side.book.rows(side.name) for side in _pair(rule, own, gold))
    return one is not None and two is not None and same_rows(one, two, digits)


def _sheet_print(rule: _Rule, own: Book, gold: Book | None) -> bool:
    one, two = (
        None if side.name is None else side.book.printed(side.name)
        for side in _pair(rule, own, gold)
    )
    if one is None or two is None:
        return False
    if rule.get("ignore_case"):
        one, two = [line.lower() for line in one], [line.lower() for line in two]
    return one == two


def _sheet_fuzzy(rule: _Rule, own: Book, gold: Book | None) -> bool:
    one, two = _pair(rule, own, gold)
    for part in rule["rules"]:
        for area in MultiCellRange(" ".join(part["range"])):
            for row, column in area.cells:
                place = f"{get_column_letter(column)}{row}"
                if not _fuzzy(part, str(one.value(place)), str(two.value(place))):
                    return False
    return True


def _fuzzy(rule: _Rule, own: str, gold: str) -> bool:
    own, gold = _normal(own, rule), _normal(gold, rule)
    match rule["type"]:
        case "includes":
            return gold in own
        case "included_by":
            return own in gold
        case "fuzzy_match":
            return 100 * similarity(own, gold) >= rule.get("threshold", 85.0)
        case _:
            return own == gold


def _normal(text: str, rule: _Rule) -> str:
    for old, new in rule.get("normalization", ()):
        text = text.replace(old, new)
    if "trim_leadings" in rule:
        text = text.lstrip(rule["trim_leadings"])
    if "trim_trailings" in rule:
        text = text.rstrip(rule["trim_trailings"])
    ignored = set(rule.get("ignore_chars", ""))
    text = "".join(character for character in text if character not in ignored)
    return text.lower() if rule.get("ignore_case") else text


def _check_cell(rule: _Rule, own: Book, gold: Book | None) -> bool:
    side = _side(rule["sheet_idx"], own, gold)
    sheet, place = side.sheet, rule["coordinate"]
    if sheet is None:
        return False
    return all(
        matching.matches(side.value(place) if name == "value" else look(name, sheet[place]), wanted)
        for name, wanted in rule["props"].items()
    )


def _zoom(rule: _Rule, own: Book, gold: Book | None) -> bool:
    sheet = _side(rule["sheet_idx"], own, gold).sheet
    if sheet is None:
        return False
    return matching.matches(sheet.sheet_view.zoomScale or 100, rule)


def _data_validation(rule: _Rule, own: Book, gold: Book | None) -> bool:
    sheet = _side(rule["sheet_idx"], own, gold).sheet
    found: list[Any] = [] if sheet is None else list(sheet.data_validations.dataValidation)
    wanted = rule["dv_props"]
    return len(found) >= len(wanted) and all(
        any(
            all(matching.matches(getattr(one, name, None), limit) for name, limit in props.items())
            for props in wanted
        )
        for one in found
    )


def _alike(read: Callable[[Worksheet, _Rule], object]) -> Callable[..., bool]:
    """Return a rule: what `read` returns is the same for both sheets."""

    def same(rule: _Rule, own: Book, gold: Book | None) -> bool:
        one, two = (side.sheet for side in _pair(rule, own, gold))
        return one is not None and two is not None and read(one, rule) == read(two, rule)

    return same


_RULES: Final[dict[str, Callable[[_Rule, Book, Book | None], bool]]] = {
    "sheet_name": _sheet_names,
    "sheet_data": _sheet_data,
    "sheet_print": _sheet_print,
    "sheet_fuzzy": _sheet_fuzzy,
    "check_cell": _check_cell,
    "zoom": _zoom,
    "data_validation": _data_validation,
    "chart": _alike(charts),
    "style": _alike(styles),
    "freeze": _alike(frozen),
    "row_props": _alike(row_props),
    "col_props": _alike(column_props),
    "filter": _alike(filters),
    "pivot_table": _alike(pivots),
}
_ALONE: Final = ("check_cell", "zoom", "data_validation")
"""Rules that look at one workbook."""


def same_rows(one: Rows, two: Rows, digits: int) -> bool:
    """Return whether two tables have equal cells, numbers to some decimal places."""
    return len(one) == len(two) and all(
        len(left) == len(right)
        and all(_same(a, b, digits) for a, b in zip(left, right, strict=True))
        for left, right in zip(one, two, strict=True)
    )


def _same(one: Any, two: Any, digits: int) -> bool:  # noqa: ANN401
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, int | float) and isinstance(two, int | float):
        return round(one, digits) == round(two, digits)
    return (one or None) == (two or None) and type(one or None) is type(two or None)


def _trimmed(rows: Sequence[Sequence[Any]]) -> Rows:
    width = max(
        (n for row in rows for n, cell in enumerate(row, 1) if cell not in (None, "")), default=0
    )
    cut = [list(row[:width]) for row in rows]
    while cut and all(cell in (None, "") for cell in cut[-1]):
        cut.pop()
    return cut
