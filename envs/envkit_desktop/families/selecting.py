"""Tasks that select several rows, with ctrl or shift, right clicks or keys."""

import random
from collections.abc import Iterator

from envkit_actions.action import Action
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop
from envkit_desktop.families.family import Data
from envkit_desktop.families.submitting import SubmittedTask
from envkit_desktop.families.words import file_names, full_names, listed
from envkit_desktop.layout import MARGIN, frame, place, widest
from envkit_desktop.widgets import ListBox
from envkit_desktop.widgets.scrolling import BAR
from envkit_desktop.widgets.widget import ROW

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
