"""Tasks about numbers and time: a calculator, a calendar, a download."""

import random
from collections.abc import Iterator

from envkit_actions.action import Action, ActionKind
from envkit_desktop import moves
from envkit_desktop.desktop import Desktop, Event
from envkit_desktop.families.family import OVER, Data, Family
from envkit_desktop.families.words import MONTHS, file_names
from envkit_desktop.layout import MARGIN, clutter, frame, label, place
from envkit_desktop.widgets import Button, Label, Progress, Window

_KEYS = ("789/", "456*", "123-", "C0=+")
_LONGEST = 24
"""Characters that the display shows."""


def evaluate(text: str) -> int | None:
    """Evaluate digits and + - * / from left to right.

    Returns None if the text has anything else, or a division leaves a remainder.
    """
    total, operator, number = 0, "+", ""
    for character in [*text, "="]:
        if character.isdigit():
            number += character
            continue
        if not number:
            return None
        value = int(number)
        if operator == "/" and (value == 0 or total % value):
            return None
        total = {
            "+": total + value,
            "-": total - value,
            "*": total * value,
            "/": total // value if value else 0,
        }[operator]
        operator, number = character, ""
    return total


class Calculate(Family):
    """Calculate a result with a calculator and leave it on the display."""

    name = "calculate"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw a term."""
        count, size = (2, 2, 3, 3, 4)[level - 1], (9, 99, 99, 999, 999)[level - 1]
        term = str(rng.randint(1, size))
        for _ in range(count - 1):
            operator = rng.choice("+-" if level < 3 else "+-*")
            term += operator + str(rng.randint(2, 9 if operator == "*" else size))
        return {
            "goal": f"Work out {term} from left to right with the calculator until its display "
            "shows the result. Then end the task.",
            "term": term,
            "clutter": max(0, level - 2),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the calculator."""
        window = frame(desk, rng, "calculator", "Calculator", 220, 210)
        display = label(window, "0", MARGIN, 8, desk.type_pixels, "display")
        display.width = 220 - 2 * MARGIN
        for row, keys in enumerate(_KEYS):
            for column, text in enumerate(keys):
                x, y = MARGIN + column * 50, 40 + row * 41
                place(window, Button(name=text, text=text), x, y, 44, 34)
        desk.model |= {"typed": "", "result": None}
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Handle a key."""
        if event.kind != "clicked" or event.window.name != "calculator":
            return False
        typed: str = desk.model["typed"]
        if event.source.name == "=":
            value = evaluate(typed)
            desk.model |= {
                "result": value,
                "typed": "" if value is None or value < 0 else str(value),
            }
            desk.say("calculator", "display", "Error" if value is None else str(value))
            return False
        typed = "" if event.source.name == "C" else (typed + event.source.name)[:_LONGEST]
        desk.model |= {"typed": typed, "result": None}
        desk.say("calculator", "display", typed or "0")
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether the display shows a calculated result."""
        return [desk.model["result"] == evaluate(data["term"])]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Press the keys in order."""
        if all(self.goals(desk, data)):
            return
        typed: str = desk.model["typed"]
        rest = data["term"][len(typed) :]
        text = "C" if not data["term"].startswith(typed) else rest[0] if rest else "="
        yield from moves.press(desk, desk.find(Button, "calculator", text))


_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Days per month of 2027, not a leap year, which begins on a Friday."""
_FIRST_WEEKDAY = 4


def _weekday(month: int) -> int:
    """Return the weekday of a month's first day, Monday being 0."""
    return (_FIRST_WEEKDAY + sum(_DAYS[:month])) % 7


class PickDate(Family):
    """Turn to a month of a calendar and press a day."""

    name = "pick_date"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw a date; from level 4 on it is the n-th weekday of the month."""
        start = rng.randrange(12)
        steps = (1, 2, 3, 5, 6)[level - 1]
        month = rng.choice([month for month in (start - steps, start + steps) if 0 <= month < 12])
        day = rng.randint(1, _DAYS[month])
        said = f"{MONTHS[month]} {day}"
        if level >= 4:
            weekday, nth = rng.randrange(7), rng.randrange(4)
            day = 1 + (weekday - _weekday(month)) % 7 + 7 * nth
            ordinal = ("first", "second", "third", "fourth")[nth]
            said = f"the {ordinal} {_WEEKDAYS[weekday]} of {MONTHS[month]}"
        return {
            "goal": f"In the calendar of 2027, choose {said}.",
            "start": start,
            "month": month,
            "day": day,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the calendar."""
        window = frame(desk, rng, "calendar", "Calendar", 7 * 40 + 2 * MARGIN, 270)
        place(window, Button(name="<", text="<"), MARGIN, 8, 34)
        place(window, Button(name=">", text=">"), window.client[0] - MARGIN - 34, 8, 34)
        title = label(window, "", MARGIN + 80, 8, desk.type_pixels, "title")
        title.width = 140
        for column, name in enumerate(_WEEKDAYS):
            label(window, name[:2], MARGIN + 10 + column * 40, 38, desk.type_pixels)
        desk.model["month"] = data["start"]
        self._show_month(desk, window)
        clutter(desk, rng, data["clutter"])

    def _show_month(self, desk: Desktop, window: Window) -> None:
        """Show the days of the current month."""
        month = int(desk.model["month"])
        desk.set_focus(None)
        desk.capture = None
        window.children = [child for child in window.children if not child.name.isdigit()]
        desk.find(Label, "calendar", "title").text = f"{MONTHS[month]} 2027"
        for day in range(1, _DAYS[month] + 1):
            row, column = divmod(day - 1 + _weekday(month), 7)
            day_button = Button(name=str(day), text=str(day))
            place(window, day_button, MARGIN + column * 40, 64 + row * 33, 36, 28)

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Turn the page, or select the day."""
        if event.kind != "clicked" or event.window.name != "calendar":
            return False
        if event.source.name.isdigit():
            desk.model |= {"chosen": [desk.model["month"], int(event.source.name)], OVER: True}
        else:
            step = 1 if event.source.name == ">" else -1
            desk.model["month"] = max(0, min(11, desk.model["month"] + step))
            self._show_month(desk, event.window)
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether month and day are right."""
        month, day = desk.model.get("chosen", (None, None))
        return [month == data["month"], day == data["day"]]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Turn to the month, then press the day."""
        away = data["month"] - desk.model["month"]
        text = str(data["day"]) if away == 0 else ">" if away > 0 else "<"
        yield from moves.press(desk, desk.find(Button, "calendar", text))


_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class WaitForDownload(Family):
    """Start a download, wait until it is complete, then open the file; opening it early fails."""

    name = "wait_for_download"

    def draw(self, rng: random.Random, level: int) -> Data:
        """Draw files and their download times."""
        files = file_names(rng, (1, 2, 3, 4, 6)[level - 1], alike=level >= 3)
        seconds = {name: rng.randint(3 * level, 12 * level) for name in files}
        return {
            "goal": f"Download {files[0]}, wait until it is complete, and then open it.",
            "files": rng.sample(files, len(files)),
            "target": files[0],
            "seconds": seconds,
            "clutter": max(0, level - 3),
        }

    def build(self, desk: Desktop, data: Data, rng: random.Random) -> None:
        """Open the list of files."""
        files: list[str] = data["files"]
        window = frame(desk, rng, "downloads", "Downloads", 440, len(files) * 34 + 20)
        for row, name in enumerate(files):
            y = 10 + row * 34
            label(window, name, MARGIN, y, desk.type_pixels)
            bar = Progress(name=f"bar {name}", duration=1e9)
            place(window, bar, 120, y, 130)
            place(window, Button(name=f"get {name}", text="Download"), 258, y, 94)
            place(window, Button(name=f"open {name}", text="Open"), 358, y, 70)
        clutter(desk, rng, data["clutter"])

    def react(self, desk: Desktop, event: Event, data: Data) -> bool:
        """Start a download, or open a finished one."""
        if event.kind != "clicked" or event.window.name != "downloads":
            return False
        verb, _, name = event.source.name.partition(" ")
        bar = desk.find(Progress, "downloads", f"bar {name}")
        if verb == "get" and bar.duration > 1e8:
            bar.started, bar.duration = desk.clock, float(data["seconds"][name])
        elif verb == "open":
            desk.model |= {"opened": name, "was_complete": bar.percent == 100, OVER: True}
        return False

    def goals(self, desk: Desktop, data: Data) -> list[bool]:
        """Return whether the right file was opened, and whether it was complete."""
        return [desk.model.get("opened") == data["target"], bool(desk.model.get("was_complete"))]

    def plan(self, desk: Desktop, data: Data) -> Iterator[Action]:
        """Start, wait, open."""
        bar = desk.find(Progress, "downloads", f"bar {data['target']}")
        if bar.duration > 1e8:
            yield from moves.press(desk, desk.find(Button, "downloads", f"get {data['target']}"))
        if bar.percent < 100:
            yield Action(kind=ActionKind.WAIT, seconds=10)
        yield from moves.press(desk, desk.find(Button, "downloads", f"open {data['target']}"))
