"""Boards of cells to press, to open and to jump over."""

import functools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from envkit_visual.canvas import COLORS, Canvas, Look
from envkit_visual.cells import DARK, LIGHT, Cell, CellPen, around, cell_name, cells_of, table
from envkit_visual.world import LOOK, ChoiceWorld, Outcome, Record

_LAMP_SIDE = 5
_LAMPS = cells_of(_LAMP_SIDE, _LAMP_SIDE)
_PRESSES = tuple(
    sum(1 << _LAMPS.index(cell) for cell in (here, *around(here, _LAMP_SIDE, _LAMP_SIDE)))
    for here in _LAMPS
)
"""The lamps that each press changes, as bits."""


class LightsState(Record):
    """Which lamps are on."""

    lit: int
    """The lamps that are on as bits, row by row."""


class Lights(ChoiceWorld[LightsState]):
    """Switch every lamp off.

    The picture shows 25 lamps; yellow ones are on. Pressing a lamp switches it and its neighbours
    above, below, left and right: on becomes off, and off becomes on. Switch all lamps off.

    An action is the lamp to press, by the letter of its column and the number of its row, such as
    B3.
    """

    difficulty = ("presses of the shortest solution", 2, 4, 6, 9)
    options = tuple(map(cell_name, _LAMPS))
    refusal = "a lamp is a letter A to E and a number 1 to 5"

    def create(self, rng: random.Random, size: int) -> LightsState:
        """Press as many lamps as the shortest solution is to have."""
        while True:
            bits = functools.reduce(int.__xor__, rng.sample(_PRESSES, size))
            if len(_fewest(bits)) == size:
                return LightsState(lit=bits)

    def draw(self, state: LightsState, canvas: Canvas, look: Look) -> None:
        """Draw the lamps."""
        pen = CellPen(canvas, _LAMP_SIDE, _LAMP_SIDE)
        pen.labels(look.ink)
        for place, cell in enumerate(_LAMPS):
            pen.fill(cell, (70, 74, 92), inset=3, round_by=10)
            fill = (255, 214, 40) if state.lit >> place & 1 else (38, 41, 54)
            canvas.disc(*pen.center(cell), pen.cell * 0.33, fill=fill)

    def tell(self, state: LightsState) -> str:
        """Write the lamps as characters."""
        words = [".*"[state.lit >> place & 1] for place in range(len(_LAMPS))]
        return "* on, . off\n" + table(words, _LAMP_SIDE)

    def play(self, state: LightsState, choice: str) -> Outcome[LightsState]:
        """Press a lamp."""
        bits = state.lit ^ _PRESSES[self.options.index(choice)]
        return Outcome(state=LightsState(lit=bits), text="Pressed.")

    def progress(self, state: LightsState) -> float:
        """Return the part of the lamps that is off."""
        return 1 - state.lit.bit_count() / len(_LAMPS)

    def plan(self, state: LightsState) -> list[str]:
        """Return the smallest set of presses."""
        return [self.options[place] for place in _fewest(state.lit)]

    def goal(self, state: LightsState) -> LightsState:
        """Return the board with every lamp off."""
        return LightsState(lit=0)


def _fewest(lit: int) -> list[int]:
    """Return the smallest set of presses that switches these lamps off.

    Presses in the first row decide all others: each of those switches off the lamp above it.
    """
    found: list[list[int]] = []
    for first in range(2**_LAMP_SIDE):
        left, presses = lit, list[int]()
        for place, lamps in enumerate(_PRESSES):
            if first >> place & 1 if place < _LAMP_SIDE else left >> place - _LAMP_SIDE & 1:
                left ^= lamps
                presses.append(place)
        if not left:
            found.append(presses)
    return min(found, key=lambda presses: (len(presses), presses[::-1]))


_SIDE = 7
_CELLS = {cell_name(cell): cell for cell in cells_of(_SIDE, _SIDE)}
_BIT = {cell: 1 << place for place, cell in enumerate(_CELLS.values())}
_ALL = sum(_BIT.values())
_NEAR = {cell: sum(_BIT[at] for at in around(cell, _SIDE, _SIDE, diagonal=True)) for cell in _BIT}
_FEWEST = 4
"""Cells to open at least, so that luck does not suffice."""


class MinesState(Record):
    """The mines and what is open."""

    mines: tuple[Cell, ...]
    open: tuple[Cell, ...]
    """Sorted."""
    first: int
    """How many cells are open at the start."""


class Mines(ChoiceWorld[MinesState]):
    """Open every cell that has no mine.

    The picture shows a minefield. A number in an open cell says how many of the up to eight cells
    around it have a mine; an empty open cell has none around it. Dark cells are closed. Open all
    closed cells that have no mine. No guess is needed. Opening a mine loses. Opening a cell with no
    mine around it opens the cells around it too.

    An action is the cell to open, by the letter of its column and the number of its row, such as
    B3.
    """

    difficulty = ("number of mines", 4, 7, 10, 13)
    options = tuple(_CELLS)
    refusal = "a cell is a letter A to G and a number 1 to 7"

    def create(self, rng: random.Random, size: int) -> MinesState:
        """Lay mines and open an empty area, until rules alone open the rest."""
        while True:
            mines = _bits(rng.sample([*_BIT], size))
            empty = [cell for cell in _BIT if not (_BIT[cell] | _NEAR[cell]) & mines]
            if not empty:
                continue
            opened = _opened(mines, 0, rng.choice(empty))
            if len(_solution(mines, opened) or ()) >= _FEWEST:
                first = opened.bit_count()
                return MinesState(mines=_cells(mines), open=_cells(opened), first=first)

    def draw(self, state: MinesState, canvas: Canvas, look: Look) -> None:
        """Draw closed cells, numbers, and a mine that was opened."""
        pen = CellPen(canvas, _SIDE, _SIDE)
        for cell, sign in zip(_BIT, _signs(state), strict=True):
            pen.fill(cell, DARK if sign == "#" else LIGHT)
            if sign == "*":
                canvas.disc(*pen.center(cell), pen.cell * 0.3, fill=COLORS["red"])
            elif sign not in "#0":
                canvas.text(*pen.center(cell), sign, color=(20, 20, 24), size=30)
        pen.grid((165, 168, 178), width=1.5)
        pen.labels(look.ink)

    def tell(self, state: MinesState) -> str:
        """Write the board."""
        return "# closed, * mine, 0 empty\n" + table(_signs(state), _SIDE)

    def play(self, state: MinesState, choice: str) -> Outcome[MinesState]:
        """Open a cell."""
        cell = _CELLS[choice]
        if cell in state.open:
            return Outcome(state=state, text="That cell is open already.")
        opened = _cells(_opened(_bits(state.mines), _bits(state.open), cell))
        text = "That was a mine." if cell in state.mines else "Opened."
        return Outcome(state=replace(state, open=opened), text=text)

    def is_over(self, state: MinesState) -> bool:
        """Return whether all is open or a mine was opened."""
        return self._is_lost(state) or self.is_solved(state)

    def progress(self, state: MinesState) -> float:
        """Return the part of the closed cells without a mine that was opened."""
        if self._is_lost(state):
            return 0.0
        all_closed = len(_BIT) - len(state.mines) - state.first
        return (len(state.open) - state.first) / all_closed

    def plan(self, state: MinesState) -> list[str]:
        """Return the fewest cells that open the rest, each known to be free when it is opened."""
        if self._is_lost(state):
            return []
        moves = _solution(_bits(state.mines), _bits(state.open))
        return list(map(cell_name, moves or ()))

    def _is_lost(self, state: MinesState) -> bool:
        return not set(state.mines).isdisjoint(state.open)


def _signs(state: MinesState) -> list[str]:
    """Return what each cell shows: "#" is closed, "*" a mine, and a digit the mines near it."""
    mines = _bits(state.mines)
    signs = dict.fromkeys(_BIT, "#")
    signs |= {cell: str((_NEAR[cell] & mines).bit_count()) for cell in state.open}
    signs |= dict.fromkeys(set(state.mines) & set(state.open), "*")
    return [*signs.values()]


def _bits(cells: Iterable[Cell]) -> int:
    return sum(_BIT[cell] for cell in cells)


def _cells(bits: int) -> tuple[Cell, ...]:
    return tuple(cell for cell, bit in _BIT.items() if bits & bit)


def _opened(mines: int, opened: int, cell: Cell) -> int:
    """Open a cell, and all around it where no mine is near."""
    waiting = [cell]
    while waiting:
        here = waiting.pop()
        if not opened & _BIT[here]:
            opened |= _BIT[here]
            if not (_BIT[here] | _NEAR[here]) & mines:
                waiting.extend(_cells(_NEAR[here] & ~opened))
    return opened


def _solution(mines: int, opened: int) -> list[Cell] | None:
    """Return the fewest cells to open, in an order that needs no guess; None if there is none."""
    moves: list[Cell] = []
    while opened | mines != _ALL:
        cells = _cells(_free(mines, opened, _needed(mines, opened)))
        if not cells:
            return None
        moves.append(cells[0])
        opened = _opened(mines, opened, cells[0])
    return moves


def _needed(mines: int, opened: int) -> int:
    """Return the cells without a mine that a shortest solution may open."""
    closed = _cells(_ALL & ~opened & ~mines)
    empty = _bits(cell for cell in closed if not _NEAR[cell] & mines)
    return empty | _bits(cell for cell in closed if not _NEAR[cell] & empty)


def _free(mines: int, opened: int, wanted: int) -> int:
    """Return wanted cells that the numbers prove free; 0 if they prove none.

    A rule is closed cells as bits, and how many of them are mines.
    """
    rules: set[tuple[int, int]] = {
        (_NEAR[cell] & ~opened, (_NEAR[cell] & mines).bit_count()) for cell in _cells(opened)
    }
    while True:
        free = mined = 0
        for cells, count in rules:
            if count == 0:
                free |= cells
            elif count == cells.bit_count():
                mined |= cells
        if free & wanted:
            return free & wanted
        added = {
            (cells & ~(free | mined), count - (cells & mined).bit_count()) for cells, count in rules
        } - {(0, 0)}
        if added == rules:  # single numbers prove no more: compare pairs
            added |= {
                (more & ~cells, high - count)
                for cells, count in rules
                for more, high in rules
                if cells & more == cells != more
            }
            if added == rules:
                return 0
        rules = added


_HOLES = [cell for cell in cells_of(_SIDE, _SIDE) if 2 <= cell[0] <= 4 or 2 <= cell[1] <= 4]
_NAMES = frozenset(map(cell_name, _HOLES))
_JUMPS = {
    f"{cell_name(start)} {cell_name(end)}": (_BIT[start] | _BIT[over], _BIT[end])
    for start in _HOLES
    for over in around(start, _SIDE, _SIDE)
    if over in _HOLES and (end := (2 * over[0] - start[0], 2 * over[1] - start[1])) in _HOLES
}
"""The bits of the two pegs that each jump needs, and the bit of the hole that must be empty."""


class PegsState(Record):
    """Where the pegs are."""

    pegs: tuple[Cell, ...]
    """Sorted."""
    first: int
    """Number of pegs at the start."""


class Pegs(ChoiceWorld[PegsState]):
    """Jump pegs over pegs until one is left.

    The picture shows a board of holes, some with a peg. A peg jumps over a peg next to it, up,
    down, left or right, into the empty hole right behind; the peg that it jumps over is taken off.
    Leave a single peg. The task ends when that is no longer possible.

    An action is the hole to jump from and the hole to jump to, each by the letter of its column and
    the number of its row, such as B3 D3.
    """

    difficulty = ("number of pegs", 4, 6, 8, 12)
    options = tuple(_JUMPS)

    def create(self, rng: random.Random, size: int) -> PegsState:
        """Jump backwards from a single peg."""
        while True:
            bits = _BIT[rng.choice(_HOLES)]
            for _ in range(size - 1):
                ways = [(off, on) for on, off in _JUMPS.values() if bits & off and not bits & on]
                if not ways:
                    break
                off, on = rng.choice(ways)
                bits = bits ^ off | on
            if bits.bit_count() == size:
                return PegsState(pegs=_cells(bits), first=size)

    def draw(self, state: PegsState, canvas: Canvas, look: Look) -> None:
        """Draw holes and pegs."""
        pen = CellPen(canvas, _SIDE, _SIDE)
        color = COLORS[look.accents[0]]
        for cell in _HOLES:
            pen.fill(cell, (226, 205, 170))
            canvas.disc(*pen.center(cell), pen.cell * 0.12, fill=DARK)
            if cell in state.pegs:
                canvas.disc(*pen.center(cell), pen.cell * 0.36, fill=color, line=look.ink, width=2)
        pen.labels(look.ink)

    def tell(self, state: PegsState) -> str:
        """Write the board."""
        signs = {cell: "o" if cell in state.pegs else "." for cell in _HOLES}
        words = [signs.get(cell, " ") for cell in cells_of(_SIDE, _SIDE)]
        return "o peg, . empty hole\n" + table(words, _SIDE)

    def act(self, state: PegsState, action: str) -> Outcome[PegsState]:
        """Jump; two holes that are too far apart are an action too."""
        holes = action.upper().replace(",", " ").split()
        if len(holes) != 2 or not _NAMES.issuperset(holes):
            return Outcome(state=state, error="a jump is two holes, such as B3 D3")
        return self.play(state, " ".join(holes))

    def play(self, state: PegsState, choice: str) -> Outcome[PegsState]:
        """Jump, if that is possible; the text does not say, which would spare a look."""
        bits = dict(_jumped(_bits(state.pegs))).get(choice)
        after = state if bits is None else replace(state, pegs=_cells(bits))
        return Outcome(state=after, text=LOOK)

    def is_over(self, state: PegsState) -> bool:
        """Return whether one peg is left, or cannot be."""
        return not self.plan(state)

    def progress(self, state: PegsState) -> float:
        """Return the part of the jumps that is done."""
        return (state.first - len(state.pegs)) / (state.first - 1)

    def plan(self, state: PegsState) -> list[str]:
        """Return jumps that leave one peg."""
        return list(_jumps(_bits(state.pegs)) or ())


def _jumped(bits: int) -> Iterator[tuple[str, int]]:
    """Yield each jump that is possible, and the pegs after it."""
    for name, (taken, put) in _JUMPS.items():
        if bits & taken == taken and not bits & put:
            yield name, bits ^ taken | put


@functools.lru_cache(maxsize=100_000)
def _jumps(bits: int) -> tuple[str, ...] | None:
    """Return jumps that leave one peg, by depth-first search; None if there are none."""
    if bits.bit_count() == 1:
        return ()
    for name, after in _jumped(bits):
        rest = _jumps(after)
        if rest is not None:
            return name, *rest
    return None
