"""Plans for tasks of drag and drop, and of selecting text with the mouse."""

import math
import re
from collections.abc import Iterator

from envkit_actions import Action, ActionKind
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Element, Page, Point


def box_into_box(page: Page) -> Iterator[Action]:
    """Drag the small box into the large one, moving the large one first if it would be covered."""
    small, large = page.one("#draggableSmall"), page.one("#draggableLarge")
    if not _encloses(large, small):
        yield moves.drag(page, small.point or small.middle, large.middle)
    yield from moves.submit(page)


def _encloses(large: Element, small: Element) -> bool:
    beside = small.box[0] - large.box[0], small.box[1] - large.box[1]
    room = large.box[2] - small.box[2], large.box[3] - small.box[3]
    return all(2 < at < most - 2 for at, most in zip(beside, room, strict=True))


_PLACES = {"top": 0, "bottom": -1}


def list_entry(page: Page) -> Iterator[Action]:
    """Drag a list entry to the position in the goal."""
    rows = page.all("#sortable li")
    name, where = re.findall(r"Drag (\S+) (.*)\.", page.goal)[0]
    now = next(place for place, row in enumerate(rows) if row.text == name)
    number = re.search(r"(\d)\w\w position", where)
    if number is not None:
        target = int(number.group(1)) - 1
    elif "by one" in where:
        target = now + (1 if "down" in where else -1)
    else:
        target = _PLACES[where.removeprefix("to the ")] % len(rows)
    yield _to_place(page, rows, now, target)


def _to_place(page: Page, rows: list[Element], now: int, target: int) -> Action:
    """Drag a list entry over another one, past its middle."""
    x, y = rows[target].middle
    height = rows[target].box[3]
    return moves.drag(
        page, rows[now].middle, (x, y + (height / 4 if target > now else -height / 4))
    )


def grid_entry(page: Page) -> Iterator[Action]:
    """Carry a grid entry until the gap for it is at the target."""
    name, where = re.findall(r"Drag (\S+) (.*)\.", page.goal)[0]
    entries = page.all("#sortable li")
    gap = next((entry for entry in entries if "ui-sortable-placeholder" in entry.classes), None)
    if not page.performed:
        held = next(entry for entry in entries if entry.text == name)
        yield moves.hold(page, held.middle)
    steps = [action for action in page.performed if action.kind is ActionKind.MOVE]
    start = page.performed[0]
    target = _grid_target(_place_of(page, start), where)
    resting = [entry for entry in entries if "ui-sortable-helper" not in entry.classes]
    if gap is not None and resting.index(gap) == target:
        yield moves.let_go()
    # The grid shifts when the pointer crosses an entry in the gap's direction of travel.
    x, y = _grid_middle(target)
    side = -5 if len(steps) % 2 == 0 else 5
    if gap is not None and resting.index(gap) > target:
        side = -side
    yield moves.move(page, (x + side, y + side))


_GRID_START, _GRID_STEP = (27.0, 77.0), 46.0
"""Middle of the first entry of the page drag-items-grid, and the step to the next."""


def _grid_middle(place: int) -> Point:
    return _GRID_START[0] + place % 3 * _GRID_STEP, _GRID_START[1] + place // 3 * _GRID_STEP


def _place_of(page: Page, start: Action) -> int:
    """Return the grid position where the mouse was pressed."""
    assert start.x is not None
    assert start.y is not None
    x, y = start.x / page.scale, start.y / page.scale
    return min(range(9), key=lambda place: math.dist((x, y), _grid_middle(place)))


def _grid_target(now: int, where: str) -> int:
    steps = {"up by one": -3, "down by one": 3, "left by one": -1, "right by one": 1}
    if where in steps:
        return now + steps[where]
    words = where.removeprefix("to the ").split()
    row = {"top": 0, "center": 1, "bottom": 2}[words[0]]
    column = {"left": 0, "center": 1, "right": 2}[words[-1]]
    return 3 * row + column


def sort_numbers(page: Page) -> Iterator[Action]:
    """Drag the smallest misplaced number up to its place."""
    rows = page.all("#sortable li")
    numbers = [int(row.text) for row in rows]
    for place in range(len(rows)):
        least = min(range(place, len(rows)), key=lambda at: numbers[at])
        if numbers[least] != numbers[place]:
            yield _to_place(page, rows, least, place)
    yield from moves.submit(page)


def highlight(page: Page) -> Iterator[Action]:
    """Select a paragraph's text by dragging over it."""
    place = re.search(r"the (\d)\w\w paragraph", page.goal)
    text = page.one("#randomText")
    paragraph = page.all("p", text)[int(place.group(1)) - 1] if place else text
    wanted, have = (re.sub(r"\s", "", found) for found in (paragraph.text, page.selected))
    if wanted != have:
        yield moves.drag(page, *_ends(paragraph))
    yield from moves.submit(page)


def _ends(element: Element) -> tuple[Point, Point]:
    assert element.text_ends is not None
    left, top, right, bottom = element.text_ends
    return (left + 0.6, top), (right + 2, bottom)


def copy(page: Page) -> Iterator[Action]:
    """Copy a text area with Ctrl+A and Ctrl+C and paste it into the field."""
    place = re.search(r"the (\d)\w\w text area", page.goal)
    source = page.one(f"#text-{place.group(1)}") if place else page.one("#to-copy")
    target = page.one("#answer-input")
    copied = any(action.keys == ("ctrl", "c") for action in page.performed)
    if not copied:
        if not source.focused:
            yield from moves.reach_and_press(page, source)
        if source.selection != (0, len(source.value or "")):
            yield moves.key("ctrl", "a")
        yield moves.key("ctrl", "c")
    if target.value != source.value:
        if not target.focused:
            yield moves.press(page, target)
        yield moves.key("ctrl", "v")
    yield from moves.submit(page)


def resize(page: Page) -> Iterator[Action]:
    """Drag the corner of a text area."""
    direction = -1 if "smaller" in page.goal else 1
    if not any(action.path for action in page.performed):
        left, top, width, height = page.one("#tt").box
        x, y = left + width - 3, top + height - 3
        step = direction * 10
        end = (x + step, y) if "width is" in page.goal else (x, y + step)
        yield moves.drag(page, (x, y), end)
    yield from moves.submit(page)


def scroll_to_end(page: Page) -> Iterator[Action]:
    """Scroll a text area to its bottom or top by keyboard."""
    area = page.one("#text-area")
    at, content, window = area.scroll
    is_there = at + window >= content - 2 if "the bottom" in page.goal else at <= 0
    if not is_there:
        down = 300 if "the bottom" in page.goal else -300
        yield moves.turn_wheel(page, area.middle, down)
    yield from moves.submit(page)


def agreement(page: Page) -> Iterator[Action]:
    """Scroll to the end of the text, type the name, press the button."""
    if "Scroll" not in page.goal:
        yield moves.press(page, page.one("#cancel"))
    name, button = page.quoted()
    if "disabled" in page.one("#agree").attributes:
        yield moves.turn_wheel(page, page.one("#text-area").middle, 300)
    yield from moves.fill(page, page.one("#name"), name)
    yield moves.press(page, page.with_text("button", button))
