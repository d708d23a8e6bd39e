"""Parts of a worksheet that table rules compare: looks, charts, filters, pivot tables."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from openpyxl.cell.cell import MergedCell
from openpyxl.utils import range_boundaries
from openpyxl.worksheet.worksheet import Worksheet

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
