"""Floors to cross: mazes, and frozen lakes."""

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

from envkit_visual import search
from envkit_visual.canvas import COLORS, SIDE, Canvas, Color, Look
from envkit_visual.cells import MOVES, Cell, cells_of, moved
from envkit_visual.grids import grid
from envkit_visual.world import LOOK, Outcome

_FEWEST = 18
"""Moves of the shortest path, so that a policy that does not see fails."""
_SIGHT = 2
"""Cells that are seen through the fog in each direction."""
_FOG: Color = (176, 180, 188)


class MazeState(grid.Walk):
    """Where the player is in a maze."""

    seen: grid.Floor
    """The part of the floor that is shown; "?" is a cell that is not."""


class Maze(grid.WalkWorld[MazeState]):
    """Walk through a maze to the star.

    The picture shows a maze from above. Move the disc to the star; dark cells are walls.
    """

    difficulty = ("side in cells", 9, 11, 15, 19)

    def create(self, rng: random.Random, size: int) -> MazeState:
        """Carve corridors, open a few loops, and choose two cells that are far enough apart."""
        return _drawn(rng, size, loops=size // 3)

    def draw(self, state: MazeState, canvas: Canvas, look: Look) -> None:
        """Draw walls, fog, the player and the goal."""
        pen = grid.FloorPen(canvas, len(state.seen), len(state.seen))
        pen.walls(state.seen, look)
        pen.fill_all(state.seen, "?", _FOG)
        first, second = [COLORS[name] for name in look.accents if name != "grey"][:2]
        canvas.shape("star", *pen.center(state.goal), pen.cell * 0.48, fill=second)
        canvas.disc(*pen.center(state.player), pen.cell * 0.36, fill=first)

    def tell(self, state: MazeState) -> str:
        """Write the maze as characters."""
        drawn = grid.written(state.seen, {state.goal: "*", state.player: "o"})
        return f"# wall, o disc, * star\n{drawn}"


class FogMaze(Maze):
    """Explore a maze under fog to reach the star.

    The picture shows a maze from above. Move the disc to the star; dark cells are walls. Plain grey
    fog hides cells that you have not seen yet, which may be walls or free. You see two cells far in
    every direction, and what you have seen stays visible.
    """

    difficulty = ("side in cells", 9, 11, 13, 17)

    def create(self, rng: random.Random, size: int) -> MazeState:
        """Draw a maze with many loops that can be explored within the moves."""
        while True:
            clear = _drawn(rng, size, loops=size // 2)
            state = _lit(replace(clear, seen=tuple("?" * len(line) for line in clear.floor)))
            if _is_explored_within(state, math.floor(1.4 * state.distance)):
                return state

    def tell(self, state: MazeState) -> str:
        """Write what was seen as characters."""
        return f"? fog, {super().tell(state)}"

    def play(self, state: MazeState, choice: str) -> Outcome[MazeState]:
        """Move one cell, and see around it."""
        outcome = super().play(state, choice)
        return replace(outcome, state=_lit(outcome.state))


def _drawn(rng: random.Random, size: int, *, loops: int) -> MazeState:
    """Return a maze with a start and a goal, all of it seen."""
    while True:
        floor = _carved(rng, size | 1, loops)
        walk = grid.walk(rng, floor, grid.links(floor).__getitem__, _FEWEST)
        if walk is not None:
            return MazeState(**vars(walk), seen=floor)


def _carved(rng: random.Random, side: int, loops: int) -> grid.Floor:
    """Return the floor of a maze by a randomized depth-first search, with some loops."""
    cells: set[Cell] = {(1, 1)}
    trail: list[Cell] = [(1, 1)]
    while trail:
        steps = [(moved(trail[-1], step), step) for step in MOVES.values()]
        hops = [(between, moved(between, step)) for between, step in steps]
        ways = [(at, to) for at, to in hops if min(to) > 0 and max(to) < side and to not in cells]
        if not ways:
            trail.pop()
            continue
        between, beyond = rng.choice(ways)
        cells |= {between, beyond}
        trail.append(beyond)
    for _ in range(loops):
        row, column = rng.randrange(1, side - 1), rng.randrange(1, side - 1)
        if row % 2 != column % 2:
            cells.add((row, column))
    return grid.floor_of(side, side, cells)


def _lit(state: MazeState) -> MazeState:
    """Return a state in which the cells around the player are seen."""
    row, column = state.player
    left, right = max(0, column - _SIGHT), column + _SIGHT + 1
    seen = tuple(
        old[:left] + true[left:right] + old[right:] if abs(at - row) <= _SIGHT else old
        for at, (old, true) in enumerate(zip(state.seen, state.floor, strict=True))
    )
    return replace(state, seen=seen)


def _is_explored_within(state: MazeState, moves: int) -> bool:
    """Return whether a player reaches the goal who takes fog for free cells until it lifts."""
    while moves > 0:
        for name in grid.way(state.seen, state.player, state.goal):
            target = moved(state.player, MOVES[name])
            if moves == 0 or not grid.is_free(state.seen, target):
                break
            state = _lit(replace(state, player=target))
            moves -= 1
        if state.player == state.goal:
            return True
    return False


_ICE: tuple[Color, ...] = ((214, 234, 246), (226, 238, 240), (222, 228, 246))
_WATER: tuple[Color, ...] = ((20, 58, 110), (18, 74, 96), (36, 44, 104))
_ROCKS: tuple[Color, ...] = ((112, 104, 98), (104, 108, 116), (122, 108, 92))
_LINES: Color = (150, 165, 180)
_ICE_SIDE = 10
_ICY = 0.6
"""Part of the lake without holes."""


class Lake(grid.WalkWorld[grid.Walk]):
    """Cross a frozen lake to the flag without falling into a hole.

    The picture shows a frozen lake from above, divided into cells. Dark discs are holes. Move the
    person one cell at a time to the flag. Whoever enters a hole has lost. Nobody can leave the
    lake.
    """

    difficulty = ("side in cells", 5, 7, 9, 12)
    moves_per_reply = 3

    def create(self, rng: random.Random, size: int) -> grid.Walk:
        """Draw holes until two cells are far enough apart."""
        cells = cells_of(size, size)
        while True:
            floor = grid.floor_of(size, size, set(rng.sample(cells, round(size * size * _ICY))))
            walk = grid.walk(rng, floor, grid.links(floor).__getitem__, size + 1)
            if walk is not None:
                return walk

    def draw(self, state: grid.Walk, canvas: Canvas, look: Look) -> None:
        """Draw the ice, its holes, the person and the flag."""
        pen = grid.FloorPen(canvas, len(state.floor), len(state.floor))
        for row in range(pen.rows):
            pen.cover((row, 0), look.rng("ice").choice(_ICE), across=pen.columns)
        pen.grid(_LINES)
        water = look.rng("water").choice(_WATER)
        for hole in grid.cells_with(state.floor, "#"):
            canvas.disc(*pen.center(hole), pen.cell * 0.42, fill=water)
        left, top = pen.corner(state.goal)
        pole = [(left + pen.cell * 0.62, top + pen.cell * part) for part in (0.1, 0.92)]
        canvas.path(pole, color=(40, 40, 40), width=max(2, pen.cell * 0.07))
        pen.outline((left, top), pen.cell, ((0.66, 0.08), (1.0, 0.3), (0.66, 0.54)), COLORS["red"])
        pen.figure(state.player, COLORS["orange"], is_shared=state.player == state.goal)

    def tell(self, state: grid.Walk) -> str:
        """Write the lake as characters."""
        marks = {state.goal: "F", state.player: "P"}
        return f"# hole, P person, F flag\n{grid.written(state.floor, marks)}"

    def play(self, state: grid.Walk, choice: str) -> Outcome[grid.Walk]:
        """Move one cell, into a hole too, or stay at the edge."""
        target = moved(state.player, MOVES[choice])
        after = replace(state, player=target) if grid.is_inside(state.floor, target) else state
        fell = not grid.is_free(state.floor, after.player)
        return Outcome(state=after, text="The person fell into a hole." if fell else LOOK)

    def is_over(self, state: grid.Walk) -> bool:
        """Return whether the person is at the flag or in a hole."""
        return self.is_solved(state) or not grid.is_free(state.floor, state.player)

    def plan(self, state: grid.Walk) -> list[str]:
        """Return the shortest way."""
        return [] if self.is_over(state) else super().plan(state)


class Ice(grid.WalkWorld[grid.Walk]):
    """Slide over ice from rock to rock to stop on the star.

    The picture shows a sheet of ice from above, with open water around it. A move slides the disc
    in that direction until a rock stops it, on the cell before the rock. Without a rock in its way
    it slides into the water, and the game is lost. Make the disc stop on the star; to slide over
    the star is not enough.
    """

    difficulty = ("number of rocks", 16, 21, 26, 31)

    def create(self, rng: random.Random, size: int) -> grid.Walk:
        """Draw rocks until a cell can be reached by enough slides."""
        cells = cells_of(_ICE_SIDE, _ICE_SIDE)
        while True:
            floor = grid.floor_of(_ICE_SIDE, _ICE_SIDE, set(cells) - set(rng.sample(cells, size)))
            walk = grid.walk(rng, floor, functools.partial(_slides, floor), 7 + (size - 16) // 7)
            if walk is not None:
                return walk

    def draw(self, state: grid.Walk, canvas: Canvas, look: Look) -> None:
        """Draw water, ice, rocks, the star and the disc, which may be in the water."""
        side = len(state.floor)
        pen = grid.FloorPen(canvas, side + 2, side + 2, room=(4, 4, SIDE - 8, SIDE - 8))
        water = look.rng("water").choice(_WATER)
        canvas.box(pen.left, pen.top, pen.right, pen.bottom, fill=water)
        for row in range(1, side + 1):
            pen.cover((row, 1), look.rng("ice").choice(_ICE), across=side)
        for at in range(1, side + 2):
            canvas.path((pen.corner((at, 1)), pen.corner((at, side + 1))), color=_LINES)
            canvas.path((pen.corner((1, at)), pen.corner((side + 1, at))), color=_LINES)
        rock = look.rng("rocks").choice(_ROCKS)
        rocks = [(cell, "hexagon", 0.46, rock) for cell in grid.cells_with(state.floor, "#")]
        star = (state.goal, "star", 0.5, COLORS["red"])
        disc = (state.player, "circle", 0.34, COLORS["orange"])
        for cell, shape, size, fill in (*rocks, star, disc):
            canvas.shape(shape, *pen.center(moved(cell, (1, 1))), pen.cell * size, fill=fill)

    def tell(self, state: grid.Walk) -> str:
        """Write the ice as characters."""
        marks = {state.goal: "*", state.player: "o"}
        text = f"# rock, o disc, * star, water around\n{grid.written(state.floor, marks)}"
        is_dry = grid.is_free(state.floor, state.player)
        return text if is_dry else f"{text}\nThe disc is in the water."

    def play(self, state: grid.Walk, choice: str) -> Outcome[grid.Walk]:
        """Slide until a rock or into the water."""
        stop = _slid(state.floor, state.player, MOVES[choice])
        if stop == state.player:
            return Outcome(state=state, text="A rock is in the way.")
        is_dry = grid.is_inside(state.floor, stop)
        text = "The disc slid." if is_dry else "The disc slid into the water."
        return Outcome(state=replace(state, player=stop), text=text)

    def is_over(self, state: grid.Walk) -> bool:
        """Return whether the disc is on the star, or can no longer stop there."""
        return not self.plan(state)

    def plan(self, state: grid.Walk) -> list[str]:
        """Return the fewest slides."""
        slides = functools.partial(_slides, state.floor)
        return search.shortest(state.player, state.goal.__eq__, slides) or []


def _slid(floor: grid.Floor, cell: Cell, step: Cell) -> Cell:
    """Return where a disc stops, or the cell of water that it slides into."""
    while grid.is_inside(floor, near := moved(cell, step)):
        if not grid.is_free(floor, near):
            return cell
        cell = near
    return near


def _slides(floor: grid.Floor, cell: Cell) -> Iterator[tuple[str, Cell]]:
    """Yield the slides from a cell that end on the ice; there are none from the water."""
    for name, step in MOVES.items():
        stop = _slid(floor, cell, step)
        if grid.is_inside(floor, cell) and grid.is_inside(floor, stop):
            yield name, stop
