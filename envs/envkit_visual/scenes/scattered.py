"""Scattered objects to point at, count, follow and mark."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from envkit_visual.answers import NumberQuestion, PlaceQuestion, click_mark, spot_in
from envkit_visual.canvas import SHAPE_NAMES, Canvas, Look
from envkit_visual.scenes import scene
from envkit_visual.scenes.scene import COLOR_NAMES, Group, Scene, SceneState, Thing
from envkit_visual.world import Outcome, Record, Staged

_ENDS = {"leftmost": "left", "rightmost": "right", "highest": "above", "lowest": "below"}
_SIDES = {"left of": "left", "right of": "right", "above": "above", "below": "below"}


class ClickState(SceneState):
    """A scene, and which object is meant."""

    phrase: str
    target: int


class Click(Scene[ClickState], PlaceQuestion[ClickState]):
    """Point at the object that a description means.

    The picture shows scattered objects. Each has one of two sizes, large or small, a colour and a
    shape. Click the object that the task describes. Objects are compared by their centers: nearest
    and farthest by the distance in a straight line, the sides and ends across or down the picture.
    """

    actions = scene.POINT
    difficulty = ("number of objects", 6, 12, 20, 32)
    chance = 0.01
    options = scene.POINTS

    def create(self, rng: random.Random, size: int) -> ClickState:
        """Draw scenes of a few colours and shapes until a description fits exactly one object."""
        while True:
            colors, shapes = rng.sample(COLOR_NAMES, 4), rng.sample(SHAPE_NAMES, 4)
            drawn = [scene.draw_thing(rng, colors, shapes) for _ in range(size)]
            things = scene.scattered(rng, drawn)
            for _ in range(20):
                if found := _described(rng, things):
                    return ClickState(things=things, phrase=found[0], target=found[1])

    def ask(self, state: ClickState) -> str:
        """Describe the object."""
        return f"Click {state.phrase}."

    def answer(self, state: ClickState) -> str:
        """Return the object's center."""
        return state.things[state.target].place

    def is_right(self, state: ClickState, given: str) -> bool:
        """Return whether the point is on the object."""
        return scene.hit(state.things, given) == state.target


def _described(rng: random.Random, things: Sequence[Thing]) -> tuple[str, int] | None:
    """Return a description of an object by another one, and its index, if the draw gives one."""
    anchored = _anchor(rng, things)
    if anchored is None:
        return None
    phrase, at = anchored
    anchor, group = things[at], scene.draw_group(rng)
    inside = [index for index in _inside(group, things) if index != at]
    if len(inside) < 2:
        return None
    relation = rng.choice(("nearest to", "farthest from", *_SIDES))
    if relation in _SIDES:
        side = _SIDES[relation]
        offsets = {index: things[index].along(side) - anchor.along(side) for index in inside}
        is_clear = all(abs(offset) >= scene.CLEAR for offset in offsets.values())
        beside = [index for index, offset in offsets.items() if offset > 0]
        found = beside[0] if is_clear and len(beside) == 1 else None
    else:
        sign = 1 if relation == "nearest to" else -1
        far = [(sign * scene.apart(things[index], anchor), index) for index in inside]
        found = scene.clear_least(far)
    return None if found is None else (f"the {group.name()} {relation} {phrase}", found)


def _anchor(rng: random.Random, things: Sequence[Thing]) -> tuple[str, int] | None:
    """Return an object that is alone in its group, or at an end of it."""
    group = scene.draw_group(rng)
    inside = _inside(group, things)
    if len(inside) == 1:
        return f"the {group.name()}", inside[0]
    end = rng.choice(tuple(_ENDS))
    found = scene.clear_least([(-things[index].along(_ENDS[end]), index) for index in inside])
    return None if found is None else (f"the {end} {group.name()}", found)


def _inside(group: scene.Group, things: Sequence[Thing]) -> list[int]:
    return [index for index, thing in enumerate(things) if group.has(thing)]


_MOST = 10


class CountState(SceneState):
    """A scene and the group to count."""

    group: Group


class Count(Scene[CountState], NumberQuestion[CountState]):
    """Count the objects of one kind.

    The picture shows scattered objects. Each has one of two sizes, large or small, a colour and a
    shape. Count those that the question asks for.
    """

    actions = f"a whole number from 1 to {_MOST}"
    difficulty = ("number of objects", 12, 20, 28, 38)
    chance = 1 / _MOST
    options = tuple(str(number) for number in range(1, _MOST + 1))

    def create(self, rng: random.Random, size: int) -> CountState:
        """Draw the group and the number first, so that every number is as likely."""
        group = scene.draw_group(rng)
        inside = rng.randint(1, _MOST)
        return CountState(things=scene.things_around(rng, group, inside, size), group=group)

    def ask(self, state: CountState) -> str:
        """Name the group."""
        return f"How many {state.group.name(plural=True)} are in the picture?"

    def value(self, state: CountState) -> int:
        """Return the number."""
        return sum(map(state.group.has, state.things))


_OBJECTS = 14
_FREE = {
    "near": "the nearest object",
    "far": "the farthest object",
    "left": "the nearest of the objects farther left",
    "right": "the nearest of the objects farther right",
    "above": "the nearest of the objects higher up",
    "below": "the nearest of the objects lower down",
}
"""Hops that say nothing of what they lead to. A chain ends with one."""
_HOPS = _FREE | {
    "color": "the nearest object of the same colour",
    "shape": "the nearest object of the same shape",
}


_NAMES = tuple(f"{color} {shape}" for color, shape in product(COLOR_NAMES, SHAPE_NAMES))


class RelateState(SceneState):
    """A scene without two objects of the same name, and the way through it."""

    start: int
    hops: tuple[str, ...]


class Relate(Scene[RelateState]):
    """Follow relations from object to object.

    The picture shows objects; no two have the same colour and shape. Start at the object that the
    task names and follow its steps, each from the object that the step before led to. Objects are
    compared by their centers, and distances are in a straight line. Name the object where you end.
    """

    actions = (
        f"a colour and a shape, such as red star (colours: {', '.join(COLOR_NAMES)}; "
        f"shapes: {', '.join(SHAPE_NAMES)})"
    )
    difficulty = ("number of steps", 1, 2, 4, 6)
    chance = 1 / 47
    refusal = "the answer is a colour and a shape"
    options = _NAMES

    def create(self, rng: random.Random, size: int) -> RelateState:
        """Draw scenes until a way exists that is clear at every step."""
        while True:
            drawn = [
                Thing(color=color, shape=shape, is_large=rng.random() < 0.5)
                for color, shape in rng.sample([*map(str.split, _NAMES)], _OBJECTS)
            ]
            things, start = scene.scattered(rng, drawn), rng.randrange(_OBJECTS)
            hops = _drawn(rng, things, start, size)
            if len(hops) == size:
                return RelateState(things=things, start=start, hops=hops)

    def ask(self, state: RelateState) -> str:
        """List the steps."""
        steps = "".join(f" {at}. Go to {_HOPS[hop]}." for at, hop in enumerate(state.hops, 1))
        return f"Start at the {state.things[state.start].name}.{steps} Which object do you end at?"

    def answer(self, state: RelateState) -> str:
        """Return the name of the last object."""
        at: int | None = state.start
        for hop in state.hops:
            at = at if at is None else _led(state.things, at, hop)
        return "" if at is None else state.things[at].name

    def read(self, text: str) -> str | None:
        """Return the colour and the shape, without an article."""
        words = text.casefold().rstrip(".").split()
        name = " ".join(words[-2:])
        return name if name in _NAMES and words[:-2] in ([], ["the"], ["a"]) else None


def _drawn(rng: random.Random, things: Sequence[Thing], start: int, count: int) -> tuple[str, ...]:
    """Draw clear hops that never come back; fewer than `count` if there are none left."""
    at, visited, hops = start, {start}, list[str]()
    while len(hops) < count:
        ways = list(_FREE if len(hops) == count - 1 else _HOPS)
        rng.shuffle(ways)
        led = [(way, _led(things, at, way)) for way in ways]
        hop = next(((way, to) for way, to in led if to is not None and to not in visited), None)
        if hop is None:
            break
        hops.append(hop[0])
        at = hop[1]
        visited.add(at)
    return tuple(hops)


def _led(things: Sequence[Thing], at: int, hop: str) -> int | None:
    """Return where a hop leads; None if that is hard to see."""
    here = things[at]
    others = [(scene.apart(here, thing), to) for to, thing in enumerate(things) if to != at]
    if hop == "far":
        return scene.clear_least([(-distance, to) for distance, to in others])
    if hop in ("color", "shape"):
        value = getattr(here, hop)
        others = [(distance, to) for distance, to in others if getattr(things[to], hop) == value]
    elif hop in scene.SIDES:
        offsets = [thing.along(hop) - here.along(hop) for thing in things]
        beside = [(distance, to) for distance, to in others if offsets[to] >= scene.CLEAR]
        others = [(distance, to) for distance, to in others if offsets[to] > -scene.CLEAR]
        if scene.clear_least(beside) != scene.clear_least(others):
            return None
    return scene.clear_least(others)


_DONE = re.compile(r"done (\d{1,3})", re.ASCII)
_FEWEST = 3
_MARK_MOST = 8


class MarkState(Record):
    """A scene, the group, and what is marked."""

    things: tuple[Thing, ...]
    group: Group
    marked: tuple[bool, ...]
    told: int | None = None
    """The number that was told; None before the end."""


class MarkWorld(Staged[MarkState]):
    """Mark every object of one kind and tell their number.

    The picture shows scattered objects. Each has one of two sizes, large or small, a colour and a
    shape. Mark all of the kind that the task names, and no others: a click draws a ring around an
    object, and a second click removes it. When exactly those have a ring, end with done and their
    number. That cannot be taken back.
    """

    actions = f"{scene.POINT}, or done and a number, such as done 4"
    name = "mark"
    difficulty = ("number of objects", 8, 16, 26, 38)
    options = (*scene.POINTS, *(f"done {number}" for number in range(_FEWEST, _MARK_MOST + 1)))

    def create(self, rng: random.Random, size: int) -> MarkState:
        """Draw the group and the number first."""
        group = scene.draw_group(rng)
        inside = rng.randint(_FEWEST, min(_MARK_MOST, size - 2))
        things = scene.things_around(rng, group, inside, size)
        return MarkState(things=things, group=group, marked=(False,) * size)

    def draw(self, state: MarkState, canvas: Canvas, look: Look) -> None:
        """Draw the scene and the rings."""
        scene.draw_things(canvas, state.things, look)
        for thing, is_marked in zip(state.things, state.marked, strict=True):
            if is_marked:
                canvas.disc(thing.x, thing.y, thing.reach + 4, line=look.ink, width=2.5)

    def tell(self, state: MarkState) -> str:
        """List the objects."""
        pairs = zip(state.things, state.marked, strict=True)
        return "\n".join(thing.told() + ", marked" * is_marked for thing, is_marked in pairs)

    def ask(self, state: MarkState) -> str:
        """Name the group."""
        return f"Mark all {state.group.name(plural=True)}."

    def act(self, state: MarkState, action: str) -> Outcome[MarkState]:
        """Mark an object, remove its mark, or end."""
        if done := _DONE.fullmatch(action.casefold()):
            return Outcome(state=replace(state, told=int(done[1])), text="Ended.")
        if (spot := spot_in(action)) is None:
            error = "an action is two numbers from 0 to 1000, or done and a number"
            return Outcome(state=state, error=error)
        at = scene.hit(state.things, action)
        marked = tuple(one != (at == index) for index, one in enumerate(state.marked))
        text = "No object is there."
        if at is not None:
            text = "Marked." if marked[at] else "The mark is removed."
        return Outcome(state=replace(state, marked=marked), text=text, mark=click_mark(spot))

    def is_over(self, state: MarkState) -> bool:
        """Return whether a number was told."""
        return state.told is not None

    def progress(self, state: MarkState) -> float:
        """Return the part of the actions that is done."""
        wanted = _wanted(state)
        if self.is_over(state):
            return float(state.told == sum(wanted) and state.marked == wanted)
        return max(0.0, 1 - len(self.plan(state)) / (sum(wanted) + 1))

    def plan(self, state: MarkState) -> list[str]:
        """Return a click on each object that is marked wrongly, and the end."""
        if self.is_over(state):
            return []
        rows = zip(state.things, state.marked, _wanted(state), strict=True)
        wrong = [thing.place for thing, is_marked, is_wanted in rows if is_marked != is_wanted]
        return [*wrong, f"done {sum(_wanted(state))}"]


def _wanted(state: MarkState) -> tuple[bool, ...]:
    return tuple(map(state.group.has, state.things))
