"""Shapes to move onto an outline, and to compare between two pictures."""

import random
from dataclasses import replace
from itertools import product
from math import cos, dist, hypot, radians, sin

from envkit_visual.answers import at, click_mark, spot_in, whole_numbers
from envkit_visual.canvas import COLORS, SHAPE_NAMES, SIDE, Canvas, Look, Point
from envkit_visual.world import Outcome, Record, Staged

_CROOK = ((16, -10), (40, -10), (40, 58), (-40, 58))
_SHAPES: dict[str, tuple[Point, ...]] = {
    "arrow": ((0, -60), (34, -14), (12, -14), (12, 56), (-12, 56), (-12, -14), (-34, -14)),
    "flag": ((-26, -58), (40, -34), (-10, -6), (-10, 58), (-26, 58)),
    "boot": ((-30, -56), (4, -56), (4, 20), (44, 28), (44, 54), (-30, 54)),
    "key": ((-12, -58), (12, -58), (12, 10), (40, 10), (40, 30), (12, 30), (12, 58), (-12, 58)),
    "hook": ((-40, -58), (-16, -58), (-16, 34), (16, 34), *_CROOK),
}
"""Corners around the center. None of them looks the same after part of a turn."""
_STEPS = tuple(step for step in product((-300, 0, 300), repeat=2) if any(step))
_LEAST, _MOST = 160, 840
"""Where the center may be, in thousandths of the picture, so that the shape stays inside."""


class Pose(Record):
    """A place in thousandths of the picture, and a turn clockwise in degrees."""

    x: int
    y: int
    turn: int


class StickState(Record):
    """A shape and its outline."""

    shape: str
    at: Pose
    goal: Pose
    tolerance: int


class Stick(Staged[StickState]):
    """Move and turn a shape onto its outline.

    Move and turn the filled shape until it lies on the black outline. Lengths are thousandths of
    the picture: the grid has a line every 100. The shape turns around the white dot on it.

    An action is three whole numbers: how far to move right, how far to move down, and how many
    degrees to turn clockwise, such as "120 -40 90"; negative numbers mean left, up and the other
    way.
    """

    difficulty = ("tolerance in thousandths of the picture", 40, 24, 14, 8)
    options = tuple(f"{x} {y} {turn}" for x, y in _STEPS for turn in range(-135, 181, 45))

    def create(self, rng: random.Random, size: int) -> StickState:
        """Draw two poses that are well apart."""
        while True:
            start, goal = _drawn(rng), _drawn(rng)
            state = StickState(shape="", at=start, goal=goal, tolerance=size)
            right, down, turn = map(abs, _way(state))
            if max(right, down) >= 150 and turn >= 45:
                return replace(state, shape=rng.choice(sorted(_SHAPES)))

    def ask(self, state: StickState) -> str:
        """Say how exact the pose must be."""
        side, turn = state.tolerance, state.tolerance // 2
        return f"It may be off by {side} thousandths to each side and by {turn} degrees."

    def draw(self, state: StickState, canvas: Canvas, look: Look) -> None:
        """Draw a grid, the shape, and the outline on top."""
        for line in range(1, 10):
            at = SIDE * line / 10
            for ends in (((at, 0), (at, SIDE)), ((0, at), (SIDE, at))):
                canvas.path(ends, color=(205, 205, 205))
            canvas.text(at, 8, str(100 * line), color=look.ink, size=12)
            canvas.text(3, at, str(100 * line), color=look.ink, size=12, at="lm")
        canvas.polygon(_corners(state.shape, state.at), fill=COLORS[look.accents[0]])
        outline = _corners(state.shape, state.goal)
        canvas.path((*outline, outline[0], outline[1]), color=(0, 0, 0), width=2.5)
        x, y = (SIDE * value / 1000 for value in (state.at.x, state.at.y))
        canvas.disc(x, y, 5, fill=(255, 255, 255), line=(0, 0, 0))

    def tell(self, state: StickState) -> str:
        """List the corners of the shape and of the outline."""
        poses = {"shape": state.at, "outline, in the same order": state.goal}
        lines = ["Thousandths of the picture, x to the right and y down."]
        for name, pose in poses.items():
            corners = "; ".join(map(at, _corners(state.shape, pose)))
            lines.append(f"Corners of the {name}: {corners}")
        return "\n".join((*lines, f"Dot: {state.at.x}, {state.at.y}"))

    def act(self, state: StickState, action: str) -> Outcome[StickState]:
        """Move and turn the shape, unless it would leave the picture."""
        numbers = whole_numbers(action, 3)
        if numbers is None:
            return Outcome(state=state, error="an action is three whole numbers")
        x, y = state.at.x + numbers[0], state.at.y + numbers[1]
        if not (_LEAST <= x <= _MOST and _LEAST <= y <= _MOST):
            return Outcome(state=state, text="It would reach the edge of the picture.")
        pose = Pose(x=x, y=y, turn=(state.at.turn + numbers[2]) % 360)
        return Outcome(state=replace(state, at=pose), text="Moved.")

    def progress(self, state: StickState) -> float:
        """Return how much of the way is done, which is less than all of it off the outline."""
        right, down, turn = map(abs, _way(state))
        if max(right, down, 2 * turn) <= state.tolerance:
            return 1.0
        return 0.95 * (1 - max(right / 700, down / 700, turn / 180))

    def plan(self, state: StickState) -> list[str]:
        """Return the difference."""
        return [] if self.is_solved(state) else [" ".join(map(str, _way(state)))]

    def goal(self, state: StickState) -> StickState:
        """Return the shape on its outline."""
        return replace(state, at=state.goal)


def _drawn(rng: random.Random) -> Pose:
    x, y = rng.randint(_LEAST, _MOST), rng.randint(_LEAST, _MOST)
    return Pose(x=x, y=y, turn=rng.randrange(360))


def _way(state: StickState) -> tuple[int, int, int]:
    """Return how far the outline is to the right and down, and by the shorter turn."""
    start, goal = state.at, state.goal
    return goal.x - start.x, goal.y - start.y, (goal.turn - start.turn + 180) % 360 - 180


def _corners(shape: str, pose: Pose) -> list[Point]:
    across, up = cos(radians(pose.turn)), sin(radians(pose.turn))
    x, y = SIDE * pose.x / 1000, SIDE * pose.y / 1000
    return [(x + r * across - d * up, y + r * up + d * across) for r, d in _SHAPES[shape]]


_COLORS = ("red", "blue", "green", "yellow", "purple", "cyan")
_SIZES = (9, 14)
_EDITS = 4
_LEFT = {"left": 8, "right": 230}
"""Left edges of the two pictures."""
_TOP = 8
_WIDTH, _HEIGHT = 210, 432
_APART = 36
_REACH = 20
"""How far from a thing's center a click counts, in units."""


class Thing(Record):
    """A shape in a picture."""

    kind: str
    color: str
    radius: int


class Spot(Record):
    """A place in both pictures, and what is there; None if nothing is."""

    x: int
    y: int
    left: Thing | None
    right: Thing | None


class SpotState(Record):
    """Two pictures, and the differences that were clicked on."""

    spots: tuple[Spot, ...]
    found: tuple[int, ...] = ()


class Spots(Staged[SpotState]):
    """Click on the differences between two pictures.

    The two pictures are identical except for four differences: a shape may have a different color,
    form or size, or it may be missing from one of them. Click on each difference, in either
    picture. A difference that you found gets a ring.

    An action is the place to click on as "x, y" in thousandths of the whole image, from the top
    left, such as "250, 700"; it must be on the shape, or where it is missing.
    """

    name = "spot"
    difficulty = ("number of shapes", 10, 16, 24, 32)
    options = tuple(f"{x}, {y}" for y in range(100, 1000, 100) for x in range(90, 480, 90))

    def create(self, rng: random.Random, size: int) -> SpotState:
        """Scatter shapes and change some of them in one picture."""
        spots: list[Spot] = []
        for x, y in _scattered(rng, size):
            kind, color, radius = rng.choice(SHAPE_NAMES), rng.choice(_COLORS), rng.choice(_SIZES)
            thing = Thing(kind=kind, color=color, radius=radius)
            spots.append(Spot(x=x, y=y, left=thing, right=thing))
        for index in rng.sample(range(size), _EDITS):
            edited = _edited(rng, spots[index].left)
            side = "left" if rng.random() < 0.5 else "right"
            spots[index] = replace(spots[index], **{side: edited})
        return SpotState(spots=tuple(spots))

    def draw(self, state: SpotState, canvas: Canvas, look: Look) -> None:
        """Draw both pictures, with rings around what was found."""
        for side, left in _LEFT.items():
            canvas.box(left, _TOP, left + _WIDTH, _TOP + _HEIGHT, line=look.ink, width=2)
            for (x, y), thing in _things(state, side):
                canvas.shape(thing.kind, x, y, thing.radius + 1.5, fill=look.ink)
                canvas.shape(thing.kind, x, y, thing.radius, fill=COLORS[thing.color])
            for found in state.found:
                canvas.disc(*_center(state.spots[found], side), 19, line=look.ink, width=2.5)

    def tell(self, state: SpotState) -> str:
        """List what is in each picture."""
        lines = ["Center of each shape in thousandths of the image:"]
        for side in _LEFT:
            lines.append(f"In the {side} picture:")
            for center, thing in _things(state, side):
                size = "small" if thing.radius == _SIZES[0] else "large"
                lines.append(f"{size} {thing.color} {thing.kind} at {at(center)}")
        rings = "; ".join(at(_center(state.spots[found], "left")) for found in state.found)
        return "\n".join((*lines, f"Rings in the left picture: {rings or 'none'}"))

    def act(self, state: SpotState, action: str) -> Outcome[SpotState]:
        """Look for a difference where the click is."""
        click = spot_in(action)
        if click is None:
            return Outcome(state=state, error="an action is two numbers from 0 to 1000")
        side, mark = "left" if click[0] < SIDE / 2 else "right", click_mark(click)
        for index in _differences(state):
            if dist(_center(state.spots[index], side), click) <= _REACH:
                if index in state.found:
                    return Outcome(state=state, text="This one was found before.", mark=mark)
                found = (*state.found, index)
                return Outcome(state=replace(state, found=found), text="Found one.", mark=mark)
        return Outcome(state=state, text="There is no difference.", mark=mark)

    def progress(self, state: SpotState) -> float:
        """Return the part of the differences that were found."""
        return len(state.found) / _EDITS

    def plan(self, state: SpotState) -> list[str]:
        """Click on what is left."""
        rest = (index for index in _differences(state) if index not in state.found)
        return [at(_center(state.spots[index], "left")) for index in rest]


def _scattered(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Return places that are far enough apart, starting over where they do not fit."""
    edge = _SIZES[1] + 8
    while True:
        places: list[tuple[int, int]] = []
        for _ in range(400):
            x, y = rng.randint(edge, _WIDTH - edge), rng.randint(edge, _HEIGHT - edge)
            if all(hypot(x - other[0], y - other[1]) >= _APART for other in places):
                places.append((x, y))
                if len(places) == count:
                    return places


def _edited(rng: random.Random, thing: Thing | None) -> Thing | None:
    """Return a thing with another color, form or size, or nothing."""
    edit = rng.choice(("color", "kind", "radius", "gone"))
    if thing is None or edit == "gone":
        return None
    values = {"color": _COLORS, "kind": SHAPE_NAMES, "radius": _SIZES}[edit]
    others = [value for value in values if value != getattr(thing, edit)]
    return replace(thing, **{edit: rng.choice(others)})


def _differences(state: SpotState) -> list[int]:
    return [index for index, spot in enumerate(state.spots) if spot.left != spot.right]


def _center(spot: Spot, side: str) -> tuple[int, int]:
    """Return where a place is in the picture on a side."""
    return _LEFT[side] + spot.x, _TOP + spot.y


def _things(state: SpotState, side: str) -> list[tuple[tuple[int, int], Thing]]:
    """Return the centers of the shapes in a picture, and the shapes."""
    spots = [(_center(spot, side), getattr(spot, side)) for spot in state.spots]
    return [(center, thing) for center, thing in spots if thing]
