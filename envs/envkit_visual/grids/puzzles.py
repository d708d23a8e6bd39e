"""Boxes to push, and mirrors to turn."""

import functools
import heapq
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from types import MappingProxyType

from envkit_visual.canvas import COLORS, Canvas, Color, Look, Point, centered
from envkit_visual.cells import MOVES, Cell, cell_name, cells_of, moved
from envkit_visual.grids import grid
from envkit_visual.search import descent, distances
from envkit_visual.world import ChoiceWorld, Outcome, Record

_FEWEST = 14
"""Moves of the shortest plan, so that a policy that does not see fails."""
_INSIDE = (5, 6)
_WALLS = 5
_PULLS = 40
"""Pulls that lead from the solved room to the start."""
_EASY = 400
"""Most pushes that the search tries for a new task."""
_HARD = 20_000
"""Most pushes that the search tries for any state."""
_NEVER = 10_000

Crates = tuple[Cell, ...]
Node = tuple[Crates, Cell]
"""The crates and the player."""


class SokobanState(grid.Standing):
    """A store room."""

    targets: Crates
    crates: Crates
    """Sorted."""


class Sokoban(grid.GridWorld[SokobanState]):
    """Push every crate onto a target.

    The picture shows a store room from above, with a person, crates, dark walls, and rings that
    mark targets. Push every crate onto a target. The person walks up, down, left or right, and
    pushes a crate that is in the way if the cell after it is free. Nobody can pull a crate, or push
    two at once. Any crate may stand on any target, and the game is lost when a crate can no longer
    get to one.
    """

    difficulty = ("number of crates", 1, 2, 3, 4)
    moves_per_reply = 3

    def create(self, rng: random.Random, size: int) -> SokobanState:
        """Pull crates from their targets until the way back is long enough."""
        while True:
            floor = grid.room(rng, *_INSIDE, _WALLS, rim=1)
            free = grid.free_cells(floor)
            targets = tuple(sorted(rng.sample(free, size)))
            if any(len(_pushes(floor, target)) < len(free) // 2 for target in targets):
                continue
            state = _pulled(rng, floor, targets)
            plan = [] if set(state.crates) & set(targets) else _solve(state, _EASY)
            if plan is not None and _FEWEST <= len(plan) <= grid.MOST:
                return state

    def draw(self, state: SokobanState, canvas: Canvas, look: Look) -> None:
        """Draw walls, crates and the person, then the targets over them."""
        pen = grid.FloorPen(canvas, len(state.floor), len(state.floor[0]))
        pen.walls(state.floor, look)
        pen.grid((200, 200, 200))
        wood, size = (196, 148, 92), pen.cell
        for crate in state.crates:
            edges = centered(*pen.center(crate), size * 0.4, size * 0.4)
            canvas.box(*edges, fill=wood, line=(90, 58, 28), width=size * 0.07)
        pen.figure(state.player, look.ink)
        for target in state.targets:
            canvas.disc(*pen.center(target), size * 0.26, line=COLORS["red"], width=size * 0.08)

    def tell(self, state: SokobanState) -> str:
        """Write the room as characters."""
        marks = dict.fromkeys(state.targets, "o")
        marks |= {crate: "*" if crate in marks else "$" for crate in state.crates}
        marks[state.player] = "+" if state.player in marks else "@"
        names = "# wall, $ crate, o target, * crate on target, @ person, + person on target"
        return f"{names}\n{grid.written(state.floor, marks)}"

    def play(self, state: SokobanState, choice: str) -> Outcome[SokobanState]:
        """Walk or push."""
        target = moved(state.player, MOVES[choice])
        if target not in state.crates:
            return super().play(state, choice)
        beyond = moved(target, MOVES[choice])
        if beyond in state.crates or not grid.is_free(state.floor, beyond):
            return Outcome(state=state, text="The crate cannot move.")
        crates = _replaced(state.crates, target, beyond)
        return Outcome(state=replace(state, player=target, crates=crates), text="Pushed.")

    def is_over(self, state: SokobanState) -> bool:
        """Return whether the room is solved, or the walls keep a crate from every target."""
        return self.is_solved(state) or _least(state.floor, state.targets, state.crates) >= _NEVER

    def progress(self, state: SokobanState) -> float:
        """Return the part of the crates that are on targets."""
        return len(set(state.crates) & set(state.targets)) / len(state.crates)

    def plan(self, state: SokobanState) -> list[str]:
        """Return the fewest moves.

        Crates that block one another may be lost before the game says so. The plan is then a move
        that leads nowhere.
        """
        if self.is_over(state):
            return []
        plan = _solve(state, _HARD)
        return [next(iter(MOVES))] if plan is None else plan


def _replaced(crates: Crates, old: Cell, new: Cell) -> Crates:
    return tuple(sorted(new if crate == old else crate for crate in crates))


def _past(start: Cell, cell: Cell) -> Cell:
    """Return the cell after a cell, on the way from the start."""
    return 2 * cell[0] - start[0], 2 * cell[1] - start[1]


def _walks(floor: grid.Floor, crates: Crates, start: Cell) -> dict[Cell, int]:
    """Return the moves from a cell to every cell that is reached without a push."""
    links = grid.links(floor)
    return distances([start], lambda cell: [step for step in links[cell] if step[1] not in crates])


def _pulled(rng: random.Random, floor: grid.Floor, targets: Crates) -> SokobanState:
    """Return the state after random pulls from the targets."""
    crates, links = targets, grid.links(floor)
    player = rng.choice([cell for cell in links if cell not in targets])
    for _ in range(_PULLS):
        reach = _walks(floor, crates, player)
        pulls = [
            (crate, near)
            for crate in crates
            for _, near in links[crate]
            if near in reach and _past(crate, near) in reach
        ]
        if not pulls:
            break
        crate, near = rng.choice(pulls)
        player = _past(crate, near)
        crates = _replaced(crates, crate, near)
    player = rng.choice(sorted(_walks(floor, crates, player)))
    return SokobanState(floor=floor, targets=targets, crates=crates, player=player)


@functools.lru_cache(maxsize=256)
def _pushes(floor: grid.Floor, target: Cell) -> Mapping[Cell, int]:
    """Return the pushes to a target from every cell that a lone crate can get there from."""
    links = grid.links(floor)
    return distances(
        [target], lambda cell: [step for step in links[cell] if _past(cell, step[1]) in links]
    )


@functools.lru_cache(maxsize=8192)
def _least(floor: grid.Floor, targets: Crates, crates: Crates) -> int:
    """Return the fewest pushes if crates did not block one another; `_NEVER` if there are none."""
    tables = [_pushes(floor, target) for target in targets]
    needs = [[table.get(crate, _NEVER) for table in tables] for crate in crates]
    orders = permutations(range(len(targets)))
    return min(_NEVER, *(sum(map(list[int].__getitem__, needs, order)) for order in orders))


def _solve(state: SokobanState, most: int) -> list[str] | None:
    """Return the fewest moves by A* over pushes; None if there are none within so many pushes."""
    floor, targets = state.floor, state.targets
    start = (state.crates, state.player)
    best = {start: 0}
    came: dict[Node, Node] = {}
    waiting = [(_least(floor, targets, state.crates), start)]
    while waiting and most > 0:
        total, node = heapq.heappop(waiting)
        if node[0] == targets:
            return _moves(floor, came, node)
        moves = best[node]
        if total > moves + _least(floor, targets, node[0]):
            continue
        most -= 1
        for following, further in _after(floor, node):
            cost = moves + further
            least = _least(floor, targets, following[0])
            if least < _NEVER and cost < best.get(following, _NEVER):
                best[following] = cost
                came[following] = node
                heapq.heappush(waiting, (cost + least, following))
    return None


def _after(floor: grid.Floor, node: Node) -> Iterator[tuple[Node, int]]:
    """Yield what follows after each push, and its moves."""
    crates, player = node
    reach = _walks(floor, crates, player)
    for crate in crates:
        for _, beyond in grid.links(floor)[crate]:
            behind = _past(beyond, crate)
            if behind in reach and beyond not in crates:
                yield (_replaced(crates, crate, beyond), crate), reach[behind] + 1


def _moves(floor: grid.Floor, came: Mapping[Node, Node], node: Node) -> list[str]:
    """Return the moves that lead to a node."""
    moves: list[str] = []
    while node in came:
        crate, (crates, player) = node[1], came[node]
        (beyond,) = set(node[0]) - set(crates)
        links, far = grid.links(floor), _walks(floor, crates, _past(beyond, crate))
        push = next(name for name, near in links[crate] if near == beyond)
        moves = [*descent(player, far, links.__getitem__), push, *moves]
        node = came[node]
    return moves


_SIDE = 7
_CELLS = {cell_name(cell): cell for cell in cells_of(_SIDE, _SIDE)}
_RING = [cell for at in range(_SIDE) for cell in ((-1, at), (_SIDE, at), (at, -1), (at, _SIDE))]
"""The places beside the grid."""
_UNIT = 44.0
"""Width of a cell."""
_BEAM: Color = (230, 30, 60)

Exit = tuple[Cell, tuple[Cell, ...]]
"""Where a beam leaves the grid, and the mirrors to turn for it."""


class LasersState(Record):
    """Mirrors on a grid, and a laser and a target beside it."""

    floor: grid.Floor
    """ "/" and "\\" are mirrors."""
    laser: Cell
    target: Cell
    turns: int
    """Turns of the plan at the start."""


class Lasers(ChoiceWorld[LasersState]):
    """Turn mirrors until the laser beam hits the target.

    The picture shows a grid with mirrors. A laser, drawn as a square with an arrow, sends a red
    beam into the grid. Mirrors are diagonal lines and reflect the beam on both sides. Turning a
    mirror changes it from one diagonal to the other. Make the beam leave the grid at the target,
    which is drawn as rings. Columns are named by letters and rows by numbers.

    An action is the cell of the mirror to turn, such as B4.
    """

    difficulty = ("number of mirrors", 6, 10, 15, 21)
    options = tuple(_CELLS)
    refusal = "an action is a letter from A to G and a number from 1 to 7, such as B4"

    def create(self, rng: random.Random, size: int) -> LasersState:
        """Draw mirrors and a laser until some place takes enough turns to hit."""
        fewest = 2 + size // 8
        while True:
            kinds = {cell: rng.choice("/\\") for cell in rng.sample([*_CELLS.values()], size)}
            floor = grid.marked(("." * _SIDE,) * _SIDE, kinds)
            laser = rng.choice(_RING)
            exits = sorted(_exits(floor, laser).items())
            targets = [(target, len(turned)) for target, turned in exits if len(turned) >= fewest]
            if targets:
                target, turns = rng.choice(targets)
                return LasersState(floor=floor, laser=laser, target=target, turns=turns)

    def draw(self, state: LasersState, canvas: Canvas, look: Look) -> None:
        """Draw the grid, names of rows and columns, mirrors, the beam, its laser and target."""
        for at, letter in enumerate("ABCDEFG"):
            canvas.text(*_center((-2, at)), letter, color=look.ink, size=20)
            canvas.text(*_center((at, -2)), str(at + 1), color=look.ink, size=20)
        for cell in _CELLS.values():
            edges = centered(*_center(cell), _UNIT / 2, _UNIT / 2)
            canvas.box(*edges, fill=(255, 255, 255), line=(190, 190, 190))
        for part, color in ((0.46, look.ink), (0.34, (255, 255, 255)), (0.2, COLORS["green"])):
            canvas.disc(*_center(state.target), _UNIT * part, fill=color)
        path = [_center(cell) for cell in _beam(state.floor, state.laser)]
        canvas.path(path, color=_BEAM, width=3)
        high = _UNIT * 0.36
        for kind, wide in (("/", high), ("\\", -high)):
            for x, y in map(_center, grid.cells_with(state.floor, kind)):
                ends = ((x - wide, y + high), (x + wide, y - high))
                canvas.path(ends, color=COLORS["blue"], width=5)
        x, y = path[0]
        canvas.box(*centered(x, y, _UNIT * 0.4, _UNIT * 0.4), fill=look.ink)
        (down, across), reach = _inward(state.floor, state.laser), _UNIT * 0.3
        start, end = (x - across * reach, y - down * reach), (x + across * reach, y + down * reach)
        canvas.arrow(start, end, color=(255, 255, 255), width=3)

    def tell(self, state: LasersState) -> str:
        """Write the grid as characters, with a ring around it."""
        blank = " " * (_SIDE + 2)
        ring = (blank, *(f" {line} " for line in state.floor), blank)
        rows = grid.marked(
            ring, {moved(state.target, (1, 1)): "T", moved(state.laser, (1, 1)): "L"}
        )
        lines = [f"{name} {row}" for name, row in zip(" 1234567 ", rows, strict=True)]
        return "\n".join(("/ \\ mirrors, L laser, T target", "   ABCDEFG", *lines))

    def play(self, state: LasersState, choice: str) -> Outcome[LasersState]:
        """Turn a mirror."""
        row, column = cell = _CELLS[choice]
        x, y = _center(cell)
        mark = {"kind": "click", "x": x, "y": y}
        kind = {"/": "\\", "\\": "/"}.get(state.floor[row][column])
        if kind is None:
            return Outcome(state=state, text="There is no mirror in this cell.", mark=mark)
        after = replace(state, floor=grid.marked(state.floor, {cell: kind}))
        return Outcome(state=after, text="The mirror turned.", mark=mark)

    def progress(self, state: LasersState) -> float:
        """Return how many of the turns are done."""
        return max(0.0, 1 - len(self.plan(state)) / state.turns)

    def plan(self, state: LasersState) -> list[str]:
        """Return the fewest turns."""
        return [cell_name(cell) for cell in _exits(state.floor, state.laser)[state.target]]


def _center(cell: Cell) -> Point:
    return 114 + _UNIT * cell[1], 114 + _UNIT * cell[0]


def _inward(floor: grid.Floor, laser: Cell) -> Cell:
    return next(step for step in MOVES.values() if grid.is_inside(floor, moved(laser, step)))


def _reflected(step: Cell, kind: str) -> Cell:
    down, across = step
    return {"/": (-across, -down), "\\": (across, down)}.get(kind, step)


def _beam(floor: grid.Floor, laser: Cell) -> list[Cell]:
    """Return the cells of the beam, from the laser to where it leaves the grid."""
    cells, step = [laser], _inward(floor, laser)
    while True:
        cells.append(cell := moved(cells[-1], step))
        if not grid.is_inside(floor, cell):
            return cells
        step = _reflected(step, floor[cell[0]][cell[1]])


@functools.lru_cache(maxsize=64)
def _exits(floor: grid.Floor, laser: Cell) -> Mapping[Cell, tuple[Cell, ...]]:
    """Return the fewest mirrors to turn for every place that the beam can get to."""
    found: dict[Cell, tuple[Cell, ...]] = {}
    step = _inward(floor, laser)
    for place, turned in _beams(floor, moved(laser, step), step, {}):
        if place not in found or len(turned) < len(found[place]):
            found[place] = turned
    return MappingProxyType(found)


def _beams(floor: grid.Floor, cell: Cell, step: Cell, kinds: dict[Cell, str]) -> Iterator[Exit]:
    """Yield where beams leave the grid and which mirrors are turned, over all ways to turn them.

    Args:
        floor: The grid.
        cell: Where the beam is.
        step: Where it goes.
        kinds: The mirrors that it has met, as they are turned.
    """
    while grid.is_inside(floor, cell):
        kind = floor[cell[0]][cell[1]]
        if kind != "." and cell not in kinds:
            for way in "/\\":
                turned = _reflected(step, way)
                yield from _beams(floor, moved(cell, turned), turned, {**kinds, cell: way})
            return
        step = _reflected(step, kinds.get(cell, kind))
        cell = moved(cell, step)
    yield cell, tuple(at for at, kind in kinds.items() if floor[at[0]][at[1]] != kind)
