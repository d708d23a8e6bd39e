"""Spreadsheet families: LibreOffice Calc on xlsx files."""

from collections.abc import Callable
from dataclasses import replace

from envkit_linux_desktop.tasks import words
from envkit_linux_desktop.tasks.checks import Text
from envkit_linux_desktop.tasks.clues import expect, then_log, told
from envkit_linux_desktop.tasks.scenario import CALC, Draft, families
from envkit_linux_desktop.tasks.sheets import Cell, Scalar, Sheet, Workbook, column, sheet, xlsx
from envkit_linux_desktop.tasks.words import quoted

Row = list[Scalar]
_HEAD: Row = ["Item", "Price", "Quantity"]


def _goods(draft: Draft, *counts: int) -> list[Row]:
    """Return a head and rows of goods."""
    names = draft.some(words.GOODS, draft.at(*(counts or (4, 6, 10, 14))))
    return [_HEAD, *([n, draft.rng.randint(3, 95), draft.rng.randint(2, 60)] for n in names)]


def _add(draft: Draft, rows: list[Row], *more: Sheet) -> tuple[str, Sheet]:
    """Add a workbook and open it."""
    first = sheet("Stock", rows)
    path = draft.add(draft.path("xlsx"), xlsx([first, *more]))
    draft.open(*CALC, path)
    return path, first


def _expect(draft: Draft, path: str, *book: Sheet, looks: tuple[str, ...] = ()) -> None:
    """Add the clutter, and expect these sheets."""
    expect(draft, Workbook(path=path, book=book, looks=looks))


def _number(draft: Draft, value: int) -> str:
    """Return a number, or at level 4 where to find it."""
    others = [str(draft.rng.randint(100, 9999)) for _ in range(12)]
    return str(value) if draft.level < 4 else told(draft, "number", str(value), others)


def enter_values(draft: Draft) -> None:
    """Type values into cells."""
    path, first = _add(draft, _goods(draft))
    places = draft.some([f"{c}{r}" for c in "EFGH" for r in range(2, 20)], draft.at(1, 2, 3, 4))
    cells = {place: Cell(value=draft.rng.randint(100, 9999)) for place in places}
    said = [f"{cell.value} into {place}" for place, cell in cells.items()]
    last = int(str(cells[places[-1]].value))
    said[-1] = f"{_number(draft, last)} into {places[-1]}"
    _expect(draft, path, first.with_cells(cells))
    draft.say(
        f"In the spreadsheet {path}, enter {words.listed(said)}. Save it as an xlsx file.",
        f"Type {words.listed(said)} in {path}. Keep the xlsx format when you save.",
        f"Please fill in cells of {path}: {words.listed(said)}. Save the workbook.",
    )


def correct_value(draft: Draft) -> None:
    """Correct values that are found by row and column."""
    rows = _goods(draft)
    path, _ = _add(draft, rows)
    changed = [list(row) for row in rows]
    said: list[str] = []
    indices = draft.some(list(range(1, len(rows))), draft.at(1, 2, 3, 3))
    for index in indices:
        at, value = draft.rng.choice((1, 2)), draft.rng.randint(100, 9999)
        changed[index][at] = value
        phrase = _number(draft, value) if index == indices[-1] else str(value)
        said.append(f"the {str(_HEAD[at]).lower()} of {rows[index][0]} to {phrase}")
    _expect(draft, path, sheet("Stock", changed))
    draft.say(
        f"In {path}, change {words.listed(said)}, and save.",
        f"Some figures in {path} are out of date. Set {words.listed(said)}. Save the file in xlsx "
        "format.",
        f"Update {path}: change {words.listed(said)}. Keep everything else, and save.",
    )


def add_row(draft: Draft) -> None:
    """Add rows below a table."""
    rows = _goods(draft)
    path, _ = _add(draft, rows)
    rest = [name for name in words.GOODS if name not in [row[0] for row in rows]]
    names = draft.some(rest, draft.at(1, 1, 2, 2))
    added: list[Row] = [[n, draft.rng.randint(3, 95), draft.rng.randint(2, 60)] for n in names]
    said = [f"{quoted(str(n))} with price {p} and quantity {q}" for n, p, q in added]
    n, p, q = added[-1]
    said[-1] = f"{told(draft, 'item', str(n), rest)} with price {p} and quantity {q}"
    _expect(draft, path, sheet("Stock", [*rows, *added]))
    draft.say(
        f"Add {words.listed(said)} below the last row of {path}, and save.",
        f"The table in {path} goes on: add {words.listed(said)} directly below it, one row for "
        "each. Save it.",
        f"Append {words.listed(said)} to the table in {path}. Save the file as xlsx.",
    )


def delete_rows(draft: Draft) -> None:
    """Delete rows of a table."""
    rows = _goods(draft)
    path, _ = _add(draft, rows)
    names = [str(row[0]) for row in rows[1:]]
    gone = draft.some(names, draft.at(1, 2, 3, 3))
    said = [*map(quoted, gone[:-1]), told(draft, "item", gone[-1], names)]
    _expect(draft, path, sheet("Stock", [row for row in rows if row[0] not in gone]))
    draft.say(
        f"Delete the row of {words.listed(said)} from {path} so that no gap remains, and save.",
        f"Remove {words.listed(said)} from the table in {path}. The rows below move up. Save it.",
        f"{path} should no longer list {words.listed(said)}. Delete these rows entirely, and save.",
    )


_SUMMARIES: tuple[tuple[str, str, Callable[[list[int]], float]], ...] = (
    ("sum", "SUM", sum),
    ("average", "AVERAGE", lambda values: sum(values) / len(values)),
    ("largest value", "MAX", max),
    ("smallest value", "MIN", min),
)


def summarize_column(draft: Draft) -> None:
    """Write a formula that summarizes a column."""
    rows = _goods(draft)
    path, first = _add(draft, rows)
    cells: dict[str, Cell] = {}
    said: list[str] = []
    kinds = draft.some(_SUMMARIES, draft.at(1, 1, 2, 3))
    places = draft.some([f"{c}{r}" for c in "EFG" for r in range(2, 16)], len(kinds))
    for place, (name, function, work) in zip(places, kinds, strict=True):
        at = draft.rng.choice((1, 2))
        values = [int(str(row[at])) for row in rows[1:]]
        letter = column(at)
        cells[place] = Cell(
            value=work(values), formula=f"={function}({letter}2:{letter}{len(rows)})"
        )
        said.append(f"the {name} of the column {quoted(str(_HEAD[at]))} in {place}")
    _expect(draft, path, first.with_cells(cells))
    draft.say(
        f"In {path}, calculate {words.listed(said)} by formula, and save.",
        f"Use formulas in {path} to show {words.listed(said)}. Save the workbook as xlsx.",
        f"{path} needs {words.listed(said)}. Enter formulas, not numbers, and save.",
    )
    then_log(draft)


def multiply_columns(draft: Draft) -> None:
    """Add a column of products by formulas."""
    rows = _goods(draft, 3, 5, 8, 12)
    path, first = _add(draft, rows)
    title = draft.one(("Total", "Amount", "Value", "Cost"))
    rest = ("Total", "Amount", "Value", "Cost", "Sum", "Worth", "Stock value")
    said = told(draft, "title", title, rest)
    cells = {"D1": Cell(value=title)}
    for number, row in enumerate(rows[1:], 2):
        value = int(str(row[1])) * int(str(row[2]))
        cells[f"D{number}"] = Cell(value=value, formula=f"=B{number}*C{number}")
    _expect(draft, path, first.with_cells(cells))
    draft.say(
        f"In {path}, put {said} into D1 as the title of column D, and in each row below it the "
        "price times "
        "the quantity, by formula. Save it.",
        f"Add a column D to the table in {path}: the title is {said}, and every row multiplies "
        "price and quantity with a formula. Save the file.",
        f"Fill column D of {path}. D1 says {said}; the rows of the table calculate price times "
        "quantity by formulas. Save as xlsx.",
    )


def sort_rows(draft: Draft) -> None:
    """Sort a table by a column."""
    rows = _goods(draft, 4, 6, 10, 14)
    at = draft.at(0, draft.one((0, 1)), 1, 2)
    values = draft.some(list(range(3, 96)), len(rows) - 1)
    for row, value in zip(rows[1:], values, strict=True):
        row[1], row[2] = value, value * 7 % 97
    down = draft.level >= 3 and draft.rng.random() < 0.7
    final = sorted(rows[1:], key=lambda row: (str(row[0]) if at == 0 else int(str(row[at]))),
                   reverse=down)  # fmt: skip
    if final == rows[1:]:
        rows[1:] = final[::-1]
    path, _ = _add(draft, rows)
    _expect(draft, path, sheet("Stock", [rows[0], *final]))
    order = (
        ("from Z to A" if down else "from A to Z")
        if at == 0
        else ("largest first" if down else "smallest first")
    )
    draft.say(
        f'Sort the table in {path} by the column "{_HEAD[at]}", {order}. The first row stays on '
        "top. Save it.",
        f'In {path}, put the rows below the head in order of "{_HEAD[at]}", {order}, and save.',
        f'Order the rows of {path} by "{_HEAD[at]}", {order}, keeping each row together and the '
        "titles in row 1. Save the file.",
    )
    then_log(draft)


def rename_sheet(draft: Draft) -> None:
    """Rename a sheet."""
    names = draft.some(words.FOLDERS, draft.at(1, 2, 3, 4))
    more = [sheet(name, _goods(draft, 2, 2, 3, 3)) for name in names]
    path, first = _add(draft, _goods(draft), *more)
    book = [first, *more]
    at = draft.rng.randrange(len(book))
    old, new = book[at].name, f"{draft.one(words.CITIES)} {draft.rng.randint(2020, 2029)}"
    others = [f"{city} {draft.rng.randint(2020, 2029)}" for city in words.CITIES]
    book[at] = replace(book[at], name=new)
    said = told(draft, "sheet name", new, others)
    _expect(draft, path, *book)
    draft.say(
        f'Rename the sheet "{old}" of {path} to {said}, and save.',
        f'In {path}, the sheet "{old}" should be called {said}. Save the workbook.',
        f'Give the sheet "{old}" in {path} a new name: {said}. Save as xlsx.',
    )


def add_sheet(draft: Draft) -> None:
    """Add a sheet with some values after the last."""
    path, first = _add(draft, _goods(draft))
    name = f"{draft.one(words.CITIES)} {draft.rng.randint(2020, 2029)}"
    rows: list[Row] = [[item, draft.rng.randint(10, 999)]
                       for item in draft.some(words.PLAIN, draft.at(1, 2, 2, 3))]  # fmt: skip
    others = [f"{city} {draft.rng.randint(2020, 2029)}" for city in words.CITIES]
    said = told(draft, "sheet name", name, others)
    _expect(draft, path, first, sheet(name, [["Key", "Count"], *rows]))
    entries = words.listed([f'"{key}" and {count}' for key, count in rows])
    draft.say(
        f'Add a sheet after the sheet "Stock" in {path} and name it {said}. Its row 1 is "Key" '
        f'and "Count"; below follow {entries}. Save it.',
        f'In {path}, insert a new sheet {said} behind "Stock". Fill columns A and B from row 1 on '
        f'with: "Key" and "Count", {entries}. Save the workbook.',
    )


def bold_head(draft: Draft) -> None:
    """Make cells bold or italic."""
    rows = _goods(draft)
    path, first = _add(draft, rows)
    look = draft.one(("bold", "italic"))
    index = draft.rng.randint(1, len(rows) - 1)
    row, said = draft.one(
        (
            (0, "the title row"),
            (index, f"the whole row of {rows[index][0]}"),
        )
    )
    if draft.level == 1:
        row, said = 0, "the titles in row 1"
    references = {f"{column(at)}{row + 1}" for at in range(3)}
    if draft.level >= 3:
        other = draft.rng.randint(1, len(rows) - 1)
        references |= {f"A{other + 1}"}
        said += f" and the cell A{other + 1}"
    cells = {key: replace(first.cells[key], **{look: True}) for key in references}
    _expect(draft, path, first.with_cells(cells), looks=("bold", "italic"))
    draft.say(
        f"In {path}, set {said} in {look} type. Change no other cell, and save.",
        f"Make {said} {look} in {path}, and nothing else. Save the file.",
        f"Format {said} of {path} as {look}. Keep the xlsx format when saving.",
    )
    then_log(draft)


def count_matches(draft: Draft) -> None:
    """Count or add up the rows that match, by formula."""
    people = words.full_names(draft.rng, 4)
    count = draft.at(6, 10, 16, 24)
    rows: list[Row] = [["Seller", "City", "Sales"]]
    for n in range(count):
        rows.append([people[0] if n < 2 else draft.one(people), draft.one(words.CITIES),
                     draft.rng.randint(100, 999)])  # fmt: skip
    rows[1:] = draft.some(rows[1:], count)
    path, first = _add(draft, rows)
    person = people[0]
    hits = [int(str(row[2])) for row in rows[1:] if row[0] == person]
    is_sum = draft.level >= 2
    place = f"{draft.one(list('EFG'))}{draft.rng.randint(2, 12)}"
    formula = f'=COUNTIF(A2:A{count + 1},"{person}")'
    if is_sum:
        formula = f'=SUMIF(A2:A{count + 1},"{person}",C2:C{count + 1})'
    said = told(draft, "seller", person, words.full_names(draft.rng, 8), is_named=False)
    value = sum(hits) if is_sum else len(hits)
    _expect(draft, path, first.with_cells({place: Cell(value=value, formula=formula)}))
    what = "the sum of the sales" if is_sum else "the number of rows"
    draft.say(
        f"In cell {place} of {path}, calculate by formula {what} of {said}. Save it.",
        f"Put a formula into {place} of {path} that gives {what} of {said}, and save.",
        f"Let {place} in {path} show {what} of {said}, calculated from the table by a formula. "
        "Save as xlsx.",
    )


def export_csv(draft: Draft) -> None:
    """Save a sheet as CSV."""
    rows = _goods(draft)
    path, _ = _add(draft, rows)
    new = draft.path("csv", draft.at("Documents", "Documents", "Downloads", "Downloads"))
    draft.add("Downloads/readme.txt", "Downloads go here.\n")
    name = new.rpartition("/")[2]
    others = [f"{stem}-{n}.csv" for n, stem in enumerate(words.STEMS, 41)]
    said = told(draft, "file name", name, others) if draft.level == 4 else name
    expect(draft, Text(path=new, text="\n".join(",".join(map(str, row)) for row in rows)))
    folder = new.rpartition("/")[0]
    draft.say(
        f"Export the table of {path} as comma separated CSV into the folder {folder}, under the "
        f"name {said}.",
        f"Save a CSV copy of {path}, with commas and UTF-8, in the folder {folder} as {said}.",
        f"Convert {path} to a CSV file with commas between the values. Its folder is {folder}, "
        f"its name {said}.",
    )


def insert_column(draft: Draft) -> None:
    """Insert a column between others."""
    rows = _goods(draft, 3, 4, 6, 8)
    path, _ = _add(draft, rows)
    title = draft.one(words.PLAIN).capitalize()
    values = [draft.rng.randint(100, 999) for _ in rows[1:]]
    at = draft.at(1, 1, 2, 2)
    final = [
        [*row[:at], value, *row[at:]] for row, value in zip(rows, [title, *values], strict=True)
    ]
    said = told(draft, "title", title, [word.capitalize() for word in words.PLAIN])
    _expect(draft, path, sheet("Stock", final))
    shown = words.listed([str(value) for value in values])
    draft.say(
        f'Insert a new column between "{_HEAD[at - 1]}" and "{_HEAD[at]}" in {path}. Its title is '
        f"{said}; the values below are {shown}, from top to bottom. Save it.",
        f'In {path}, a column is missing right of "{_HEAD[at - 1]}" and left of "{_HEAD[at]}". '
        f"Insert it, with {said} as its title and then, row by row, {shown}. Save the file.",
    )


def freeze_head(draft: Draft) -> None:
    """Freeze rows or columns, and correct a value."""
    rows = _goods(draft, 6, 12, 16, 20)
    path, _ = _add(draft, rows)
    frozen, said = draft.one(
        (("A2", "the first row"), ("B1", "the first column"),
         ("B2", "the first row and the first column"))
    )  # fmt: skip
    changed = [list(row) for row in rows]
    index, value = draft.rng.randint(1, len(rows) - 1), draft.rng.randint(100, 9999)
    changed[index][2] = value
    _expect(draft, path, replace(sheet("Stock", changed), frozen=frozen), looks=("frozen",))
    number = _number(draft, value)
    draft.say(
        f"In {path}, freeze {said} so that scrolling leaves it in place. Also set the quantity of "
        f"{rows[index][0]} to {number}. Save it.",
        f"Make {said} of {path} stay visible while scrolling (freeze it), and change the quantity "
        f"of {rows[index][0]} to {number}. Save the file.",
    )


def format_numbers(draft: Draft) -> None:
    """Show a column with two decimals or as percentages, by number format."""
    rows = _goods(draft)
    fractions = [n / 100 for n in draft.some(list(range(3, 97)), len(rows) - 1)]
    for row, fraction in zip(rows[1:], fractions, strict=True):
        row[2] = fraction
    rows[0] = ["Item", "Price", "Share"]
    path, first = _add(draft, rows)
    letter, name, form, said = draft.one(
        (
            ("B", "Price", "0.00", "with two decimals (0.00)"),
            ("C", "Share", "0%", "as percentages without decimals (0%)"),
            ("C", "Share", "0.00%", "as percentages with two decimals (0.00%)"),
        )
    )
    cells = {
        f"{letter}{n}": replace(first.cells[f"{letter}{n}"], number_format=form)
        for n in range(2, len(rows) + 1)
    }
    place, value = f"E{draft.rng.randint(2, 9)}", draft.rng.randint(100, 9999)
    cells[place] = Cell(value=value)
    _expect(draft, path, first.with_cells(cells), looks=("number_format",))
    number = _number(draft, value)
    draft.say(
        f'Format the numbers in the column "{name}" of {path} {said}. Then type {number} into '
        f"{place}, and save.",
        f'In {path}, show the numbers of "{name}" {said}, without changing the values. Also enter '
        f"{number} in {place}. Save it.",
    )


FAMILIES = families(
    "calc",
    enter_values,
    correct_value,
    add_row,
    delete_rows,
    summarize_column,
    multiply_columns,
    sort_rows,
    rename_sheet,
    add_sheet,
    bold_head,
    count_matches,
    export_csv,
    insert_column,
    freeze_head,
    format_numbers,
)
