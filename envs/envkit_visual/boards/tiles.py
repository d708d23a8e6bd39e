"""Boards of symbols: sliding tiles and a small sudoku."""

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import isqrt

from envkit_visual.canvas import COLORS, SHAPES, Canvas, Color, Look
from envkit_visual.cells import (
    DARK,
    LIGHT,
    SHADE,
    Cell,
    CellPen,
    around,
    cell_name,
    cells_of,
    table,
)
from envkit_visual.search import fillings
from envkit_visual.world import ChoiceWorld, Outcome, Record

_SYMBOLS = (*sorted(SHAPES), "ring")

Tiles = tuple[str, ...]
"""Symbols row by row; an empty text is the gap."""

_CELLS = cells_of(3, 3)
_NEAR = tuple(tuple(map(_CELLS.index, around(cell, 3, 3))) for cell in _CELLS)


class SlideState(Record):
    """Where the tiles are, and where they belong."""

    tiles: Tiles
    goal: Tiles


class Slide(ChoiceWorld[SlideState]):
    """Slide eight tiles into the order of the goal.

    The picture shows a board with eight tiles and a gap, and a small board named Goal. A tile next
    to the gap, above, below, left or right of it, can slide into it. Bring all tiles to their
    places in the goal.
    """

    name = "slide-8"
    actions = f"the symbol of the tile to slide: {', '.join(_SYMBOLS[:-1])} or {_SYMBOLS[-1]}"
    difficulty = ("moves of the shortest solution", 4, 8, 14, 22)
    options = _SYMBOLS
    refusal = "a tile is named by its symbol"

    def create(self, rng: random.Random, size: int) -> SlideState:
        """Shuffle a random goal until the shortest solution has the length."""
        goal: Tiles = tuple(rng.sample(("", *_SYMBOLS), 9))
        while True:
            tiles, last = goal, ""
            for _ in range(size):
                last, tiles = rng.choice([step for step in _slides(tiles) if step[0] != last])
            if len(_route(tiles, goal)) == size:
                return SlideState(tiles=tiles, goal=goal)

    def draw(self, state: SlideState, canvas: Canvas, look: Look) -> None:
        """Draw the board and the goal."""
        colors = _symbol_colors(look)
        _draw_tiles(CellPen(canvas, 3, 3, room=(14, 70, 300, 300)), state.tiles, colors, look)
        _draw_tiles(CellPen(canvas, 3, 3, room=(328, 100, 108, 108)), state.goal, colors, look)
        canvas.text(382, 84, "Goal", color=look.ink, size=18)

    def tell(self, state: SlideState) -> str:
        """Write both boards."""
        shown = (state.tiles, state.goal)
        return "\nGoal:\n".join(table([tile or "gap" for tile in tiles], 3) for tiles in shown)

    def play(self, state: SlideState, choice: str) -> Outcome[SlideState]:
        """Slide a tile."""
        slid = dict(_slides(state.tiles)).get(choice)
        if slid is None:
            return Outcome(state=state, text="That tile is not next to the gap.")
        return Outcome(state=replace(state, tiles=slid), text="Moved.")

    def progress(self, state: SlideState) -> float:
        """Return the part of the places that is right."""
        return sum(map(str.__eq__, state.tiles, state.goal)) / 9

    def plan(self, state: SlideState) -> list[str]:
        """Return the shortest solution."""
        return _route(state.tiles, state.goal)

    def goal(self, state: SlideState) -> SlideState:
        """Return the board in order."""
        return replace(state, tiles=state.goal)


def _symbol_colors(look: Look) -> dict[str, Color]:
    """Return a colour for each symbol; it tells no more than the symbol."""
    return {kind: COLORS[name] for kind, name in zip(_SYMBOLS, look.accents, strict=False)}


def _draw_symbol(pen: CellPen, cell: Cell, kind: str, part: float, fill: Color) -> None:
    """Draw a symbol with a radius that is a part of its cell."""
    center, radius = pen.center(cell), pen.cell * part
    if kind == "ring":
        pen.canvas.disc(*center, radius, line=fill, width=radius * 0.36)
    else:
        pen.canvas.shape(kind, *center, radius, fill=fill)


def _draw_tiles(pen: CellPen, tiles: Tiles, colors: dict[str, Color], look: Look) -> None:
    edges = (pen.left - 4, pen.top - 4, pen.right + 4, pen.bottom + 4)
    pen.canvas.box(*edges, fill=DARK, line=look.ink)
    for cell, tile in zip(_CELLS, tiles, strict=True):
        if tile:
            pen.fill(cell, LIGHT, inset=pen.cell * 0.03, round_by=pen.cell * 0.1)
            _draw_symbol(pen, cell, tile, 0.33, colors[tile])


def _slides(tiles: Tiles) -> Iterator[tuple[str, Tiles]]:
    gap = tiles.index("")
    for place in _NEAR[gap]:
        slid = list(tiles)
        slid[gap], slid[place] = slid[place], ""
        yield tiles[place], tuple(slid)


def _route(start: Tiles, goal: Tiles) -> list[str]:
    """Search from both ends; a slide is undone by sliding the same tile."""
    ways: tuple[dict[Tiles, list[str]], ...] = ({start: []}, {goal: []})
    edges = [[start], [goal]]
    while not (met := ways[0].keys() & ways[1].keys()):
        side = len(edges[0]) > len(edges[1])
        edge: list[Tiles] = []
        for tiles in edges[side]:
            for name, slid in _slides(tiles):
                if slid not in ways[side]:
                    ways[side][slid] = [*ways[side][tiles], name]
                    edge.append(slid)
        edges[side] = edge
    routes = [ways[0][tiles] + ways[1][tiles][::-1] for tiles in met]
    return min(routes, key=lambda route: (len(route), route))


_KINDS = ("circle", "square", "triangle", "star", "cross", "ring")
_FEW = 8
"""Gaps up to which the board has four rows, not six."""


class SudokuState(Record):
    """The symbols row by row; an empty text is a gap."""

    given: tuple[str, ...]
    now: tuple[str, ...]
    solution: tuple[str, ...]


class Sudoku(ChoiceWorld[SudokuState]):
    """Fill a small sudoku of symbols.

    The picture shows a sudoku whose digits are symbols. It has 4 rows with the symbols circle,
    square, triangle and star, or 6 rows with cross and ring as well. Fill the gaps: each row, each
    column and each block between thick lines has each symbol once. Grey cells are given. A symbol
    that you placed may be replaced.

    An action is a cell, by the letter of its column and the number of its row, and a symbol, such
    as B3 star.
    """

    difficulty = ("number of gaps", 4, 8, 14, 22)
    refusal = "a move is a cell and a symbol, such as B3 star"

    def create(self, rng: random.Random, size: int) -> SudokuState:
        """Fill a board and remove symbols while there is one solution."""
        side = 4 if size <= _FEW else 6
        kinds, peers = _KINDS[:side], _peers(side)
        while True:
            full = next(fillings([""] * side**2, kinds, peers, rng))
            given = list(full)
            for place in rng.sample(range(side**2), side**2):
                given[place] = ""
                if len(list(islice(fillings(given, kinds, peers), 2))) > 1:
                    given[place] = full[place]
                if given.count("") == size:
                    return SudokuState(given=tuple(given), now=tuple(given), solution=full)

    def draw(self, state: SudokuState, canvas: Canvas, look: Look) -> None:
        """Draw the board."""
        side = isqrt(len(state.given))
        pen = CellPen(canvas, side, side)
        colors = _symbol_colors(look)
        for cell, given, kind in zip(cells_of(side, side), state.given, state.now, strict=True):
            pen.fill(cell, SHADE if given else LIGHT)
            if kind:
                _draw_symbol(pen, cell, kind, 0.3, colors[kind])
        pen.grid(look.ink, width=1.5)
        pen.grid(look.ink, rows=2, columns=side // 2, width=5)
        pen.labels(look.ink)

    def tell(self, state: SudokuState) -> str:
        """Write the board; given symbols are in brackets."""
        side = isqrt(len(state.given))
        places = zip(state.given, state.now, strict=True)
        words = [f"[{kind}]" if given else kind or "." for given, kind in places]
        head = f"[given], . gap; blocks of 2 rows and {side // 2} columns"
        return f"{head}\n{table(words, side)}"

    def play(self, state: SudokuState, choice: str) -> Outcome[SudokuState]:
        """Place a symbol."""
        place = self.choices(state).index(choice) // isqrt(len(state.given))
        if state.given[place]:
            return Outcome(state=state, text="That cell is given.")
        now = (*state.now[:place], choice.split()[1], *state.now[place + 1 :])
        return Outcome(state=replace(state, now=now), text="Placed.")

    def progress(self, state: SudokuState) -> float:
        """Return the part of the gaps that is right."""
        return 1 - len(self.plan(state)) / state.given.count("")

    def plan(self, state: SudokuState) -> list[str]:
        """Return the symbols that are missing or wrong."""
        side = isqrt(len(state.given))
        places = zip(cells_of(side, side), state.now, state.solution, strict=True)
        return [f"{cell_name(cell)} {right}" for cell, kind, right in places if kind != right]

    def choices(self, state: SudokuState) -> Sequence[str]:
        """Return every symbol in every cell."""
        side = isqrt(len(state.given))
        cells, kinds = cells_of(side, side), _KINDS[:side]
        return [f"{cell_name(cell)} {kind}" for cell in cells for kind in kinds]


@functools.lru_cache
def _peers(side: int) -> list[list[int]]:
    """Return the places in the row, the column and the block of each place."""
    units = [
        {("row", row), ("column", column), ("block", row // 2, column // (side // 2))}
        for row, column in cells_of(side, side)
    ]
    return [[at for at, other in enumerate(units) if unit & other] for unit in units]
