"""Objects scattered over a picture: what they are, which group they are in, and where."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from envkit_visual.answers import at, spot_in
from envkit_visual.canvas import COLORS, SHAPE_NAMES, SIDE, Canvas, Look
from envkit_visual.world import Asked, Question, Record

COLOR_NAMES: Final = ("red", "blue", "green", "yellow", "purple", "pink", "cyan", "brown")
"""Colours that are told apart at any size."""
SIDES: Final = {"left": (-1, 0), "right": (1, 0), "above": (0, -1), "below": (0, 1)}
"""Steps to each side."""
CLEAR: Final = 12
"""Units by which an object must be on a side."""
_ATTRIBUTES: Final = ("is_large", "color", "shape")
_OPEN = (("is_large", "color"), ("is_large", "shape"), ("is_large",), ("shape",), ("color",), ())
"""Attributes that a group may leave open."""
_REACH: Final = 1.25
"""Farthest corner of a shape, in radii."""
_GAP: Final = 4
_MARGIN: Final = 6


class Thing(Record):
    """An object of a scene."""

    color: str
    shape: str
    is_large: bool
    x: int = 0
    """Center, in units of the picture."""
    y: int = 0

    @property
    def radius(self) -> int:
        """Size of its shape."""
        return 20 if self.is_large else 12

    @property
    def reach(self) -> float:
        """Radius of the circle around it."""
        return self.radius * _REACH

    @property
    def name(self) -> str:
        """Its colour and shape."""
        return f"{self.color} {self.shape}"

    @property
    def place(self) -> str:
        """Its center, as an action gives it."""
        return at((self.x, self.y))

    def told(self) -> str:
        """Return what it is and where."""
        return f"{'large' if self.is_large else 'small'} {self.name} at {self.place}"

    def along(self, side: str) -> int:
        """Return how far to a side of the picture it is."""
        across, down = SIDES[side]
        return across * self.x + down * self.y


class Group(Record):
    """The objects that share some attributes; None leaves one open."""

    is_large: bool | None = None
    color: str | None = None
    shape: str | None = None

    def has(self, thing: Thing) -> bool:
        """Return whether an object belongs to the group."""
        return all(getattr(thing, name) == value for name, value in self.given().items())

    def given(self) -> dict[str, Any]:
        """Return the attributes that are not left open, with their values."""
        values = {name: getattr(self, name) for name in _ATTRIBUTES}
        return {name: value for name, value in values.items() if value is not None}

    def name(self, *, plural: bool = False) -> str:
        """Return the group in words, such as "small red star"."""
        noun = self.shape or "object"
        if plural:
            noun += "es" if noun == "cross" else "s"
        size = {None: "", True: "large", False: "small"}[self.is_large]
        return " ".join(filter(None, (size, self.color, noun)))


def draw_group(rng: random.Random) -> Group:
    """Draw a group with one to three attributes."""
    is_large, color, shape = rng.random() < 0.5, rng.choice(COLOR_NAMES), rng.choice(SHAPE_NAMES)
    full = Group(is_large=is_large, color=color, shape=shape)
    return replace(full, **dict.fromkeys(rng.choice(_OPEN)))


def draw_thing(
    rng: random.Random, colors: Sequence[str] = COLOR_NAMES, shapes: Sequence[str] = SHAPE_NAMES
) -> Thing:
    """Draw an object without a place."""
    return Thing(color=rng.choice(colors), shape=rng.choice(shapes), is_large=rng.random() < 0.5)


def things_around(rng: random.Random, group: Group, inside: int, count: int) -> tuple[Thing, ...]:
    """Draw a scene in which an exact number of objects belong to a group.

    Half of the others differ from the group in a single attribute.

    Args:
        rng: The source of chance.
        group: The group.
        inside: Number of objects in the group.
        count: Number of all objects.
    """
    things: list[Thing] = []
    while len(things) < count:
        thing, kept = draw_thing(rng), group.given()
        if len(things) < inside:
            thing = replace(thing, **kept)
        elif rng.random() < 0.5:
            del kept[rng.choice(list(kept))]
            thing = replace(thing, **kept)
        if group.has(thing) == (len(things) < inside):
            things.append(thing)
    return scattered(rng, things)


def scattered(rng: random.Random, things: Iterable[Thing]) -> tuple[Thing, ...]:
    """Place objects at random so that none touch, and shuffle them."""
    ordered = sorted(things, key=lambda thing: -thing.radius)
    while True:
        placed: list[Thing] = []
        for thing in ordered:
            near, far = math.ceil(_MARGIN + thing.reach), math.floor(SIDE - _MARGIN - thing.reach)
            for _ in range(80):
                tried = replace(thing, x=rng.randint(near, far), y=rng.randint(near, far))
                if all(apart(tried, one) >= tried.reach + one.reach + _GAP for one in placed):
                    placed.append(tried)
                    break
            else:
                break
        else:
            rng.shuffle(placed)
            return tuple(placed)


def apart(one: Thing, other: Thing) -> float:
    """Return the distance between two centers."""
    return math.hypot(one.x - other.x, one.y - other.y)


def clear_least(values: Sequence[tuple[float, int]]) -> int | None:
    """Return the index of the least value; None if another is too close to tell.

    Args:
        values: Pairs of a value, in units of the picture, and an index.
    """
    if not values:
        return None
    (least, index), *others = sorted(values)
    is_close = bool(others) and others[0][0] < least + max(10, 0.12 * abs(least))
    return None if is_close else index


def outlined(
    canvas: Canvas, look: Look, kind: str, x: float, y: float, radius: float, color: str
) -> None:
    """Draw a shape with a thin outline, which shows light colours on light paper."""
    canvas.shape(kind, x, y, radius + 1.6, fill=look.ink)
    canvas.shape(kind, x, y, radius, fill=COLORS[color])


def draw_things(canvas: Canvas, things: Iterable[Thing], look: Look) -> None:
    """Draw objects."""
    for one in things:
        outlined(canvas, look, one.shape, one.x, one.y, one.radius, one.color)


def hit(things: Iterable[Thing], text: str) -> int | None:
    """Return the index of the object that a point is on; None if there is none."""
    spot = spot_in(text) or (math.inf, math.inf)
    far = enumerate(math.dist(spot, (thing.x, thing.y)) - thing.reach for thing in things)
    return next((index for index, beyond in far if beyond <= 0), None)


class SceneState(Asked):
    """Objects that a question is about."""

    things: tuple[Thing, ...]


T = TypeVar("T", bound=SceneState)


class Scene(Question[T]):
    """A question about scattered objects."""

    def draw(self, state: T, canvas: Canvas, look: Look) -> None:
        """Draw the objects."""
        draw_things(canvas, state.things, look)

    def tell(self, state: T) -> str:
        """List the objects."""
        return "\n".join(thing.told() for thing in state.things)


POINT: Final = (
    "a point x, y on an object, in thousandths of the picture's width from its left edge and of "
    "its height from its top edge"
)
"""How a click is written."""
POINTS: Final = tuple(f"{x}, {y}" for y in range(100, 1000, 200) for x in range(100, 1000, 200))
"""Points all over the picture, for those who do not see it."""
