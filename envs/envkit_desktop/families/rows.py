"""Tasks with rows: an item in a long list, a cell in a table, the first of some, several rows."""

import random
from collections.abc import Iterator

from envkit_actions.action import Action, ActionKind
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.families.family import (
    ANSWER,
    ANSWER_FIELD,
    OVER,
    Data,
    Family,
    SubmittedTask,
    is_feasible,
    or_fail,
)
from envkit_desktop.families.words import CITIES, file_names, full_names, listed, look_alikes
from envkit_desktop.layout import MARGIN, button_width, clutter, frame, label, place, widest
from envkit_desktop.widgets import Button, ListBox, Table, TextField
from envkit_desktop.widgets.scrolling import BAR
from envkit_desktop.widgets.tables import HEADER
from envkit_desktop.widgets.widget import ROW, as_tuples


class PickFromList(SubmittedTask):
    """Choose a name in a scrolling list; some names are missing."""

    name = "pick_from_list"
    submit = "Select"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw names; from level 3 on they resemble the target."""
        count = (9, 14, 24, 40, 60)[level - 1]
        (target,) = full_names(rng, 1)
        names = look_alikes(rng, target, count) if level >= 3 else full_names(rng, count)
        feasible = is_feasible(rng, level)
        target = target if target in names else rng.choice(names)
        rng.shuffle(names)
        if not feasible:
            names.remove(target)
        rest = " If the name is missing, end the task with failure." if level >= 3 else ""
        return {
            "goal": f"Choose {target} in the list and press Select.{rest}",
            "names": sorted(names) if level <= 3 else names,
            "target": target,
            "feasible": feasible,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the list."""
        names: list[str] = data["names"]
        width = widest(names, desk.type_pixels) + BAR + 30
        window = frame(desk, rng, "main", "People", max(200, width + 2 * MARGIN), 270)
        rows = ListBox(name="names", items=tuple(names))
        place(window, rows, MARGIN, 10, window.client[0] - 2 * MARGIN, 10 * ROW + 2)
        self.finish(desk, window, data, rng)

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether the name is chosen, and whether it was submitted."""
        rows = desk.find(ListBox, "main", "names")
        chosen = rows.items[rows.selected] if rows.selected >= 0 else ""
        return [chosen == data["target"], self.sent(desk)]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Scroll, choose, submit."""
        rows = desk.find(ListBox, "main", "names")
        yield from moves.row(desk, rows, rows.items.index(data["target"]))
        yield from self.press_submit(desk)


def _table_width(columns: list[tuple[str, int]]) -> int:
    return sum(width for _, width in columns) + BAR


class LookUp(Family):
    """Answer with a cell of a scrolling table."""

    name = "look_up"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw people with ages, cities and rooms."""
        count = (5, 9, 20, 32, 48)[level - 1]
        (target,) = full_names(rng, 1)
        names = look_alikes(rng, target, count) if level >= 3 else [target, *full_names(rng, count)]
        names = list(dict.fromkeys(names))[:count]
        rng.shuffle(names)
        rows = [
            [name, rng.choice(CITIES), str(rng.randint(100, 499)), str(rng.randint(1000, 9999))]
            for name in names
        ]
        column = rng.choice((1, 2, 3) if level > 1 else (2, 3))
        answer = next(row[column] for row in rows if row[0] == target)
        feasible = is_feasible(rng, level)
        if not feasible:
            rows = [row for row in rows if row[0] != target]
        return {
            "goal": f"What is the {_COLUMNS[column].lower()} of {target}? Answer with it alone, "
            f"or write it into the field Answer and press Send.{or_fail(level)}",
            "rows": rows,
            "target": target,
            "answer": answer,
            "feasible": feasible,
            "clutter": max(0, level - 2),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the table."""
        rows: list[list[str]] = data["rows"]
        columns = [
            (title, widest([title + "xx", *(row[index] for row in rows)], desk.type_pixels) + 18)
            for index, title in enumerate(_COLUMNS)
        ]
        width = _table_width(columns)
        high = 10 * ROW + HEADER
        window = frame(desk, rng, "staff", "Staff", width + 2 * MARGIN, high + 56)
        table = Table(name="table", columns=tuple(columns), rows=as_tuples(rows))
        place(window, table, MARGIN, 10, width, high)
        made = label(window, ANSWER_FIELD, MARGIN, high + 20, desk.type_pixels)
        send = button_width("Send", desk.type_pixels)
        left = 2 * MARGIN + made.width
        place(window, TextField(name=ANSWER_FIELD), left, high + 20, width - left - send)
        place(window, Button(name="Send", text="Send"), MARGIN + width - send, high + 20, send)
        clutter(desk, rng, data["clutter"], above=int(data["clutter"] > 1))

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Record the text of the answer field."""
        if event.kind == "clicked" and event.source.name == "Send":
            desk.model |= {ANSWER: desk.find(TextField, "staff", ANSWER_FIELD).text, OVER: True}
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether the answer is the cell."""
        given = str(desk.model.get(ANSWER, ""))
        return [given.strip().strip(".").casefold() == data["answer"].casefold()]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Scroll to the row and choose it, then answer."""
        table = desk.find(Table, "staff", "table")
        index = [row[0] for row in table.rows].index(data["target"])
        yield from moves.row(desk, table, index)
        yield Action(kind=ActionKind.ANSWER, text=data["answer"])


_COLUMNS = ("Name", "City", "Room", "Phone")


class SortAndOpen(Family):
    """Open the row with the largest or smallest number by a double click."""

    name = "open_extreme_row"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw rows of goods with distinct numbers."""
        count = 24  # at every level: any double click opens some row
        names = rng.sample(CITIES, count)
        spread = (900, 600, 200, 80, 60)[level - 1]
        values = [rng.sample(range(100, 100 + spread), count) for _ in range(2)]
        column, is_largest = rng.choice((1, 2)), rng.random() < 0.5
        numbers = values[column - 1]
        best = max(numbers) if is_largest else min(numbers)
        kind = "largest" if is_largest else "smallest"
        return {
            "goal": f"Open the row with the {kind} value of {_FIGURES[column]} by a double click, "
            "and no other row. Then end the task.",
            "rows": [[n, str(a), str(b)] for n, a, b in zip(names, *values, strict=True)],
            "column": column,
            "is_largest": is_largest,
            "target": names[numbers.index(best)],
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the table."""
        columns = [(title, 110) for title in _FIGURES]
        width = _table_width(columns)
        window = frame(desk, rng, "figures", "Figures", width + 2 * MARGIN, 6 * ROW + HEADER + 20)
        table = Table(name="table", columns=tuple(columns), rows=as_tuples(data["rows"]))
        place(window, table, MARGIN, 10, width, 6 * ROW + HEADER)
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Record the rows that were opened."""
        if event.kind == "opened":
            desk.model.setdefault("opened", []).append(event.value)
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether exactly the right row was opened."""
        return [desk.model.get("opened") == [data["target"]]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Sort by the column, then open the first row."""
        if all(self.goals(desk, data)):
            return
        table = desk.find(Table, "figures", "table")
        if (table.sorted_by, table.is_descending) != (data["column"], data["is_largest"]):
            middle = table.column_middle(data["column"])
            yield from moves.press(desk, table, part=(middle - 20, 4, middle + 20, HEADER - 4))
        yield from moves.press_row(desk, table, 0, kind=ActionKind.DOUBLE_CLICK)


_FIGURES = ("Place", "Visits", "Sales")


_SHOWN = 10
"""Rows that the list shows at once."""


class SelectRows(SubmittedTask):
    """Choose several list rows: single ones by ctrl and, from level 3 on, a range by shift."""

    name = "select_rows"
    submit = "Open"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw rows and which of them to choose; from level 2 on some are chosen at the start."""
        count = (6, 10, 18, 28, 40)[level - 1]
        rows = full_names(rng, count) if rng.random() < 0.5 else file_names(rng, count)
        run_length = (0, 0, rng.randint(3, 6), rng.randint(4, 9), rng.randint(5, 12))[level - 1]
        first = rng.randrange(count - run_length + 1)
        run = list(range(first, first + run_length))
        free = [row for row in range(count) if not first - 1 <= row <= first + run_length]
        single = sorted(rng.sample(free, (2, 3, 1, 2, 3)[level - 1]))
        said = [rows[row] for row in single]
        if run:
            said.append(f"all rows from {rows[run[0]]} to {rows[run[-1]]}")
        start = sorted(rng.sample(range(count), level - 1))
        return {
            "goal": f"In the list choose {listed(said)}. Every other row must not be chosen. Ctrl "
            "or the right button adds a row or takes it away, Shift chooses all rows up to it. "
            "Then press Open.",
            "rows": rows,
            "wanted": sorted([*single, *run]),
            "start": start,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the window with the list."""
        rows: list[str] = data["rows"]
        width = max(200, widest(rows, desk.type_pixels) + BAR + 2 * MARGIN)
        high = min(_SHOWN, len(rows)) * ROW + 2
        window = frame(desk, rng, "main", "Choose", width + 2 * MARGIN, high + 56)
        start = tuple(data["start"])
        made = ListBox(name="rows", items=tuple(rows), is_multiple=True, chosen_rows=start)
        place(window, made, MARGIN, 10, width, high)
        self.finish(desk, window, data, rng)

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether exactly these rows are chosen, and whether the task was submitted."""
        rows = desk.find(ListBox, "main", "rows")
        return [list(rows.chosen_rows) == data["wanted"], self.sent(desk)]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Choose the longest run by a click and a shift-click, then each other row by ctrl."""
        rows, wanted = desk.find(ListBox, "main", "rows"), list[int](data["wanted"])
        chosen, run = set(rows.chosen_rows), max(_runs(wanted), key=len)
        if not chosen or chosen - {*wanted}:
            yield from moves.press_row(desk, rows, run[0])
        if chosen == {run[0]} != {*run} and rows.selected == run[0]:
            yield from moves.press_row(desk, rows, run[-1], keys=("shift",))
        for row in wanted:
            if row not in chosen:
                yield from moves.press_row(desk, rows, row, keys=("ctrl",))
        yield from self.press_submit(desk)


def _runs(rows: list[int]) -> list[list[int]]:
    """Return runs of consecutive rows, in order."""
    runs: list[list[int]] = []
    for row in rows:
        if runs and runs[-1][-1] == row - 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs
