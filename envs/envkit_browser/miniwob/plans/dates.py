"""Plans for tasks with a calendar to pick a date from."""

from collections.abc import Iterator
from typing import Final

from envkit_actions import Action
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Page

_MONTHS: Final = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def pick_date(page: Page) -> Iterator[Action]:
    """Open the calendar, turn to the month and press the day."""
    asked = page.asked(r"Select (\d+/\d+/\d+) as")
    month, day, _ = (int(part) for part in asked.split("/"))
    field = page.one("#datepicker")
    if field.value != asked:
        title = page.first(".ui-datepicker-month")
        if title is None or not title.is_shown:
            yield moves.press(page, field)
        assert title is not None
        shown = _MONTHS.index(title.text) + 1
        if shown != month:
            arrow = "prev" if shown > month else "next"
            yield moves.press(page, page.one(f".ui-datepicker-{arrow}"))
        yield moves.press(page, page.with_text(".ui-datepicker-calendar td a", str(day)))
    yield from moves.submit(page)
