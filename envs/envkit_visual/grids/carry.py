"""`visual/fetch` and `visual/door-key`: find a thing and carry it."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

from envkit_visual.canvas import COLORS, SHAPE_NAMES, SIDE, Canvas, Look
from envkit_visual.cells import MOVES, Cell, cells_of, moved
from envkit_visual.grids import grid
from envkit_visual.search import shortest
from envkit_visual.world import Outcome

_FEWEST = 12
"""Actions of the shortest plan, so that a policy that does not see fails."""
_FETCH_SIDE = 8
_WALLS = 10
_ROOMS = 3
"""Rooms in a row and in a column."""
_ROOM = 3
"""Cells from a room's left wall to the next room's."""
_STRIP = 40
"""Height of the strip at the bottom that shows what is carried."""

Places = tuple[Cell | None, ...]


class CarryWorld(grid.WalkWorld[grid.W]):
    """A world with an action to take things."""

    actions = "one of up, down, left, right, take"
    options = (*MOVES, "take")
    refusal = "an action is up, down, left, right or take"


class FetchState(grid.Walk):
    """Things in a room, and the one that is carried; the goal is the house."""

    names: tuple[str, ...]
    """Color and shape of each thing; the first is asked for."""
    cells: Places
    """Where each thing lies; None is carried."""


class Fetch(CarryWorld[FetchState]):
    """Bring the thing that is asked for to the house.

    The picture shows a room from above, with a person, things, a house and dark walls. Walk to the
    thing that is asked for, take it, and carry it to the house. The person walks over things, and
    carries one at a time: whoever takes another puts the first down in its place. The strip at the
    bottom shows what is carried.
    """

    difficulty = ("number of other things", 2, 5, 9, 15)

    def create(self, rng: random.Random, size: int) -> FetchState:
        """Draw a room and things, half of which share the color or the shape asked for."""
        every = [(color, shape) for color in grid.OBJECT_COLORS for shape in SHAPE_NAMES]
        asked = (rng.choice(grid.OBJECT_COLORS), rng.choice(SHAPE_NAMES))
        twins = [one for one in every if (one[0] == asked[0]) != (one[1] == asked[1])]
        others = rng.sample(twins, min(len(twins), (size + 1) // 2))
        rest = [one for one in every if one != asked and one not in twins]
        others += rng.sample(rest, size - len(others))
        names = tuple(map(" ".join, (asked, *others)))
        while True:
            floor = grid.room(rng, _FETCH_SIDE, _FETCH_SIDE, _WALLS)
            player, goal, *cells = rng.sample(grid.free_cells(floor), size + 3)
            walk = grid.Walk(floor=floor, player=player, goal=goal, distance=1)
            state = FetchState(**vars(walk), names=names, cells=tuple(cells))
            distance = len(self.plan(state))
            if _FEWEST <= distance <= grid.MOST:
                return replace(state, distance=distance)

    def draw(self, state: FetchState, canvas: Canvas, look: Look) -> None:
        """Draw the room, and the strip with what is carried."""
        pen = _drawn_floor(state.floor, canvas, look)
        pen.grid((205, 205, 205))
        _draw_house(pen, state.goal)
        for name, cell in zip(state.names, state.cells, strict=True):
            color, shape = name.split()
            x, y, radius = 130, SIDE - _STRIP / 2 - 2, 15
            if cell is not None:
                x, y, radius = pen.spot(cell, is_shared=cell in (state.player, state.goal))
            canvas.shape(shape, x, y, radius, fill=COLORS[color])
        pen.figure(state.player, look.ink, is_shared=state.player in (*state.cells, state.goal))

    def tell(self, state: FetchState) -> str:
        """Write the room as characters, and list the things."""
        things = dict(zip(state.names, state.cells, strict=True))
        return _told(state.floor, {"person": state.player, "house": state.goal, **things})

    def ask(self, state: FetchState) -> str:
        """Name the thing."""
        return f"Bring the {state.names[0]} to the house."

    def play(self, state: FetchState, choice: str) -> Outcome[FetchState]:
        """Move one cell, or take the thing here and put down the other one."""
        if choice != "take":
            return super().play(state, choice)
        if state.player not in state.cells:
            return Outcome(state=state, text="There is nothing to take here.")
        swap = {state.player: None, None: state.player}
        cells = tuple(swap.get(cell, cell) for cell in state.cells)
        return Outcome(state=replace(state, cells=cells), text="Taken.")

    def is_solved(self, state: FetchState) -> bool:
        """Return whether the right thing is carried at the house."""
        return state.cells[0] is None and super().is_solved(state)

    def plan(self, state: FetchState) -> list[str]:
        """Return the way to the thing and on to the house."""
        thing = state.cells[0]
        if thing is None:
            return super().plan(state)
        there = grid.way(state.floor, state.player, thing)
        return [*there, "take", *grid.way(state.floor, thing, state.goal)]


class DoorKeyState(grid.Walk):
    """Rooms with doors, and their keys."""

    doors: tuple[Cell, ...]
    keys: Places
    """Where the key of each door lies; None is carried."""
    colors: tuple[str, ...]
    """Color of each door and its key."""


class DoorKey(CarryWorld[DoorKeyState]):
    """Collect keys to open locked doors on the way to the star.

    The picture shows rooms from above, with a person, a star, keys, and dark walls. Walk to the
    star. A door is a colored square with a keyhole; it lets a person with the key of its color
    through. To take a key, walk to its cell and take it. The person carries any number of keys, and
    the strip at the bottom shows them.
    """

    difficulty = ("number of doors", 1, 2, 4, 6)

    def create(self, rng: random.Random, size: int) -> DoorKeyState:
        """Draw rooms so that every door has to be opened."""
        while True:
            state = _with_keys(rng, size)
            distance = len(self.plan(state))
            if _FEWEST <= distance <= grid.MOST:
                return replace(state, distance=distance)

    def draw(self, state: DoorKeyState, canvas: Canvas, look: Look) -> None:
        """Draw the rooms, and the strip with the keys that are carried."""
        pen = _drawn_floor(state.floor, canvas, look)
        is_shared = state.player == state.goal
        x, y, radius = pen.spot(state.goal, is_shared=is_shared)
        canvas.shape("star", x, y, radius * 1.3, fill=look.ink)
        carried = 125
        for door, key, name in zip(state.doors, state.keys, state.colors, strict=True):
            _draw_door(pen, door, name)
            if key is None:
                _draw_key(canvas, carried, SIDE - _STRIP / 2 - 2, 16, name)
                carried += 44
                continue
            x, y, radius = pen.spot(key, is_shared=key == state.player)
            _draw_key(canvas, x, y, radius * 1.15, name)
        is_shared |= state.player in state.keys
        pen.figure(state.player, look.ink, is_shared=is_shared)

    def tell(self, state: DoorKeyState) -> str:
        """Write the rooms as characters, and list doors and keys."""
        things: dict[str, Cell | None] = {"person": state.player, "star": state.goal}
        for door, key, name in zip(state.doors, state.keys, state.colors, strict=True):
            things |= {f"{name} door": door, f"{name} key": key}
        return _told(state.floor, things)

    def play(self, state: DoorKeyState, choice: str) -> Outcome[DoorKeyState]:
        """Move one cell, unless a wall or a locked door is there, or take the key here."""
        if choice != "take":
            if moved(state.player, MOVES[choice]) in _locked(state.doors, state.keys):
                return Outcome(state=state, text="A locked door is in the way.")
            return super().play(state, choice)
        if state.player not in state.keys:
            return Outcome(state=state, text="There is no key to take here.")
        return Outcome(state=replace(state, keys=_without(state.keys, state.player)), text="Taken.")

    def plan(self, state: DoorKeyState) -> list[str]:
        """Return the fewest actions by search over cells and keys."""
        links = grid.links(state.floor)

        def steps(node: tuple[Cell, Places]) -> Iterator[tuple[str, tuple[Cell, Places]]]:
            cell, keys = node
            if cell in keys:
                yield "take", (cell, _without(keys, cell))
            locked = _locked(state.doors, keys)
            for name, target in links[cell]:
                if target not in locked:
                    yield name, (target, keys)

        return shortest((state.player, state.keys), lambda node: node[0] == state.goal, steps) or []


def _locked(doors: tuple[Cell, ...], keys: Places) -> list[Cell]:
    return [door for door, key in zip(doors, keys, strict=True) if key is not None]


def _without(keys: Places, cell: Cell) -> Places:
    return tuple(None if key == cell else key for key in keys)


def _told(floor: grid.Floor, things: Mapping[str, Cell | None]) -> str:
    """Write a floor as characters, and list things by name; None is carried."""
    lines = ["# wall; columns and rows count from 1 at the top left", *floor]
    for name, cell in things.items():
        place = "carried" if cell is None else f"column {cell[1] + 1}, row {cell[0] + 1}"
        lines.append(f"{name}: {place}")
    return "\n".join(lines)


def _with_keys(rng: random.Random, size: int) -> DoorKeyState:
    """Return rooms in which each key lies in the part that the last door opened."""
    floor, gaps = _rooms(rng)
    doors = set(rng.sample(gaps, size))
    side = len(floor)
    closed = grid.floor_of(side, side, set(grid.free_cells(floor)) - doors)
    rooms = [cell for cell in grid.free_cells(closed) if cell not in gaps]
    beyond = player = rng.choice(rooms)
    found: list[Cell] = []
    keys: list[Cell] = []
    reached = set[Cell]()
    while True:
        newest = set(grid.distances(closed, beyond)) & set(rooms)
        reached |= newest
        if not doors:
            break
        found.append(rng.choice([door for door in sorted(doors) if _beside(door) & reached]))
        doors.remove(found[-1])
        keys.append(rng.choice(sorted(newest - {player})))
        (beyond,) = _beside(found[-1]) & set(rooms) - reached
    walk = grid.Walk(floor=floor, player=player, goal=rng.choice(sorted(newest)), distance=1)
    colors = tuple(rng.sample(grid.OBJECT_COLORS, size))
    return DoorKeyState(**vars(walk), doors=tuple(found), keys=tuple(keys), colors=colors)


def _beside(cell: Cell) -> set[Cell]:
    return {moved(cell, step) for step in MOVES.values()}


def _rooms(rng: random.Random) -> tuple[grid.Floor, list[Cell]]:
    """Return rooms joined to a tree by gaps in their walls, and the gaps."""
    side = _ROOMS * _ROOM + 1
    free = {cell for cell in cells_of(side, side) if cell[0] % _ROOM and cell[1] % _ROOM}
    joined = {(rng.randrange(_ROOMS), rng.randrange(_ROOMS))}
    gaps: list[Cell] = []
    while len(joined) < _ROOMS * _ROOMS:
        down, across = rng.choice(sorted(joined))
        near = moved((down, across), step := rng.choice(list(MOVES.values())))
        if near in joined or near not in cells_of(_ROOMS, _ROOMS):
            continue
        joined.add(near)
        row, column = max(down, near[0]) * _ROOM, max(across, near[1]) * _ROOM
        offset = rng.randrange(1, _ROOM)
        gaps.append((row, column + offset) if step[0] else (row + offset, column))
    return grid.floor_of(side, side, free | set(gaps)), gaps


def _drawn_floor(floor: grid.Floor, canvas: Canvas, look: Look) -> grid.FloorPen:
    """Draw walls and the empty strip; return the pen for what else is on the floor."""
    room = (8, 8, SIDE - 16, SIDE - 16 - _STRIP)
    pen = grid.FloorPen(canvas, len(floor), len(floor[0]), room=room)
    pen.walls(floor, look)
    top = SIDE - _STRIP
    canvas.path(((8, top), (SIDE - 8, top)), color=look.ink, width=1.5)
    canvas.text(16, top + _STRIP / 2 - 2, "carried:", color=look.ink, size=18, at="lm")
    return pen


def _draw_house(pen: grid.FloorPen, cell: Cell) -> None:
    left, top = pen.corner(cell)
    size = pen.cell
    walls = [left + size * 0.12, top + size * 0.4, left + size * 0.88, top + size * 0.96]
    pen.canvas.box(*walls, fill=(222, 212, 190), line=(60, 60, 60), width=1.5)
    pen.outline((left, top), size, ((0.5, 0.04), (0.98, 0.42), (0.02, 0.42)), (110, 60, 50))


def _draw_key(canvas: Canvas, x: float, y: float, radius: float, name: str) -> None:
    color, width = COLORS[name], radius * 0.34
    canvas.disc(x - radius * 0.45, y, radius * 0.52, line=color, width=width)
    canvas.box(x, y - width / 2, x + radius, y + width / 2, fill=color)
    for tooth in (0.4, 0.8):
        left = x + radius * tooth - width / 2
        canvas.box(left, y, left + width, y + radius * 0.5, fill=color)


def _draw_door(pen: grid.FloorPen, cell: Cell, name: str) -> None:
    (left, top), (x, y) = pen.corner(cell), pen.center(cell)
    size, dark = pen.cell, (30, 30, 30)
    pen.canvas.box(left, top, left + size, top + size, fill=COLORS[name], line=dark, width=2)
    pen.canvas.disc(x, y - size * 0.1, size * 0.14, fill=dark)
    pen.outline((x, y), size, ((0, -0.1), (0.13, 0.3), (-0.13, 0.3)), dark)
