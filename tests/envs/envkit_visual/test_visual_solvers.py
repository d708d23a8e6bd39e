"""Second solvers, which read only the text twin, agree with the oracles."""

import random
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import permutations, product
from typing import Any, Final

import pytest

from envkit_visual.catalogue import WORLDS

_STEPS: Final = ((-1, 0), (1, 0), (0, -1), (0, 1))
_FAR: Final = 10_000
_RELATIVES: Final = re.compile(
    r"(?P<name>\w+): (?P<sex>man|woman)(, married to (?P<spouse>\w+))?"
    r"(, children from the oldest: (?P<children>.+))?"
)

Cell = tuple[int, int]


def _cells(lines: list[str]) -> dict[Cell, str]:
    return {(row, at): c for row, line in enumerate(lines) for at, c in enumerate(line)}


def _relaxed(nodes: Iterable[Any], goals: set[Any], after: Callable[[Any], list[Any]]) -> Any:
    """Return the steps to a goal from every node, by sweeps until nothing changes."""
    ways = {node: after(node) for node in nodes}
    left = {node: 0 if node in goals else _FAR for node in ways}
    is_changed = True
    while is_changed:
        is_changed = False
        for node, nears in ways.items():
            best = min((left[near] + 1 for near in nears), default=_FAR)
            if best < left[node]:
                left[node], is_changed = best, True
    return left


def ice_slides(told: str, asked: str) -> int:
    del asked
    cells = _cells(told.splitlines()[1:])
    place = {c: cell for cell, c in cells.items() if c in "o*"}

    def stops(cell: Cell) -> list[Cell]:
        found: list[Cell] = []
        for down, across in _STEPS:
            here = cell
            while cells.get(near := (here[0] + down, here[1] + across), "#") != "#":
                here = near
            if near in cells:
                found.append(here)
        return found

    free = [cell for cell, c in cells.items() if c != "#"]
    return _relaxed(free, {place["*"]}, stops)[place["o"]]


def door_key_actions(told: str, asked: str) -> int:
    del asked
    rows = [line for line in told.splitlines() if set(line) <= {"#", "."}]
    cells = _cells(rows)
    things: dict[str, Cell | None] = {}
    for name, column, row in re.findall(r"(.+): (?:carried|column (\d+), row (\d+))", told):
        things[name] = (int(row) - 1, int(column) - 1) if row else None
    colors = [name.split()[0] for name in things if name.endswith("key")]
    doors = {things[f"{color} door"]: color for color in colors}
    carried = frozenset(color for color in colors if things[f"{color} key"] is None)

    def after(node: tuple[Cell, frozenset[str]]) -> list[tuple[Cell, frozenset[str]]]:
        (row, column), keys = node
        nears = [(row + down, column + across) for down, across in _STEPS]
        found = [
            (near, keys)
            for near in nears
            if cells.get(near) == "." and doors.get(near, next(iter(keys), None)) in {*keys, None}
        ]
        here = {color for color in colors if things[f"{color} key"] == node[0]}
        return [*found, (node[0], keys | here)] if here - keys else found

    rest = [color for color in colors if color not in carried]
    rings = [
        carried | {color for color, has in zip(rest, picked, strict=True) if has}
        for picked in product((False, True), repeat=len(rest))
    ]
    free = [cell for cell, c in cells.items() if c == "."]
    nodes = [(cell, keys) for keys in reversed(rings) for cell in free]
    goals = {(things["star"], keys) for keys in rings}
    return _relaxed(nodes, goals, after)[things["person"], carried]


def rush_moves(told: str, asked: str) -> int:
    del asked
    exit_side = told.split("leaves ")[1].split(";")[0]
    grid = [line.split()[1:] for line in told.splitlines()[2:]]
    cars: dict[str, frozenset[Cell]] = {}
    for row, column in product(range(6), repeat=2):
        color = grid[row][column]
        if color != ".":
            cars[color] = cars.get(color, frozenset()) | {(row, column)}
    edge = {"up": (0, 0), "left": (1, 0), "down": (0, 5), "right": (1, 5)}[exit_side]
    layer, seen, moves = {frozenset(cars.items())}, set[Any](), 0
    while layer:
        for parked in layer:
            if any(cell[edge[0]] == edge[1] for cell in dict(parked)["red"]):
                return moves
        seen |= layer
        layer = {after for parked in layer for after in _driven(parked)} - seen
        moves += 1
    return _FAR


def _driven(parked: frozenset[tuple[str, frozenset[Cell]]]) -> Iterable[Any]:
    taken = {cell for _, cells in parked for cell in cells}
    for color, cells in parked:
        is_across = len({row for row, _ in cells}) == 1
        for way in (-1, 1):
            down, across = (0, way) if is_across else (way, 0)
            moved = frozenset((row + down, column + across) for row, column in cells)
            is_inside = all(0 <= place < 6 for cell in moved for place in cell)
            if is_inside and not (moved - cells) & taken:
                yield (parked - {(color, cells)}) | {(color, moved)}


def pegs_jumps(told: str, asked: str) -> int:
    del asked
    lines = [line[2:].ljust(14) for line in told.splitlines()[2:]]
    board = {(row, at // 2): line[at] for row, line in enumerate(lines) for at in range(0, 14, 2)}
    holes = {cell for cell, c in board.items() if c in "o."}
    layer = {frozenset(cell for cell, c in board.items() if c == "o")}
    count = len(next(iter(layer))) - 1
    for _ in range(count):
        following = set[frozenset[Cell]]()
        for pegs in layer:
            for (row, column), (down, across) in product(pegs, _STEPS):
                over = (row + down, column + across)
                end = (row + 2 * down, column + 2 * across)
                if over in pegs and end in holes - pegs:
                    following.add((pegs - {(row, column), over}) | {end})
        layer = following
    return count if layer else 0


def sudoku_gaps(told: str, asked: str) -> int:
    del asked
    rows = [line.split()[1:] for line in told.splitlines()[2:]]
    side = len(rows)
    kinds = ("circle", "square", "triangle", "star", "cross", "ring")[:side]
    given = [[text.strip("[]") if text[0] == "[" else "" for text in row] for row in rows]
    fits = [
        [
            line
            for line in permutations(kinds)
            if all(kind in ("", mine) for kind, mine in zip(row, line, strict=True))
        ]
        for row in given
    ]
    boards: list[list[tuple[str, ...]]] = [[]]
    for at in range(side):
        boards = [
            [*board, line]
            for board in boards
            for line in fits[at]
            if all(one != two for above in board for one, two in zip(above, line, strict=True))
            and (at % 2 == 0 or _is_block_row(board[-1], line))
        ]
    (solution,) = boards
    return sum(
        text.strip("[]") != kind
        for row, line in zip(rows, solution, strict=True)
        for text, kind in zip(row, line, strict=True)
    )


def _is_block_row(above: tuple[str, ...], line: tuple[str, ...]) -> bool:
    wide = len(line) // 2
    return all(set(above[at : at + wide]).isdisjoint(line[at : at + wide]) for at in (0, wide))


def metro_changes(told: str, asked: str) -> set[str]:
    """Try every trip of up to five changes, which is more than any quickest one has."""
    lines = [line.split(": ")[1].split(", ") for line in told.splitlines()]
    start, end = re.findall(r"from (\w) to (\w)", asked)[0]
    found: dict[tuple[str, ...], int] = {}

    def ride(at: str, changes: tuple[str, ...], minutes: int, last: int | None) -> None:
        for number, line in enumerate(lines):
            if number == last or at not in line or len(changes) > 5:
                continue
            for stop in line:
                after = minutes + 2 * abs(line.index(stop) - line.index(at))
                if stop == end:
                    found[changes] = min(found.get(changes, _FAR), after)
                elif stop != at and after + 5 <= min(found.values(), default=_FAR):
                    ride(stop, (*changes, stop), after + 5, number)

    ride(start, (), 0, None)
    best = min(found.values())
    return {", ".join(changes) for changes, minutes in found.items() if minutes == best}


def gates_lamps(told: str, asked: str) -> set[str]:
    del asked
    first, *columns, last = told.splitlines()
    values = [int(text) for text in first.split(": ")[1].split(", ")]
    for column in columns:
        gates = re.findall(r"(\w+) of rows (\d) and (\d)", column)
        sums = [(kind, values[int(one) - 1] + values[int(two) - 1]) for kind, one, two in gates]
        rules = {"AND": "001", "OR": "011", "XOR": "010", "NAND": "110", "NOR": "100"}
        values = [int(rules[kind][total]) for kind, total in sums]
    names = last.split(": ")[1].split(", ")
    return {", ".join(name for name, value in zip(names, values, strict=True) if value)}


def family_names(told: str, asked: str) -> set[str]:
    people = [found.groupdict() for found in map(_RELATIVES.fullmatch, told.splitlines()) if found]
    sexes = {one["name"]: one["sex"] for one in people}
    spouses = {one["name"]: one["spouse"] for one in people if one["spouse"]}
    children = {one["name"]: one["children"].split(", ") for one in people if one["children"]}
    *steps, name = asked.removeprefix("Who is the ").rstrip("?").replace("the ", "").split(" of ")
    for step in reversed(steps):
        parents = [one for one, born in children.items() if name in born]
        if step in ("mother", "father"):
            sex = "woman" if step == "mother" else "man"
            (name,) = (one for one in parents if sexes[one] == sex)
        elif step in ("wife", "husband"):
            name = spouses[name]
            assert sexes[name] == ("woman" if step == "wife" else "man")
        elif step == "next younger sibling":
            born = children[parents[0]]
            name = born[born.index(name) + 1]
        else:
            born = children[name]
            assert (len(born) == 1) == (step == "only child")
            name = born[-1 if step == "youngest child" else 0]
    return {name}


def receipt_totals(told: str, asked: str) -> set[str]:
    del asked
    lines = re.findall(r": (\d) x ([\d.]+) = ([\d.]+)", told)
    printed = sum(Decimal(amount) for _, _, amount in lines)
    off = [Decimal(amount) - int(count) * Decimal(price) for count, price, amount in lines]
    (wrong,) = (one for one in off if one)
    return {str(printed - wrong)}


def wires_ends(told: str, asked: str) -> set[str]:
    _, *columns, last = told.splitlines()
    order = list(range(1, 1 + len(last.split(": ")[1].split(", "))))
    for column in columns:
        for upper in re.findall(r"(\d+) crosses", column):
            at = int(upper) - 1
            order[at], order[at + 1] = order[at + 1], order[at]
    letters = last.split(": ")[1].split(", ")
    ends = [letters[order.index(int(cable))] for cable in re.findall(r"\d+", asked)]
    return {", ".join(ends)}


def matrix_letters(told: str, asked: str) -> set[str]:
    """Return the options that some rule allows in every attribute, along rows."""
    del asked
    sizes, spots = ("small", "medium", "large"), ("top", "right", "bottom", "left")
    around = [spots[0], "top right", spots[1], "bottom right", spots[2], "bottom left", spots[3]]
    places = [*around, "top left"]
    cells: list[tuple[int | str, ...]] = []
    for line in told.splitlines():
        number, size, color, shape, dot = re.findall(
            r": (\d) (\w+) (\w+) (\w+), dot at the (.+)", line
        )[0]
        cells.append((shape, color, int(number), sizes.index(size), places.index(dot)))
    options = dict(zip("ABCDEFGH", cells[8:], strict=True))
    return {
        letter
        for letter, option in options.items()
        if all(_follows([cell[at] for cell in cells[:8]] + [option[at]], at) for at in range(5))
    }


def _follows(values: list[Any], attribute: int) -> bool:
    rows = [values[at : at + 3] for at in (0, 3, 6)]
    if all(len(set(row)) == 1 for row in rows):
        return True
    if len({frozenset(row) for row in rows}) == 1 and len(set(rows[0])) == 3:
        return True
    if isinstance(values[0], str):
        return False
    steps = {b - a for one, two, three in rows for a, b in ((one, two), (two, three))}
    if len({step % 8 if attribute == 4 else step for step in steps}) == 1:
        return True
    return attribute == 2 and all(one + two == three for one, two, three in rows)


MOVES: Final[dict[str, Callable[[str, str], int]]] = {
    "ice": ice_slides,
    "door-key": door_key_actions,
    "rush": rush_moves,
    "pegs": pegs_jumps,
    "sudoku": sudoku_gaps,
}
ANSWERS: Final[dict[str, Callable[[str, str], set[str]]]] = {
    "metro": metro_changes,
    "gates": gates_lamps,
    "family": family_names,
    "receipt": receipt_totals,
    "wires": wires_ends,
    "matrix": matrix_letters,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", MOVES)
def test_plan_is_as_short_as_a_solver_of_the_twin_finds(name: str, seed: int) -> None:
    world: Any = WORLDS[name]()
    rng = random.Random(seed)
    state = world.create(rng, world.levels[seed % 4])
    for _ in range(4):
        assert len(world.plan(state)) == MOVES[name](world.tell(state), world.ask(state))
        state = world.act(state, rng.choice(world.choices(state))).state
        if world.is_over(state):
            break


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_that_a_solver_of_the_twin_finds(name: str, seed: int) -> None:
    world: Any = WORLDS[name]()
    state = world.create(random.Random(seed), world.levels[seed % 4])
    found = ANSWERS[name](world.tell(state), world.ask(state))
    assert world.answer(state) in found
    assert all(world.is_right(state, one) for one in found)
    assert len(found) == 1 or name == "metro"
