"""Rules and plans of the boards, on tasks made by hand and against second solvers."""

import functools
import itertools
import operator
import random
from collections import deque
from typing import Any

import pytest

from envkit_visual.boards import WORLDS
from envkit_visual.boards.fields import Lights, LightsState, Mines, MinesState, Pegs, PegsState
from envkit_visual.boards.pieces import Car, Four, FourState, Hanoi, HanoiState, Rush, RushState
from envkit_visual.boards.tiles import Slide, SlideState, Sudoku, SudokuState
from envkit_visual.cells import around, cell_name, cells_of, table
from envkit_visual.search import distances

ORDER = ("circle", "cross", "diamond", "hexagon", "ring", "square", "star", "triangle", "")
DARK = LightsState(lit=0)


def played(world: Any, state: Any, *actions: str) -> Any:
    for action in actions:
        outcome = world.act(state, action)
        assert outcome.error is None
        state = outcome.state
    return state


def lit_in(state: LightsState) -> list[int]:
    """Return the places of the lamps that are on."""
    return [place for place in range(25) if state.lit >> place & 1]


@pytest.mark.parametrize("text", ["A1", "b3", "E5"])
def test_cell_is_named_by_letter_and_number(text: str) -> None:
    place = [cell_name(cell) for cell in cells_of(5, 5)].index(text.upper())
    assert place in lit_in(played(Lights(), DARK, text))


@pytest.mark.parametrize(
    "text", ["", "A0", "A6", "F1", "A", "1A", "A 1", "A\u0661", "AA1", "A-1", "A10"]
)
def test_text_that_names_no_cell_is_refused(text: str) -> None:
    outcome = Lights().act(DARK, text)
    assert outcome.error is not None
    assert outcome.state == DARK


def test_table_has_letters_on_top_and_numbers_on_the_left() -> None:
    assert table(["a", "bb", "", "c"], 2) == "  A  B\n1 a  bb\n2    c"


def test_distances_stop_after_the_most() -> None:
    assert len(distances([0], lambda number: [("more", number + 1)], most=5)) == 6


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_plan_gets_shorter_by_one_with_each_of_its_moves(world: Any, level: int) -> None:
    board = world()
    state = board.create(random.Random(level), world.levels[level - 1])
    length = len(board.plan(state))
    while length:
        state = played(board, state, board.plan(state)[0])
        assert len(board.plan(state)) == length - 1
        length -= 1
    assert board.is_solved(state)


@pytest.mark.parametrize("name", ["slide-8", "lights", "rush", "hanoi"])
def test_knob_is_the_length_of_the_plan(name: str) -> None:
    world: Any = next(world for world in WORLDS if world.name == name)()
    for size in world.levels:
        assert len(world.plan(world.create(random.Random(size), size))) == size


def test_slide_moves_a_tile_next_to_the_gap_only() -> None:
    state = SlideState(tiles=ORDER, goal=ORDER)
    moved = played(Slide(), state, "Square")
    assert moved.tiles == (*ORDER[:5], "", *ORDER[6:8], "square")
    for far in ("circle", "ring", "hexagon"):
        outcome = Slide().act(state, far)
        assert (outcome.state, outcome.error) == (state, None)
    assert Slide().plan(moved) == ["square"]


def test_slide_agrees_with_a_search_from_the_goal_alone() -> None:
    world = Slide()

    def steps(tiles: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
        state = SlideState(tiles=tiles, goal=ORDER)
        return [(name, world.act(state, name).state.tiles) for name in ORDER if name]

    far = distances([ORDER], steps, most=400)
    for tiles, moves in list(far.items())[::7]:
        assert len(world.plan(SlideState(tiles=tiles, goal=ORDER))) == moves


def test_lights_press_changes_a_cross() -> None:
    corner = played(Lights(), DARK, "A1")
    assert lit_in(corner) == [0, 1, 5]
    middle = played(Lights(), DARK, "c3")
    assert lit_in(middle) == [7, 11, 12, 13, 17]
    assert Lights().plan(middle) == ["C3"]


def test_lights_plan_is_the_smallest_set_of_presses() -> None:
    world = Lights()
    cells = [cell_name(cell) for cell in cells_of(5, 5)]
    presses = {cell: played(world, DARK, cell).lit for cell in cells}
    for seed in range(2):
        state = world.create(random.Random(seed), 4)
        sets = [
            chosen
            for count in range(1, 5)
            for chosen in itertools.combinations(cells, count)
            if functools.reduce(operator.xor, map(presses.__getitem__, chosen)) == state.lit
        ]
        assert sets == [tuple(world.plan(state))]


def test_rush_car_moves_along_its_length_into_empty_cells() -> None:
    world = Rush()
    red = Car(color="red", length=2, is_across=True, lane=2)
    blue = Car(color="blue", length=3, is_across=False, lane=2)
    state = RushState(cars=(red, blue), places=(0, 0), exit="right")
    for blocked in ("red right", "red left", "red up", "blue up", "blue left", "green up"):
        outcome = world.act(state, blocked)
        assert (outcome.state, outcome.error) == (state, None)
    plan = world.plan(state)
    assert plan == ["blue down"] * 3 + ["red right"] * 4
    assert world.is_solved(played(world, state, *plan))
    assert red.cells(played(world, state, *plan).places[0]) == ((2, 4), (2, 5))


def test_pegs_jump_takes_the_peg_between() -> None:
    world = Pegs()
    state = PegsState(pegs=((3, 1), (3, 2), (3, 4)), first=3)
    for wrong in ("B4 C4", "E4 C4", "D4 B4", "B4 B2"):
        outcome = world.act(state, wrong)
        assert outcome.state == state
    assert world.act(state, "A1 C1").error is not None
    assert world.act(state, "E4 C4").text == world.act(state, "B4 D4").text
    jumped = played(world, state, "B4 D4")
    assert jumped.pegs == ((3, 3), (3, 4))
    assert world.is_solved(played(world, jumped, "E4 C4"))


def test_pegs_end_when_one_cannot_be_left_any_more() -> None:
    lost = PegsState(pegs=((0, 2), (6, 4)), first=3)
    assert Pegs().is_over(lost)
    assert not Pegs().is_solved(lost)
    assert Pegs().plan(lost) == []


def mines_of(*rows: str) -> MinesState:
    """Make a state of rows of 7: * mine, # closed, . open."""
    cells = {
        (row, column): mark for row, line in enumerate(rows) for column, mark in enumerate(line)
    }
    opened = tuple(cell for cell, mark in cells.items() if mark == ".")
    mines = tuple(cell for cell, mark in cells.items() if mark == "*")
    return MinesState(mines=mines, open=opened, first=len(opened))


def test_mines_empty_cell_opens_what_is_around() -> None:
    world = Mines()
    state = mines_of(*["......."] * 3, "*******", *["#######"] * 3)
    assert world.is_solved(played(world, state, "A7"))
    number = played(world, state, "A5")
    assert len(number.open) == len(state.open) + 1
    lost = played(world, state, "A4")
    assert world.is_over(lost)
    assert not world.is_solved(lost)
    assert world.plan(lost) == []


def free_in_all(state: MinesState, cell: tuple[int, int]) -> bool:
    """Try all layouts of the closed cells next to numbers, number by number."""
    near = {at: set(around(at, 7, 7, diagonal=True)) for at in cells_of(7, 7)}
    numbers = [(near[at] - set(state.open), len(near[at] & set(state.mines))) for at in state.open]
    numbers = [(closed, count) for closed, count in numbers if closed]

    def fits(mined: set[Any], free: set[Any]) -> bool:
        for closed, count in numbers:
            if not len(closed & mined) <= count <= len(closed - free):
                return False
        unknown = next((at for closed, _ in numbers for at in closed - mined - free), None)
        if unknown is None:
            return True
        return fits(mined | {unknown}, free) or fits(mined, free | {unknown})

    return not fits({cell}, set())


@pytest.mark.parametrize("seed", range(3))
def test_mines_plan_opens_what_is_free_in_every_layout(seed: int) -> None:
    world = Mines()
    state = world.create(random.Random(seed), world.levels[2])
    while plan := world.plan(state):
        cell = next(cell for cell in cells_of(7, 7) if cell_name(cell) == plan[0])
        assert free_in_all(state, cell)
        state = played(world, state, plan[0])


def test_mines_never_need_a_guess_after_other_openings() -> None:
    world, rng = Mines(), random.Random(5)
    state = world.create(rng, world.levels[2])
    while not world.is_solved(state):
        closed = set(cells_of(7, 7)) - set(state.open) - set(state.mines)
        state = played(world, state, cell_name(rng.choice(sorted(closed))))
        assert len(world.plan(state)) == 0 or world.is_solved(
            played(world, state, *world.plan(state))
        )


def test_sudoku_replaces_a_placed_symbol_but_not_a_given_one() -> None:
    world = Sudoku()
    solution = (
        *("circle", "square", "star", "triangle"),
        *("star", "triangle", "circle", "square"),
    )
    solution += (
        *("square", "circle", "triangle", "star"),
        *("triangle", "star", "square", "circle"),
    )
    given = ("", *solution[1:15], "")
    state = SudokuState(given=given, now=given, solution=solution)
    assert world.plan(state) == ["A1 circle", "D4 circle"]
    wrong = played(world, state, "a1 Star")
    assert world.plan(wrong) == ["A1 circle", "D4 circle"]
    assert world.act(wrong, "B1 star").state == wrong
    assert world.act(wrong, "A1 ring").error is not None
    assert world.is_solved(played(world, wrong, "A1 circle", "D4 circle"))


@pytest.mark.parametrize("size", Sudoku.levels)
def test_sudoku_solution_obeys_the_rules(size: int) -> None:
    state = Sudoku().create(random.Random(size), size)
    side = 4 if size <= 8 else 6
    rows = [state.solution[at : at + side] for at in range(0, side**2, side)]
    assert all(len(set(row)) == side for row in rows)
    assert all(len(set(column)) == side for column in zip(*rows, strict=True))
    for top, left in itertools.product(range(0, side, 2), range(0, side, side // 2)):
        block = rows[top][left : left + side // 2] + rows[top + 1][left : left + side // 2]
        assert len(set(block)) == side
    assert state.given.count("") == size


def test_hanoi_never_puts_a_disc_on_a_smaller_one() -> None:
    world = Hanoi()
    state = HanoiState(places=(0, 0, 1), goal=(3, 3, 3), distance=5)
    for wrong, said in (("D A", "There is no disc"), ("B A", "A disc cannot")):
        outcome = world.act(state, wrong)
        assert outcome.state == state
        assert outcome.text.startswith(said)
    assert played(world, state, "a b").places == (1, 0, 1)
    assert world.act(state, "A A").error is not None


def test_hanoi_agrees_with_a_search_by_its_actions() -> None:
    world = Hanoi()
    state = world.create(random.Random(1), 8)
    found, waiting = {state.places: 0}, deque([state])
    while waiting:
        here = waiting.popleft()
        if world.is_solved(here):
            assert found[here.places] == len(world.plan(state)) == 8
            return
        for action in world.choices(here):
            after = world.act(here, action).state
            if after.places not in found:
                found[after.places] = found[here.places] + 1
                waiting.append(after)


def four_of(left: int, *rows: str) -> FourState:
    bits = {"R": 0, "Y": 0}
    for row, line in enumerate(rows):
        for column, mark in enumerate(line):
            if mark in bits:
                bits[mark] |= 1 << column * 7 + len(rows) - 1 - row
    return FourState(red=bits["R"], yellow=bits["Y"], names="1234567", left=left, first=left)


def test_four_is_won_by_an_open_three_and_lost_by_another_move() -> None:
    world = Four()
    state = four_of(2, "..YY...", "..RR...")
    assert world.plan(state)[0] in ("2", "5")
    assert not world.is_over(played(world, state, "2"))
    lost = played(world, state, "7")
    assert world.is_over(lost)
    assert world.progress(lost) == 0.0
    assert world.act(state, "8").error is not None


def test_four_yellow_takes_its_own_win() -> None:
    world = Four()
    state = four_of(2, "..RRR..", "R.YYYR.")
    assert world.plan(state) == ["6"]
    lost = played(world, state, "7")
    assert world.is_over(lost)
    assert not world.is_solved(lost)
    assert world.plan(lost) == []


def test_four_yellow_blocks_one_of_two_threats() -> None:
    world = Four()
    blocked = played(world, four_of(2, "..YY...", "..RR..."), "2")
    assert len(world.plan(blocked)) == 1
    threats = [
        action
        for action in world.choices(blocked)
        if world.is_solved(world.act(blocked, action).state)
    ]
    assert threats == world.plan(blocked)


def test_rush_red_alone_never_solves_a_task() -> None:
    world = Rush()
    for seed in range(6):
        state = world.create(random.Random(seed), world.levels[0])
        assert sum(not move.startswith("red") for move in world.plan(state)) >= 2


def test_four_full_column_takes_no_disc() -> None:
    world = Four()
    state = four_of(2, *["Y......", "R......"] * 2, "Y.YY...", "R.RR...")
    outcome = world.act(state, "1")
    assert (outcome.state, outcome.text) == (state, "That column is full.")


Grid = tuple[str, ...]
"""Columns from the bottom."""


def has_four(grid: Grid, color: str) -> bool:
    def at(column: int, row: int) -> str:
        return grid[column][row] if 0 <= column < 7 and 0 <= row < len(grid[column]) else "."

    return any(
        all(at(column + k * across, row + k * up) == color for k in range(4))
        for column, row in itertools.product(range(7), range(6))
        for across, up in ((1, 0), (0, 1), (1, 1), (1, -1))
    )


def forced(grid: Grid, moves: int) -> bool:
    """Search plainly whether red wins within its moves."""
    if moves == 0:
        return False
    for grown in drops(grid, "R"):
        if has_four(grown, "R"):
            return True
        replies = drops(grown, "Y") if moves > 1 else []
        if replies and all(
            not has_four(reply, "Y") and forced(reply, moves - 1) for reply in replies
        ):
            return True
    return False


def drops(grid: Grid, color: str) -> list[Grid]:
    return [
        (*grid[:column], grid[column] + color, *grid[column + 1 :])
        for column in range(7)
        if len(grid[column]) < 6
    ]


@pytest.mark.parametrize("seed", range(3))
def test_four_agrees_with_a_plain_search(seed: int) -> None:
    world = Four()
    state = world.create(random.Random(seed), 2)
    grid = tuple(
        "".join(
            "R" if state.red >> column * 7 + row & 1 else "Y"
            for row in range(6)
            if (state.red | state.yellow) >> column * 7 + row & 1
        )
        for column in range(7)
    )
    assert forced(grid, 2)
    assert not forced(grid, 1)
    winning = [
        column
        for column in range(7)
        if len(grid[column]) < 6 and not world.is_over(world.act(state, state.names[column]).state)
    ]
    plain = [
        column
        for column in range(7)
        if len(grid[column]) < 6
        and all(
            not has_four(reply, "Y") and forced(reply, 1)
            for reply in drops((*grid[:column], grid[column] + "R", *grid[column + 1 :]), "Y")
        )
    ]
    assert winning == plain == [state.names.index(world.plan(state)[0])]
