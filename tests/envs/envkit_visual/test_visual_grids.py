"""The rules of the worlds on grids, on small tasks made by hand."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from envkit_visual.grids import DoorKey, Fetch, FogMaze, Ice, Lake, Lasers, Maze, Sokoban
from envkit_visual.grids.carry import DoorKeyState, FetchState
from envkit_visual.grids.grid import Walk, distances, free_cells, room, way
from envkit_visual.grids.puzzles import LasersState, SokobanState
from envkit_visual.grids.walks import MazeState


def played(world: Any, state: Any, actions: str) -> tuple[Any, str]:
    """Return the state after actions, and what was said to the last one."""
    said = ""
    for action in actions.split():
        outcome = world.act(state, action)
        assert outcome.error is None
        state, said = outcome.state, outcome.text
    return state, said


def shortest_by_trying(world: Any, state: Any, actions: Sequence[str], most: int) -> int:
    """Return the fewest actions that solve a task, found with nothing but `act`."""
    level, seen = {state}, {state}
    for count in range(most + 1):
        if any(world.is_solved(one) for one in level):
            return count
        level = {
            world.act(one, action).state
            for one in level
            if not world.is_over(one)
            for action in actions
        } - seen
        seen |= level
    raise AssertionError("no solution")


MOVES = ("up", "down", "left", "right")

CORRIDOR = MazeState(
    floor=("#####", "#...#", "###.#", "#####"),
    seen=("#####", "#...#", "###.#", "#####"),
    player=(1, 1),
    goal=(2, 3),
    distance=3,
)


def test_maze_moves_along_corridors_only() -> None:
    blocked, heard = played(Maze(), CORRIDOR, "up")
    assert blocked == CORRIDOR
    after, said = played(Maze(), CORRIDOR, "Right RIGHT")
    assert after.player == (1, 3)
    assert said == heard  # whoever hears of walls need not see them
    assert Maze().progress(after) == pytest.approx(2 / 3)
    assert Maze().plan(after) == ["down"]


@pytest.mark.parametrize("action", ["north", "up up", "0", "", ","])
def test_maze_refuses_what_is_not_a_move(action: str) -> None:
    outcome = Maze().act(CORRIDOR, action)
    assert outcome.error is not None
    assert outcome.state == CORRIDOR


def test_fog_hides_what_is_more_than_two_cells_away_and_never_returns() -> None:
    start = FogMaze().create(random.Random(1), 11)
    row, column = start.player
    for at, line in enumerate(start.seen):
        for across, kind in enumerate(line):
            is_near = abs(at - row) <= 2 and abs(across - column) <= 2
            assert kind == (start.floor[at][across] if is_near else "?")
    state = start
    for move in FogMaze().plan(start):
        after, _ = played(FogMaze(), state, move)
        for old, new in zip("".join(state.seen), "".join(after.seen), strict=True):
            assert old in ("?", new)
        state = after
    assert FogMaze().is_solved(state)


def test_way_is_as_long_as_the_distance_between_any_cells() -> None:
    floor = room(random.Random(3), 6, 7, 9)
    goal = free_cells(floor)[0]
    away = distances(floor, goal)
    assert len(away) == 6 * 7 - 9
    assert all(len(way(floor, cell, goal)) == moves for cell, moves in away.items())


LAKE = Walk(floor=("..#", "#..", "..."), player=(0, 0), goal=(2, 2), distance=4)


def test_lake_is_lost_in_a_hole() -> None:
    after, _ = played(Lake(), LAKE, "down")
    assert Lake().is_over(after)
    assert not Lake().is_solved(after)
    assert (Lake().plan(after), Lake().progress(after)) == ([], 0.0)


def test_lake_has_an_edge_that_nobody_leaves() -> None:
    after, said = played(Lake(), LAKE, "left")
    assert after == LAKE
    assert said == played(Lake(), LAKE, "right")[1]
    assert len(Lake().plan(LAKE)) == 4


ICE = Walk(floor=("..#.", "....", "#...", "...#"), player=(0, 0), goal=(1, 0), distance=1)


def test_ice_slides_before_a_rock_or_into_the_water() -> None:
    assert played(Ice(), ICE, "right")[0].player == (0, 1)
    assert played(Ice(), ICE, "down")[0].player == (1, 0)
    fallen, said = played(Ice(), ICE, "up")
    assert (fallen.player, said) == ((-1, 0), "The disc slid into the water.")
    assert Ice().is_over(fallen)
    assert "in the water" in Ice().tell(fallen)


def test_ice_is_not_solved_by_sliding_over_the_star() -> None:
    state = Walk(floor=("....#",), player=(0, 0), goal=(0, 2), distance=1)
    after, _ = played(Ice(), state, "right")
    assert after.player == (0, 3)
    assert not Ice().is_solved(after)
    assert Ice().is_over(after)  # nothing stops on the star


SHED = SokobanState(
    floor=("######", "#....#", "#....#", "#....#", "######"),
    targets=((1, 4),),
    crates=((2, 2),),
    player=(3, 2),
)


def test_sokoban_pushes_one_crate_and_never_pulls() -> None:
    after, said = played(Sokoban(), SHED, "up")
    assert (after.crates, after.player, said) == (((1, 2),), (2, 2), "Pushed.")
    back, _ = played(Sokoban(), after, "down")
    assert back.crates == after.crates
    stuck, said = played(Sokoban(), after, "up")
    assert (stuck, said) == (after, "The crate cannot move.")


def test_sokoban_pushes_no_two_crates_at_once() -> None:
    two = replace(SHED, targets=((1, 3), (1, 4)), crates=((1, 2), (2, 2)))
    after, said = played(Sokoban(), two, "up")
    assert (after, said) == (two, "The crate cannot move.")


def test_sokoban_is_lost_where_walls_keep_a_crate_from_its_target() -> None:
    cornered = replace(SHED, crates=((3, 1),), player=(2, 1))
    assert Sokoban().is_over(cornered)
    assert Sokoban().plan(cornered) == []
    both = replace(SHED, targets=((1, 4), (2, 1)), crates=((1, 2), (1, 3)), player=(3, 2))
    assert Sokoban().is_over(both)  # neither leaves the wall, where there is one target


def test_sokoban_plans_something_where_crates_block_one_another() -> None:
    blocked = SokobanState(
        floor=("######", "#....#", "#....#", "#....#", "######"),
        targets=((1, 1), (1, 4)),
        crates=((1, 2), (1, 3)),
        player=(3, 1),
    )
    assert not Sokoban().is_over(blocked)
    assert Sokoban().plan(blocked)


@pytest.mark.parametrize("seed", range(3))
def test_sokoban_plan_is_as_short_as_trying_every_move(seed: int) -> None:
    state = Sokoban().create(random.Random(seed), 1)
    for _ in range(3):
        assert len(Sokoban().plan(state)) == shortest_by_trying(Sokoban(), state, MOVES, 40)
        state, _ = played(Sokoban(), state, random.Random(seed).choice(MOVES))
        if Sokoban().is_over(state):
            break


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_sokoban_plan_with_more_crates_is_as_short_as_trying_every_move(size: int) -> None:
    for seed in range(3):
        state = Sokoban().create(random.Random(seed), size)
        assert len(Sokoban().plan(state)) == shortest_by_trying(Sokoban(), state, MOVES, 64)


HALL = DoorKeyState(
    floor=("......",),
    player=(0, 1),
    goal=(0, 5),
    doors=((0, 3),),
    keys=((0, 0),),
    colors=("red",),
    distance=7,
)


def test_door_lets_through_whoever_carries_its_key() -> None:
    after, said = played(DoorKey(), HALL, "right right")
    assert (after.player, said) == ((0, 2), "A locked door is in the way.")
    assert DoorKey().plan(HALL) == ["left", "take", *["right"] * 5]
    after, _ = played(DoorKey(), HALL, " ".join(DoorKey().plan(HALL)))
    assert DoorKey().is_solved(after)


def test_door_key_is_taken_once_and_where_it_lies() -> None:
    assert played(DoorKey(), HALL, "take") == (HALL, "There is no key to take here.")
    after, said = played(DoorKey(), HALL, "left take")
    assert (after.keys, said) == ((None,), "Taken.")
    assert played(DoorKey(), after, "take") == (after, "There is no key to take here.")
    assert "carried" in DoorKey().tell(after)


@pytest.mark.parametrize("size", DoorKey.levels)
def test_door_key_needs_every_key(size: int) -> None:
    for seed in range(3):
        state = DoorKey().create(random.Random(seed), size)
        assert DoorKey().plan(state).count("take") == size


LINE = FetchState(
    floor=(".....",),
    player=(0, 1),
    goal=(0, 4),
    names=("red star", "blue star"),
    cells=((0, 0), (0, 2)),
    distance=6,
)


def test_fetch_is_solved_by_the_right_thing_at_the_house() -> None:
    assert "red star" in Fetch().ask(LINE)
    wrong, _ = played(Fetch(), LINE, "right take right right")
    assert wrong.player == LINE.goal
    assert not Fetch().is_solved(wrong)
    after, _ = played(Fetch(), LINE, " ".join(Fetch().plan(LINE)))
    assert Fetch().is_solved(after)
    assert (Fetch().progress(after), Fetch().plan(after)) == (1.0, [])


def test_fetch_puts_down_what_is_carried_where_another_is_taken() -> None:
    after, _ = played(Fetch(), LINE, "right take left left take")
    assert after.cells == (None, (0, 0))
    again, _ = played(Fetch(), after, "take")
    assert again.cells == ((0, 0), None)
    assert len(Fetch().plan(again)) == 5


@pytest.mark.parametrize("size", [2, 15])
def test_fetch_plan_is_as_short_as_trying_every_action(size: int) -> None:
    state = Fetch().create(random.Random(4), size)
    if size > 2:  # what does not matter makes too many states to try
        state = replace(state, names=state.names[:2], cells=state.cells[:2])
    found = shortest_by_trying(Fetch(), state, (*MOVES, "take"), 40)
    assert len(Fetch().plan(state)) == found


MIRRORS = LasersState(
    floor=("\\......", *["......."] * 5, "/......"), laser=(0, -1), target=(6, 7), turns=1
)


def test_mirrors_reflect_and_turn() -> None:
    assert not Lasers().is_solved(MIRRORS)
    assert Lasers().plan(MIRRORS) == ["A7"]
    outcome = Lasers().act(MIRRORS, "a7")
    assert Lasers().is_solved(outcome.state)
    assert outcome.mark is not None
    assert outcome.mark["kind"] == "click"
    assert Lasers().act(outcome.state, "A7").state == MIRRORS


def test_lasers_have_no_mirror_in_an_empty_cell() -> None:
    outcome = Lasers().act(MIRRORS, "D4")
    assert (outcome.state, outcome.error) == (MIRRORS, None)
    assert outcome.text == "There is no mirror in this cell."


@pytest.mark.parametrize("action", ["H1", "A8", "A0", "A", "7A", "A-1", "A\u0661", "A1 A2"])
def test_lasers_refuse_what_is_not_a_cell(action: str) -> None:
    assert Lasers().act(MIRRORS, action).error is not None


@pytest.mark.parametrize("seed", range(4))
def test_lasers_plan_is_as_short_as_trying_every_set_of_mirrors(seed: int) -> None:
    state = Lasers().create(random.Random(seed), 6)
    mirrors = [
        cell
        for cell in Lasers().choices(state)
        if "no mirror" not in Lasers().act(state, cell).text
    ]
    sizes = [
        len(chosen)
        for count in range(len(mirrors) + 1)
        for chosen in itertools.combinations(mirrors, count)
        if Lasers().is_solved(played(Lasers(), state, " ".join(chosen))[0])
    ]
    assert len(Lasers().plan(state)) == min(sizes)
