"""The rules of each warp with states made by hand, and second solvers on small tasks."""

import random
from collections import deque
from itertools import pairwise, product
from typing import Any

import pytest

from envkit_visual.canvas import SIDE
from envkit_visual.warps import WORLDS
from envkit_visual.warps.art import art
from envkit_visual.warps.dials import Tint, Unrotate, UnrotateState
from envkit_visual.warps.figures import Pose, Spot, Spots, SpotState, Stick, StickState, Thing
from envkit_visual.warps.solids import Cubes, CubesState, Figure, Fold, FoldedSheet, FoldState
from envkit_visual.warps.views import Jigsaw, JigsawState, Zoom, ZoomState


def played(world: Any, state: Any, *actions: str) -> Any:
    """Return the state after actions, each of which must be one of the world."""
    for action in actions:
        outcome = world.act(state, action)
        assert outcome.error is None, (action, outcome.error)
        state = outcome.state
    return state


def jigsaw(*pieces: int) -> JigsawState:
    return JigsawState(art=1, side=3, pieces=pieces)


def test_jigsaw_swaps_two_places() -> None:
    state = played(Jigsaw(), jigsaw(1, 2, 0, 3, 4, 5, 6, 7, 8), "1 3")
    assert state.pieces == (0, 2, 1, 3, 4, 5, 6, 7, 8)
    state = played(Jigsaw(), state, "3, 2")
    assert Jigsaw().is_solved(state)
    assert Jigsaw().goal(state) == state


@pytest.mark.parametrize("action", ["1", "1 2 3", "0 1", "1 10", "1 1.5", "a b", "1e1 2", "-1 2"])
def test_jigsaw_rejects_what_is_not_two_places(action: str) -> None:
    assert Jigsaw().act(jigsaw(*range(9)), action).error


def test_jigsaw_swap_of_a_piece_with_itself_changes_nothing() -> None:
    state = jigsaw(1, 0, 2, 3, 4, 5, 6, 7, 8)
    outcome = Jigsaw().act(state, "4 4")
    assert outcome.error is None
    assert outcome.state == state


def test_jigsaw_plan_is_as_short_as_a_search_finds() -> None:
    """Search all orders of five pieces; the other four are in place."""
    start = tuple(range(5))
    swaps, waiting = {start: 0}, deque([start])
    while waiting:
        pieces = waiting.popleft()
        for first, second in ((a, b) for a in range(5) for b in range(a)):
            other = list(pieces)
            other[first], other[second] = other[second], other[first]
            if tuple(other) not in swaps:
                swaps[tuple(other)] = swaps[pieces] + 1
                waiting.append(tuple(other))
    assert len(swaps) == 120
    for pieces, count in swaps.items():
        state = jigsaw(*pieces, 5, 6, 7, 8)
        plan = Jigsaw().plan(state)
        assert len(plan) == count
        assert Jigsaw().is_solved(played(Jigsaw(), state, *plan))


@pytest.mark.parametrize("size", Jigsaw.levels)
def test_jigsaw_has_no_two_pieces_alike(size: int) -> None:
    state = Jigsaw().create(random.Random(size), size)
    cut = 240 // size
    whole = art(state.art, 240)
    pieces = {
        whole.crop((x * cut, y * cut, x * cut + cut, y * cut + cut)).tobytes()
        for x, y in product(range(size), repeat=2)
    }
    assert len(pieces) == size * size


def unrotate(*settings: int, tolerance: int = 10) -> UnrotateState:
    return UnrotateState(settings=settings, targets=(0, 0, 0), tolerance=tolerance, art=3)


def test_unrotate_turns_the_named_part() -> None:
    state = played(Unrotate(), unrotate(350, 40, 0), "Middle -30", "outer 725", "inner 20")
    assert state.settings == (10, 10, 5)
    assert Unrotate().is_solved(state)
    assert not Unrotate().is_solved(played(Unrotate(), state, "inner 1"))


def test_unrotate_plan_leaves_parts_within_the_tolerance() -> None:
    assert Unrotate().plan(unrotate(10, 350, 11)) == ["outer -11"]
    assert Unrotate().plan(unrotate(200, 0, 349)) == ["inner 160", "outer 11"]


@pytest.mark.parametrize(
    "action", ["", "inner", "inner x", "top 3", "inner 1 2", "40", "inner 1.5"]
)
def test_unrotate_rejects_what_is_not_a_part_and_degrees(action: str) -> None:
    state = unrotate(100, 100, 100)
    outcome = Unrotate().act(state, action)
    assert outcome.error
    assert outcome.state == state


@pytest.mark.parametrize("world", [Unrotate(), Tint()])
def test_dials_start_further_off_than_two_guesses_reach(world: Any) -> None:
    for seed in range(30):
        state = world.create(random.Random(seed), max(world.levels))
        assert len(world.plan(state)) == len(world.dials)
        for setting, goal in zip(state.settings, state.targets, strict=True):
            assert 40 <= (setting - goal) % 360 <= 320


def test_tint_moves_one_patch() -> None:
    state = Tint().create(random.Random(1), 10)
    after = played(Tint(), state, "c 400")
    assert after.settings[2] == (state.settings[2] + 40) % 360
    assert after.settings[:2] == state.settings[:2]


def stick(x: int, y: int, turn: int) -> StickState:
    return StickState(
        shape="boot", at=Pose(x=x, y=y, turn=turn), goal=Pose(x=500, y=500, turn=350), tolerance=14
    )


@pytest.mark.parametrize(
    ("at", "is_on"),
    [
        ((500, 500, 350), True),
        ((514, 486, 357), True),
        ((515, 500, 350), False),
        ((500, 500, 358), False),
        ((500, 500, 343), True),
        ((500, 500, 10), False),
    ],
)
def test_stick_is_on_the_outline_within_the_tolerance(at: Any, *, is_on: bool) -> None:
    assert Stick().is_solved(stick(*at)) is is_on
    assert (Stick().progress(stick(*at)) == 1.0) is is_on


def test_stick_moves_and_turns_at_once() -> None:
    state = stick(300, 700, 10)
    assert Stick().plan(state) == ["200 -200 -20"]
    assert Stick().is_solved(played(Stick(), state, "200, -200, 340"))


def test_stick_stays_inside_the_picture() -> None:
    outcome = Stick().act(stick(300, 700, 10), "600 0 0")
    assert outcome.error is None
    assert outcome.state == stick(300, 700, 10)


def test_zoom_shows_the_views_in_the_given_order() -> None:
    state = ZoomState(art=1, percent=35, ranks=(5, 0, 1, 2, 3, 4), order="ABCDEF")
    after = played(Zoom(), state, "f, e d cba")
    assert after.order == "FEDCBA"
    assert Zoom().plan(after) == ["B C D E F A"]
    assert Zoom().is_solved(played(Zoom(), after, "B C D E F A"))


@pytest.mark.parametrize("action", ["A B C D E", "A A B C D E F", "A B C D E G", "1 2 3 4 5 6"])
def test_zoom_rejects_what_is_not_all_letters(action: str) -> None:
    state = ZoomState(art=1, percent=35, ranks=(5, 0, 1, 2, 3, 4), order="ABCDEF")
    assert Zoom().act(state, action).error


def thing(*, kind: str = "star", color: str = "red", radius: int = 14) -> Thing:
    return Thing(kind=kind, color=color, radius=radius)


def spots() -> SpotState:
    same = Spot(x=30, y=30, left=thing(), right=thing())
    changed = (None, thing(color="blue"), thing(kind="cross"), thing(radius=9))
    edited = [
        Spot(x=100, y=100 + 60 * index, left=thing(), right=other)
        for index, other in enumerate(changed)
    ]
    return SpotState(spots=(same, *edited))


def clicked(x: float, y: float) -> str:
    return f"{x * 1000 / SIDE:.3f}, {y * 1000 / SIDE:.3f}"


def test_spot_finds_a_difference_in_either_picture() -> None:
    state = played(Spots(), spots(), clicked(8 + 100, 8 + 100), clicked(230 + 100, 8 + 160))
    assert state.found == (1, 2)
    assert Spots().progress(state) == 0.5
    assert len(Spots().plan(state)) == 2


@pytest.mark.parametrize(
    ("place", "found"),
    [((127, 108), (1,)), ((129, 108), ()), ((38, 38), ()), ((224, 224), ())],
)
def test_spot_reaches_a_little_beyond_a_shape(place: Any, found: tuple[int, ...]) -> None:
    outcome = Spots().act(spots(), clicked(*place))
    assert outcome.error is None
    assert outcome.state.found == found
    assert outcome.mark == {
        "kind": "click",
        "x": pytest.approx(place[0], abs=0.01),
        "y": pytest.approx(place[1], abs=0.01),
    }


def test_spot_counts_a_difference_once() -> None:
    state = played(Spots(), spots(), clicked(108, 108), clicked(108, 108))
    assert state.found == (1,)


@pytest.mark.parametrize("size", Spots.levels)
def test_spot_has_four_differences_and_room_between_shapes(size: int) -> None:
    state = Spots().create(random.Random(size), size)
    assert len(Spots().plan(state)) == 4
    for one, other in ((a, b) for a in state.spots for b in state.spots if a is not b):
        assert (one.x - other.x) ** 2 + (one.y - other.y) ** 2 >= 36**2


def fold(side: str, line: int) -> Fold:
    return Fold(is_column=side in "LR", line=line, is_first=side in "LT")


def test_fold_mirrors_holes_at_the_line() -> None:
    once = FoldState(folds=(fold("L", 3),), punched=((0, 3), (5, 4)))
    assert FoldedSheet().answer(once) == "B6 C1 D1 E6"
    twice = FoldState(folds=(fold("L", 3), fold("B", 4)), punched=((0, 5), (3, 3)))
    assert FoldedSheet().answer(twice) == "A1 C4 C5 D4 D5 F1"


def test_fold_takes_cells_in_any_order() -> None:
    state = FoldState(folds=(fold("L", 3),), punched=((0, 3), (5, 4)))
    assert FoldedSheet().is_solved(played(FoldedSheet(), state, "e6, D1 c1 b6"))
    assert not FoldedSheet().is_solved(played(FoldedSheet(), state, "E6 D1 C1"))
    assert FoldedSheet().act(state, "E6 D1 C1 B7").error


def unfolded(state: FoldState) -> set[str]:
    """Find the holes from the last fold back to the first, as a second way."""
    holes = set(state.punched)
    sheets = [{(row, column) for row in range(6) for column in range(6)}]
    for one in state.folds:
        axis = int(one.is_column)
        sheets.append({mirrored(cell, axis, one) for cell in sheets[-1]})
    for one, (before, _) in reversed(list(zip(state.folds, pairwise(sheets), strict=True))):
        axis = int(one.is_column)
        holes = {cell for cell in before if mirrored(cell, axis, one) in holes}
    return {f"{'ABCDEF'[column]}{row + 1}" for row, column in holes}


def mirrored(cell: tuple[int, int], axis: int, one: Fold) -> tuple[int, int]:
    at = list(cell)
    if (at[axis] < one.line) == one.is_first:
        at[axis] = 2 * one.line - 1 - at[axis]
    return at[0], at[1]


@pytest.mark.parametrize("size", FoldedSheet.levels)
def test_fold_answer_agrees_with_unfolding_step_by_step(size: int) -> None:
    for seed in range(12):
        state = FoldedSheet().create(random.Random(seed), size)
        answer = FoldedSheet().answer(state).split()
        assert set(answer) == unfolded(state)
        assert len(answer) == len(set(answer)) <= 12


Turn = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Which old axis each new axis is, and its sign."""

AS_IT_IS: Turn = ((0, 1), (1, 1), (2, 1))
QUARTERS: tuple[Turn, ...] = (((0, 1), (2, -1), (1, 1)), ((2, 1), (1, 1), (0, -1)))
MIRROR: Turn = ((0, -1), (1, 1), (2, 1))


def turned(figure: Figure, turn: Turn) -> Figure:
    cubes = [tuple(sign * cube[axis] for axis, sign in turn) for cube in figure]
    right, front, up = (min(cube[axis] for cube in cubes) for axis in range(3))
    return tuple(sorted((cube[0] - right, cube[1] - front, cube[2] - up) for cube in cubes))


def orientations(figure: Figure) -> set[Figure]:
    """Return all turns of a figure, from quarter turns around two axes."""
    first = turned(figure, AS_IT_IS)
    found, waiting = {first}, deque([first])
    while waiting:
        one = waiting.popleft()
        for other in (turned(one, quarter) for quarter in QUARTERS):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


@pytest.mark.parametrize("size", Cubes.levels)
def test_cubes_answer_agrees_with_quarter_turns(size: int) -> None:
    for seed in range(4):
        state = Cubes().create(random.Random(seed), size)
        turns = orientations(state.figure)
        same = [name for name, one in zip("ABCDE", state.options, strict=True) if one in turns]
        assert Cubes().answer(state) == " ".join(same)
        mirrors = {turned(one, MIRROR) for one in turns}
        assert not turns & mirrors
        assert all(one in turns | mirrors for one in state.options)
        assert len({state.figure, *state.options}) == 6
        assert len(state.figure) == size


def test_cubes_takes_letters_in_any_order() -> None:
    figure = ((0, 0, 0),)
    state = CubesState(figure=figure, options=(figure,) * 5, same="BD")
    assert Cubes().is_right(state, "d, b")
    assert not Cubes().is_right(state, "B")
    assert Cubes().act(state, "none").error
    assert Cubes().act(state, "B B").error


@pytest.mark.parametrize("text", ["1e999", "nan", "٣ ٤", "-0 -0", "9" * 300, ", ,", "inner ,"])
def test_odd_texts_are_errors_or_actions(text: str) -> None:
    for kind in WORLDS:
        world: Any = kind()
        state = world.create(random.Random(0), world.levels[0])
        outcome = world.act(state, text)
        assert outcome.error or outcome.text
