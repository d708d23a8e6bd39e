"""Input moves on a page, the building blocks of plans.

Every move reads the current page and yields the actions still needed, or nothing once it is done. A
plan therefore covers everything up to the goal, and its first action is the next one.
"""

from collections.abc import Iterator
from typing import Final

from envkit_actions import Action, ActionKind
from envkit_browser.miniwob.page import Element, Page, Point
from envkit_browser.miniwob.tasks import HEIGHT, WIDTH

WHEEL = 100
"""Pixels of the page that the oracle scrolls at a time."""

_WINDOW: Final = (0.0, 0.0, float(WIDTH), float(HEIGHT))


def pixel(page: Page, point: Point) -> tuple[int, int]:
    """Return the screenshot pixel of a point of the page."""
    return int(point[0] * page.scale), int(point[1] * page.scale)


def press_at(page: Page, point: Point, *, keys: tuple[str, ...] = ()) -> Action:
    """Return a click at a point of the page, with keys held."""
    x, y = pixel(page, point)
    return Action(kind=ActionKind.CLICK, x=x, y=y, keys=keys)


def press(page: Page, element: Element, *, keys: tuple[str, ...] = ()) -> Action:
    """Return a click on an element.

    Raises:
        LookupError: No point of it is reachable.
    """
    if element.point is None:
        raise LookupError(f"{element.tag} {element.text!r} of {page.task!r} cannot be reached")
    return press_at(page, element.point, keys=keys)


def hold(page: Page, point: Point) -> Action:
    """Return a mouse press without a release."""
    x, y = pixel(page, point)
    return Action(kind=ActionKind.MOUSE_DOWN, x=x, y=y)


def let_go() -> Action:
    """Return a mouse release at the pointer."""
    return Action(kind=ActionKind.MOUSE_UP)


def move(page: Page, point: Point) -> Action:
    """Return a move of the pointer."""
    x, y = pixel(page, point)
    return Action(kind=ActionKind.MOVE, x=x, y=y)


def point_at(page: Page, element: Element) -> Action:
    """Return a move of the pointer onto an element."""
    x, y = pixel(page, element.point or element.middle)
    return Action(kind=ActionKind.MOVE, x=x, y=y)


def key(*keys: str) -> Action:
    """Return keys pressed together."""
    return Action(kind=ActionKind.KEY, keys=keys)


def write(text: str) -> Action:
    """Return text typed at the focus."""
    return Action(kind=ActionKind.TYPE, text=text)


def drag(page: Page, start: Point, *points: Point) -> Action:
    """Return a drag through points of the page."""
    x, y = pixel(page, start)
    path = tuple(pixel(page, point) for point in points)
    return Action(kind=ActionKind.DRAG, x=x, y=y, path=path)


def turn_wheel(page: Page, point: Point, down: float) -> Action:
    """Return a turn of the wheel over a point, in pixels of the page."""
    x, y = pixel(page, point)
    return Action(kind=ActionKind.SCROLL, x=x, y=y, dy=round(down * page.scale))


def is_pressing(action: Action) -> bool:
    """Return whether an action presses something, by mouse or by the Enter key."""
    return action.kind is ActionKind.CLICK or action.keys == ("enter",)


def fill(page: Page, field: Element, text: str) -> Iterator[Action]:
    """Replace the text of a field."""
    if field.value == text:
        return
    if not field.focused:
        yield from reach_and_press(page, field)
    if field.value and not _is_selected(page, field):
        yield key("ctrl", "a")
    yield write(text)


def _is_selected(page: Page, field: Element) -> bool:
    """Return whether a field is fully selected; number fields do not report it."""
    if field.selection is not None:
        return field.selection == (0, len(field.value or ""))
    return bool(page.performed) and page.performed[-1].keys == ("ctrl", "a")


def fill_and_submit(page: Page, selector: str, text: str) -> Iterator[Action]:
    """Replace the text of a field, then press the button that submits the task."""
    yield from fill(page, page.one(selector), text)
    yield from submit(page)


def check(page: Page, box: Element, *, wanted: bool) -> Iterator[Action]:
    """Set a checkbox or a radio button."""
    if box.checked != wanted:
        yield from reach_and_press(page, box)


def reach(page: Page, element: Element) -> Iterator[Action]:
    """Scroll until an element can be pressed, if needed."""
    if element.point is not None or not element.is_shown:
        return
    pane = next((found for found in page.ancestors(element) if found.scrolls), None)
    left, top, width, height = _WINDOW if pane is None else pane.box
    bottom = min(top + height, _WINDOW[3])
    below = element.middle[1] - (top + bottom) / 2
    at = (left + width / 2, (max(top, 50.0) + bottom) / 2)
    yield turn_wheel(page, at, max(-WHEEL, min(WHEEL, below)))


def reach_and_press(page: Page, element: Element) -> Iterator[Action]:
    """Scroll until an element can be pressed, if needed, and press it."""
    yield from reach(page, element)
    yield press(page, element)


def submit(page: Page) -> Iterator[Action]:
    """Press the button that submits the task."""
    button = page.first("#subbtn") or page.first("button.secondary-action")
    if button is None:
        buttons = page.shown("button")
        button = next((found for found in buttons if found.text.lower() == "submit"), buttons[-1])
    yield from reach_and_press(page, button)
