"""Floors seen from above: walls, shortest paths, drawing, and worlds of someone who walks."""

import functools
import random
import re
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, Final, TypeVar

from envkit_visual import search
from envkit_visual.canvas import SIDE, Color, Look, Point
from envkit_visual.cells import MOVES, Cell, CellPen, cells_of, moved
from envkit_visual.world import LOOK, ChoiceWorld, Outcome, Record

Floor = tuple[str, ...]
"""The cells of a grid as rows of characters. "#" is a wall."""

OBJECT_COLORS: Final = ("red", "blue", "green", "yellow", "purple", "orange", "pink", "cyan")
"""Names of the colors that differ from each other and from every wall."""

MOST: Final = 64
"""Actions of the longest plan."""

_WALLS: tuple[Color, ...] = ((74, 78, 90), (94, 82, 72), (62, 86, 88), (88, 76, 100))


class Standing(Record):
    """Someone on a floor."""

    floor: Floor
    player: Cell


class Walk(Standing):
    """Someone on the way to a cell."""

    goal: Cell
    distance: int
    """Actions of the plan at the start."""


G = TypeVar("G", bound=Standing)
W = TypeVar("W", bound=Walk)


class GridWorld(ChoiceWorld[G], ABC):
    """A world whose actions are the four moves."""

    actions: ClassVar[str] = "one of up, down, left, right"
    options = tuple(MOVES)
    refusal = "a move is up, down, left or right"

    def play(self, state: G, choice: str) -> Outcome[G]:
        """Move one cell, unless a wall is there.

        The text does not say which: whoever hears of walls finds the goal without seeing it.
        """
        target = moved(state.player, MOVES[choice])
        after = replace(state, player=target) if is_free(state.floor, target) else state
        return Outcome(state=after, text=LOOK)


class WalkWorld(GridWorld[W], ABC):
    """A world in which a cell has to be reached."""

    def is_solved(self, state: W) -> bool:
        """Return whether the player is at the goal."""
        return state.player == state.goal

    def plan(self, state: W) -> list[str]:
        """Return the shortest way."""
        return way(state.floor, state.player, state.goal)

    def progress(self, state: W) -> float:
        """Return how much of the way is done; nothing where there is none."""
        if self.is_solved(state):
            return 1.0
        left = len(self.plan(state))
        return max(0.0, 1 - left / state.distance) if left else 0.0


def is_inside(floor: Floor, cell: Cell) -> bool:
    """Return whether a cell is on the grid."""
    return 0 <= cell[0] < len(floor) and 0 <= cell[1] < len(floor[0])


def is_free(floor: Floor, cell: Cell) -> bool:
    """Return whether a cell is on the grid and not a wall."""
    return is_inside(floor, cell) and floor[cell[0]][cell[1]] != "#"


def cells_with(floor: Floor, kinds: str) -> list[Cell]:
    """Return the cells that hold one of some characters, in reading order."""
    cells = cells_of(len(floor), len(floor[0]))
    return [cell for cell in cells if floor[cell[0]][cell[1]] in kinds]


def free_cells(floor: Floor) -> list[Cell]:
    """Return the cells that are not walls, in reading order."""
    return cells_with(floor, ".?")


def floor_of(rows: int, columns: int, free: Iterable[Cell]) -> Floor:
    """Return the floor with these free cells."""
    return marked(("#" * columns,) * rows, dict.fromkeys(free, "."))


def marked(floor: Floor, marks: Mapping[Cell, str]) -> Floor:
    """Return a floor with other characters in some cells."""
    return tuple(
        "".join(marks.get((row, column), kind) for column, kind in enumerate(line))
        for row, line in enumerate(floor)
    )


@functools.lru_cache(maxsize=128)
def links(floor: Floor) -> Mapping[Cell, Sequence[tuple[str, Cell]]]:
    """Return the moves from each free cell, by name and cell."""
    found = {cell: list[tuple[str, Cell]]() for cell in free_cells(floor)}
    for row, column in found:
        for name, (down, across) in MOVES.items():
            if (near := (row + down, column + across)) in found:
                found[row, column].append((name, near))
    return found


@functools.lru_cache(maxsize=128)
def distances(floor: Floor, goal: Cell) -> Mapping[Cell, int]:
    """Return the moves to a cell from every cell that reaches it."""
    return MappingProxyType(search.distances([goal], links(floor).__getitem__))


def way(floor: Floor, start: Cell, goal: Cell) -> list[str]:
    """Return the fewest moves between two connected cells."""
    return search.descent(start, distances(floor, goal), links(floor).__getitem__)


def walk(rng: random.Random, floor: Floor, steps: search.Steps[Cell], fewest: int) -> Walk | None:
    """Return a walk between two cells that are far enough apart; None if there are no such cells.

    Args:
        rng: The only source of chance.
        floor: The floor.
        steps: The steps from a cell.
        fewest: How many steps it takes at least.
    """
    player = rng.choice(free_cells(floor))
    away = search.distances([player], steps)
    goals = [cell for cell, count in away.items() if fewest <= count <= MOST]
    if not goals:
        return None
    goal = rng.choice(goals)
    return Walk(floor=floor, player=player, goal=goal, distance=away[goal])


def room(rng: random.Random, rows: int, columns: int, walls: int, *, rim: int = 0) -> Floor:
    """Return a connected floor with some walls inside, and walls around it if it has a rim."""
    cells = [(row + rim, column + rim) for row, column in cells_of(rows, columns)]
    while True:
        free = set(cells) - set(rng.sample(cells, walls))
        floor = floor_of(rows + 2 * rim, columns + 2 * rim, free)
        if len(distances(floor, min(free))) == len(free):
            return floor


def written(floor: Floor, marks: Mapping[Cell, str]) -> str:
    """Write a floor as characters, with marks on some cells."""
    return "\n".join(marked(floor, marks))


class FloorPen(CellPen):
    """Draws a floor and who walks on it."""

    room = (8, 8, SIDE - 16, SIDE - 16)

    def center(self, cell: Cell) -> Point:
        """Return the center of a cell."""
        left, top = self.corner(cell)
        return left + self.cell / 2, top + self.cell / 2

    def cover(self, cell: Cell, color: Color, *, across: int = 1) -> None:
        """Fill a cell, and those to the right of it."""
        left, top = self.corner(cell)
        self.canvas.box(left, top, left + self.cell * across, top + self.cell, fill=color)

    def fill_all(self, floor: Floor, kind: str, color: Color) -> None:
        """Fill every cell that holds a character."""
        runs = re.compile(f"{re.escape(kind)}+")
        for row, line in enumerate(floor):
            for run in runs.finditer(line):
                self.cover((row, run.start()), color, across=len(run[0]))

    def walls(self, floor: Floor, look: Look) -> None:
        """Fill the walls."""
        self.fill_all(floor, "#", look.rng("walls").choice(_WALLS))

    def spot(self, cell: Cell, *, is_shared: bool) -> tuple[float, float, float]:
        """Return the center and the radius of a thing: in a corner of a cell that is shared."""
        x, y = self.center(cell)
        if is_shared:
            return x + self.cell * 0.27, y + self.cell * 0.27, self.cell * 0.2
        return x, y, self.cell * 0.36

    def figure(self, cell: Cell, color: Color, *, is_shared: bool = False) -> None:
        """Draw a person, who leaves the bottom right corner of a shared cell free."""
        x, y = self.center(cell)
        size = self.cell * 0.42
        if is_shared:
            x, y, size = x - self.cell * 0.2, y - self.cell * 0.08, self.cell * 0.38
        self.canvas.disc(x, y - size * 0.5, size * 0.42, fill=color)
        self.outline((x, y), size, ((-0.3, 0), (0.3, 0), (0.6, 0.95), (-0.6, 0.95)), color)

    def outline(self, at: Point, size: float, corners: Sequence[Point], color: Color) -> None:
        """Fill a shape, whose corners are in parts of a size."""
        x, y = at
        self.canvas.polygon([(x + size * a, y + size * b) for a, b in corners], fill=color)
