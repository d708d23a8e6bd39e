"""Plans for tasks of boxes, rings, lists, sliders, calendars and other choices."""

import re
from collections.abc import Iterator
from itertools import repeat

from envkit_actions import Action
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Element, Page

# The groups of the page click-checkboxes-soft of MiniWoB++ 1.1.0.
_ALIKE = (
    "big large huge enormous gigantic",
    "small tiny little mini petite",
    "red scarlet crimson vermillion",
    "happy cheerful joyful gleeful delighted",
    "sad unhappy sorrowful miserable tragic",
    "angry mad furious irritated",
    "evil wicked immoral sinful corrupt depraved",
    "wrong incorrect mistaken erroneous",
    "real genuine actual",
    "strange odd peculiar unusual weird",
    "stop cease halt end finish",
    "scared terrified panicked fearful frightened afraid",
    "quiet calm peaceful serene mild",
    "old aged archaic",
    "love like adore favor",
    "kill murder assassinate",
    "keep retain preserve sustain maintain",
    "hide conceal camouflage",
    "hate despise loathe detest dislike",
    "funny humorous amusing comical laughable",
    "fat fleshy plump chubby",
    "stupid dumb dull unwise",
    "delicious savory delectable appetizing",
    "cut slice carve chop",
    "brave courageous fearless",
    "begin start initiate launch",
    "answer reply response",
    "television televisions TV TVs",
    "house home houses homes",
    "fire flame fires flames",
    "pig pork swine",
    "rabbit rabbits bunny bunnies",
    "car cars automobile automobiles vehicle vehicles",
    "water",
)


def boxes(page: Page) -> Iterator[Action]:
    """Check the boxes that the goal names."""
    text = page.asked(r"Select (.*) and click Submit")
    names = set[str]() if text == "nothing" else set(text.split(", "))
    yield from _check_labels(page, names)


def alike_boxes(page: Page) -> Iterator[Action]:
    """Check the boxes whose words are synonyms of those in the goal."""
    asked = page.asked(r"similar to (.*) and click Submit").split(", ")
    groups = [group.split() for group in _ALIKE]
    yield from _check_labels(
        page, {word for group in groups if set(group) & set(asked) for word in group}
    )


def _check_labels(page: Page, names: set[str]) -> Iterator[Action]:
    for label in page.all("label"):
        box = page.first("input", label)
        if box is not None:
            yield from moves.check(page, box, wanted=label.text in names)
    yield from moves.submit(page)


_DIGITS = (
    "0110 1001 1001 1001 1001 1001 0110",
    "0010 0110 0010 0010 0010 0010 0010",
    "0110 1001 1001 0010 0100 1000 1111",
    "0110 1001 0001 0110 0001 1001 0110",
    "1000 1010 1010 1111 0010 0010 0010",
    "1111 1000 1000 1110 0001 1001 0110",
    "0110 1001 1000 1110 1001 1001 0110",
    "1111 1001 0001 0010 0010 0100 0100",
    "0110 1001 1001 0110 1001 1001 0110",
    "0110 1001 1001 0111 0001 1001 0110",
)
"""Rows of boxes, as in the page's own example (page number-checkboxes)."""


def digit_boxes(page: Page) -> Iterator[Action]:
    """Draw a digit in boxes."""
    dots = _DIGITS[int(page.quoted()[0])].replace(" ", "")
    for box, dot in zip(page.all("#checkboxes input"), dots, strict=True):
        yield from moves.check(page, box, wanted=dot == "1")
    yield from moves.submit(page)


def list_item(page: Page) -> Iterator[Action]:
    """Choose from a closed list by keyboard, since its popup is not part of the page."""
    name = page.asked(r"(?:Select|Choose) (.*) from the (?:list|dropdown)")
    yield from choose(page, page.one("select"), name)
    yield from moves.submit(page)


def choose(page: Page, field: Element, name: str) -> Iterator[Action]:
    """Choose an item of a closed list with the arrow keys."""
    options = page.all("option", field)
    now = next((number for number, option in enumerate(options) if option.checked), 0)
    wanted = next(number for number, option in enumerate(options) if option.text == name)
    if now == wanted:
        return
    if not field.focused:
        yield moves.key("tab")
    yield from repeat(moves.key("down" if now < wanted else "up"), abs(wanted - now))


def scroll_list(page: Page) -> Iterator[Action]:
    """Select items of an open list: the first by a click, the next with Ctrl held."""
    names = page.asked(r"Select (.*) from the scroll list").split(", ")
    options = page.all("option")
    chosen = [option for option in options if option.checked]
    for option in options:
        if option.text in names and not option.checked:
            yield from moves.reach(page, option)
            yield moves.press(page, option, keys=("ctrl",) if chosen else ())
    yield from moves.submit(page)


def slider(page: Page) -> Iterator[Action]:
    """Move the slider to the number with the arrow keys."""
    number = int(page.asked(r"Select (-?\d+) with"))
    yield from _slide(page, page.one("#slider"), page.one("#val"), number)
    yield from moves.submit(page)


def three_sliders(page: Page) -> Iterator[Action]:
    """Move three sliders to their numbers."""
    numbers = [int(found) for found in re.findall(r"\d+", page.asked(r"(\[.*\])"))]
    for place, number in enumerate(numbers, start=1):
        yield from _slide(page, page.one(f"#slider-{place}"), page.one(f"#val-{place}"), number)
    yield from moves.submit(page)


def slider_and_box(page: Page) -> Iterator[Action]:
    """Move the slider and check the n-th box, as the goal says."""
    number, place = (int(found) for found in re.findall(r"-?\d+", page.goal)[:2])
    yield from _slide(page, page.one("#slider"), page.one("#val"), number)
    for box in page.all("#area input"):
        yield from moves.check(page, box, wanted=box.id == f"checkbox-{place}")
    yield from moves.submit(page)


def _slide(page: Page, rail: Element, shown: Element, number: int) -> Iterator[Action]:
    """Press the arrow keys on a handle."""
    missing = number - int(shown.text)
    if missing == 0:
        return
    handle = page.one(".ui-slider-handle", rail)
    if not handle.focused:
        yield moves.press(page, handle)
    yield from repeat(moves.key("right" if missing > 0 else "left"), abs(missing))


def ring_and_field(page: Page) -> Iterator[Action]:
    """Check the n-th radio button and type a number in the n-th field."""
    ring, field = (int(found) for found in re.findall(r"(\d)(?:st|nd|rd)", page.goal))
    rings = page.all("#area input")[:3]
    yield from moves.check(page, rings[ring - 1], wanted=True)
    yield from moves.fill(page, page.one(f"#input-{field}"), page.quoted()[0])
    yield from moves.submit(page)


def dropdown_and_button(page: Page) -> Iterator[Action]:
    """Choose from a drawn list, then press a button."""
    name = page.asked(r"Choose (.*) from the dropdown")
    if page.one(".selectric .label").text != name:
        item = page.with_text(".selectric-items li", name)
        if not item.is_shown:
            yield moves.press(page, page.one(".selectric"))
        yield from moves.reach_and_press(page, item)
    yield moves.press(page, page.with_text("#buttons button", page.quoted()[0]))


def spinner(page: Page) -> Iterator[Action]:
    """Press the arrows of the spinner."""
    number = int(page.asked(r"Select (-?\d+) with"))
    missing = number - int(page.one("#spinner").value or 0)
    if missing:
        arrow = "up" if missing > 0 else "down"
        yield moves.press(page, page.one(f".ui-spinner-{arrow}"))
    yield from moves.submit(page)


def odd_or_even(page: Page) -> Iterator[Action]:
    """Mark every number."""
    for row in page.all("#numbers .row"):
        is_odd = int(page.one(".display-number", row).text) % 2 == 1
        button = page.one(".odd" if is_odd else ".even", row)
        if "selected" not in button.classes:
            yield moves.press(page, button)
    yield moves.press(page, page.one("#submit"))


def greatest(page: Page) -> Iterator[Action]:
    """Turn over the card with the greatest number."""
    cards = page.all(".card")
    best = max(cards, key=lambda card: int(card.text))
    if "hidden" in best.classes:
        yield moves.press(page, best)
    yield moves.press(page, page.one("#submit"))


def generated_number(page: Page) -> Iterator[Action]:
    """Draw numbers until one fits."""
    shown = page.one("#display-number").text
    if shown == "-" or not _fits_goal(page.goal, int(shown)):
        yield moves.press(page, page.one("#generate"))
    yield moves.press(page, page.one("#submit"))


def _fits_goal(goal: str, number: int) -> bool:
    bound = re.search(r"(less|greater) than (\d+)", goal)
    if bound is not None:
        limit = int(bound.group(2))
        return number < limit if bound.group(1) == "less" else number > limit
    return (number % 2 == 1) == ("odd" in goal)


def autocomplete(page: Page) -> Iterator[Action]:
    """Type the start of an item and choose the match from the list."""
    start, *rest = page.quoted()
    end = rest[0] if rest else ""
    field = page.one("#tags")
    value = field.value or ""
    if not (len(value) > len(start) and value.startswith(start) and value.endswith(end)):
        items = page.shown(".ui-autocomplete li div")
        fitting = [
            item for item in items if item.text.startswith(start) and item.text.endswith(end)
        ]
        if fitting and value == start:
            yield from moves.reach_and_press(page, fitting[0])
        yield from moves.fill(page, field, start)
    yield from moves.submit(page)


_MONTHS: str = """
January February March April May June July August September October November December
"""


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
        shown = _MONTHS.split().index(title.text) + 1
        if shown != month:
            arrow = "prev" if shown > month else "next"
            yield moves.press(page, page.one(f".ui-datepicker-{arrow}"))
        yield moves.press(page, page.with_text(".ui-datepicker-calendar td a", str(day)))
    yield from moves.submit(page)
