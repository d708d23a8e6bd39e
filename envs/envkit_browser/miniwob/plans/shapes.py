"""Plans for tasks of drawn shapes, letters and points."""

import math
from collections.abc import Iterator, Sequence

from envkit_actions import Action
from envkit_browser.miniwob import moves
from envkit_browser.miniwob.page import Element, Page, Point

_NAMES = {"rect": "rectangle", "circle": "circle", "polygon": "triangle"}
_LARGE = 15
"""Pixels: shapes of shapes.js are 10 or 20 wide, letters 10 or 20 high."""


def any_such_shape(page: Page) -> Iterator[Action]:
    """Press a shape that the goal describes."""
    text = page.asked(r"Click on a (.*)")
    yield moves.press(page, next(found for found in _drawn(page) if _is_such(found, text)))


def count(page: Page) -> Iterator[Action]:
    """Press the number of shapes that the goal describes."""
    text = page.asked(r"How many (.*)s are there")
    number = sum(_is_such(found, text) for found in _drawn(page))
    yield moves.press(page, page.with_text("#count-buttons button", str(number)))


def name_of_shape(page: Page) -> Iterator[Action]:
    """Press the name of the only shape."""
    kind, text = _kind(_drawn(page)[0])
    wanted = text if kind == "shape" else kind
    buttons = page.all("#area-buttons button")
    yield moves.press(page, next(b for b in buttons if b.attributes["data-type"] == wanted))


def _drawn(page: Page) -> list[Element]:
    return [found for found in page.all("#area_svg *") if found.tag in {*_NAMES, "text"}]


def _kind(element: Element) -> tuple[str, str]:
    if element.tag in _NAMES:
        return "shape", _NAMES[element.tag]
    return ("digit" if element.text.isdigit() else "letter"), element.text


def _is_such(element: Element, text: str) -> bool:
    """Return whether a description such as "large red letter" fits."""
    *marks, noun = text.split(" ")
    kind, name = _kind(element)
    size = _size(element)
    known = {"large" if size > _LARGE else "small", element.attributes["fill"]}
    return noun in {"item", kind, name} and set(marks) <= known


def _size(element: Element) -> float:
    if element.tag == "text":
        return float(element.attributes["font-size"].removesuffix("px"))
    return element.box[2]


def _press_on_grid(page: Page, point: Point) -> Iterator[Action]:
    """Press a point of the drawing once, then submit."""
    if page.first("#blue-circle") is None:
        yield moves.press_at(page, point)
    yield from moves.submit(page)


def midpoint(page: Page) -> Iterator[Action]:
    """Press halfway between two points."""
    first, second = (found.middle for found in page.all(".black-circle"))
    yield from _press_on_grid(page, ((first[0] + second[0]) / 2, (first[1] + second[1]) / 2))


def middle_of_circle(page: Page) -> Iterator[Action]:
    """Press the middle of a circle."""
    yield from _press_on_grid(page, page.one(".black-circle").middle)


def right_angle(page: Page) -> Iterator[Action]:
    """Press a third point where the lines meet at a right angle."""
    corner, end = page.one("#init-blue").middle, page.one("#init-black").middle
    dx, dy = end[0] - corner[0], end[1] - corner[1]
    yield from _press_on_grid(page, _furthest(page, corner, [(-dy, dx), (dy, -dx)]))


def _furthest(page: Page, corner: Point, directions: Sequence[Point]) -> Point:
    """Return the point furthest from a corner, in one of the directions, on the drawing."""
    left, top, width, height = page.one("#svg-grid").box
    height = min(height, page.one("#subbtn").box[1] - top)
    best, longest = corner, 0.0
    for direction in directions:
        length = math.hypot(*direction)
        for steps in range(4, 150):
            x = corner[0] + direction[0] / length * steps
            y = corner[1] + direction[1] / length * steps
            if not (left + 1 < x < left + width - 1 and top + 1 < y < top + height - 1):
                break
            if steps > longest:
                best, longest = (x, y), steps
    return best


def bisector(page: Page) -> Iterator[Action]:
    """Press a point that halves the angle."""
    corner = page.one(".init-blue").middle
    directions = [
        (end.middle[0] - corner[0], end.middle[1] - corner[1]) for end in page.all(".init-black")
    ]
    lengths = [math.hypot(*direction) for direction in directions]
    halving = (
        sum(direction[0] / length for direction, length in zip(directions, lengths, strict=True)),
        sum(direction[1] / length for direction, length in zip(directions, lengths, strict=True)),
    )
    yield from _press_on_grid(page, _furthest(page, corner, [halving]))


def drag_all_inside(page: Page) -> Iterator[Action]:
    """Drag the shapes that the goal names into the box."""
    noun = page.asked(r"Drag all (\w+) into").removesuffix("s")
    box = page.one("#shape-container")
    shapes = [found for found in _drawn(page) if found.id != "shape-container"]
    wanted = [found for found in shapes if _kind(found)[1] == noun]
    for place, found in enumerate(wanted):
        target = _slot(box, place)
        if not _inside(box, found.middle):
            yield moves.drag(page, found.middle, target)
    yield from moves.submit(page)


def sort_into_boxes(page: Page) -> Iterator[Action]:
    """Drag the shapes that the goal names into the left box and the others into the right."""
    mark = page.asked(r"Drag all (\w+)")
    left, right = (found for found in page.all("rect") if found.id == "shape-container")
    shapes = [found for found in _drawn(page) if found.id != "shape-container"]
    for place, found in enumerate(shapes):
        is_left = mark in (found.attributes["fill"], _kind(found)[1] + "s")
        box = left if is_left else right
        if not _inside(box, found.middle):
            yield moves.drag(page, found.middle, _slot(box, place))
    yield from moves.submit(page)


def _slot(box: Element, place: int) -> Point:
    """Return one of six non-overlapping places in a box."""
    left, top, width, height = box.box
    return left + width * (0.2 + 0.3 * (place % 3)), top + height * (0.3 + 0.4 * (place // 3 % 2))


def _inside(box: Element, point: Point) -> bool:
    left, top, width, height = box.box
    return left < point[0] < left + width and top < point[1] < top + height


def drag_aside(page: Page) -> Iterator[Action]:
    """Drag the only shape in the direction of the goal."""
    direction = page.asked(r"Drag the \w+ (\w+)")
    x, y = page.all("svg *")[0].middle
    if not any(action.path for action in page.performed):
        dx, dy = {"left": (-25, 0), "right": (25, 0), "up": (0, -25), "down": (0, 25)}[direction]
        yield moves.drag(page, (x, y), (x + dx, y + dy))
    yield from moves.submit(page)


def line(page: Page) -> Iterator[Action]:
    """Draw a level or upright line through the dot."""
    x, y = page.one("svg circle").middle
    if page.first("svg path") is None:
        dx, dy = (22, 0) if "horizontal" in page.goal else (0, 22)
        yield moves.drag(page, (x - dx, y - dy), (x + dx, y + dy))
    yield from moves.submit(page)


def circle(page: Page) -> Iterator[Action]:
    """Draw a circle around the dot."""
    x, y = page.one("svg circle").middle
    if page.first("svg path") is None:
        left, top, width, height = page.one("svg").box
        room = min(x - left, left + width - x, y - top, top + height - y, 40) - 3
        turns = [2 * math.pi * step / 24 for step in range(25)]
        points = [(x + room * math.cos(turn), y + room * math.sin(turn)) for turn in turns]
        yield moves.drag(page, *points)
    yield from moves.submit(page)
