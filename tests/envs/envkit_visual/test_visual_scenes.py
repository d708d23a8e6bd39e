"""Rules of the worlds of scenes: objects, cards, cups, blocks and matrices."""

import math
import random
import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from envkit_visual.canvas import SIDE
from envkit_visual.scenes.memory import Pairs, PairsState, Shells, ShellsState
from envkit_visual.scenes.puzzles import Matrix, Stack, Stacks, StackState, completions
from envkit_visual.scenes.scattered import (
    Click,
    ClickState,
    Count,
    CountState,
    MarkState,
    MarkWorld,
    Relate,
    RelateState,
)
from envkit_visual.scenes.scene import (
    COLOR_NAMES,
    Group,
    Thing,
    apart,
    clear_least,
    draw_thing,
    hit,
    scattered,
)
from envkit_visual.world import LEVELS


def thing(name: str, x: int, y: int) -> Thing:
    size, color, shape = name.split()
    return Thing(color=color, shape=shape, is_large=size == "large", x=x, y=y)


SCENE = (
    thing("large red star", 100, 100),
    thing("small red star", 300, 100),
    thing("small red circle", 100, 300),
    thing("small blue star", 300, 300),
)
RED_STARS = Group(color="red", shape="star")


@pytest.mark.parametrize("count", [6, 42])
def test_scattered_objects_do_not_touch_and_are_inside(count: int) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        things = scattered(rng, [draw_thing(rng) for _ in range(count)])
        assert len(things) == count
        for at, one in enumerate(things):
            assert all(one.reach + 4 <= place <= SIDE - one.reach - 4 for place in (one.x, one.y))
            assert all(apart(one, other) > one.reach + other.reach for other in things[:at])


def test_point_hits_an_object_up_to_its_corners() -> None:
    assert hit(SCENE, "223, 223") == 0
    assert hit(SCENE, "223, 278") == 0
    assert hit(SCENE, "223, 282") is None
    assert hit(SCENE, "669.6, 669.6") == 3
    assert hit(SCENE, "0, 0") is None


def test_clear_least_leaves_ties_open() -> None:
    assert clear_least([]) is None
    assert clear_least([(5, 1)]) == 1
    assert clear_least([(50, 1), (61, 2)]) == 1
    assert clear_least([(50, 1), (59, 2)]) is None
    assert clear_least([(-300, 1), (-280, 2)]) is None


@pytest.mark.parametrize(
    ("group", "plural"),
    [
        (Group(), "objects"),
        (Group(is_large=False, shape="cross"), "small crosses"),
        (Group(is_large=True, color="red", shape="star"), "large red stars"),
    ],
)
def test_group_is_named_by_what_it_fixes(group: Group, plural: str) -> None:
    assert group.name(plural=True) == plural


@pytest.mark.parametrize(
    ("group", "number"),
    [(RED_STARS, 2), (Group(color="red"), 3), (Group(is_large=False, shape="star"), 2)],
)
def test_count_counts_those_with_every_attribute(group: Group, number: int) -> None:
    state = CountState(things=SCENE, group=group)
    assert Count().answer(state) == str(number)
    assert Count().is_right(state, f"{number}.0")
    assert not Count().is_right(state, str(number + 1))


def test_count_draws_every_number_about_as_often() -> None:
    world = Count()
    answers = Counter(world.answer(world.create(random.Random(k), 12)) for k in range(1000))
    assert len(answers) == 10
    assert max(answers.values()) <= 130


def test_count_has_many_objects_that_differ_in_one_attribute() -> None:
    state = Count().create(random.Random(4), 42)
    assert len(state.group.given()) > 1
    near = [
        one
        for one in state.things
        if sum(getattr(one, name) == value for name, value in state.group.given().items())
        == len(state.group.given()) - 1
    ]
    assert len(near) >= 10


ENDS: dict[str, Callable[[Thing], float]] = {
    "leftmost": lambda one: one.x,
    "rightmost": lambda one: -one.x,
    "highest": lambda one: one.y,
    "lowest": lambda one: -one.y,
}
RELATION = re.compile(r"(nearest to|farthest from|left of|right of|above|below)")


def those(things: tuple[Thing, ...], words: str) -> list[Thing]:
    """Return the objects that words such as "small red star" fit."""
    return [
        one
        for one in things
        if all(
            word in ("the", "object", one.color, one.shape, "large" if one.is_large else "small")
            for word in words.split()
        )
    ]


def meant(state: ClickState) -> list[Thing]:
    """Read a description word by word, as a second solver."""
    words, relation, after = RELATION.split(state.phrase)
    end = next((end for end in ENDS if end in after), None)
    anchors = those(state.things, after.replace(end or "", ""))
    assert end or len(anchors) == 1
    anchor = min(anchors, key=ENDS[end] if end else lambda _: 0)
    inside = [one for one in those(state.things, words) if one != anchor]
    match relation:
        case "nearest to":
            return [min(inside, key=lambda one: apart(one, anchor))]
        case "farthest from":
            return [max(inside, key=lambda one: apart(one, anchor))]
        case "left of":
            return [one for one in inside if one.x < anchor.x]
        case "right of":
            return [one for one in inside if one.x > anchor.x]
        case "above":
            return [one for one in inside if one.y < anchor.y]
        case _:
            return [one for one in inside if one.y > anchor.y]


@pytest.mark.parametrize("level", LEVELS)
def test_click_describes_exactly_one_object(level: int) -> None:
    world = Click()
    for seed in range(25):
        state = world.create(random.Random(seed), world.levels[level - 1])
        assert meant(state) == [state.things[state.target]]
        assert world.is_right(state, world.answer(state))


def test_click_takes_a_point_on_the_object_only() -> None:
    state = ClickState(things=SCENE, phrase="the red circle below the large star", target=2)
    outcome = Click().act(state, "223, 669")
    assert Click().is_solved(outcome.state)
    assert outcome.mark == {"kind": "click", "x": 0.223 * SIDE, "y": 0.669 * SIDE}
    assert not Click().is_solved(Click().act(state, "223, 223").state)
    assert Click().act(state, "223, 1001").error


def led(things: tuple[Thing, ...], here: Thing, hop: str) -> Thing:
    """Follow a hop by its plain meaning, as a second solver."""
    fits: dict[str, Callable[[Thing], bool]] = {
        "color": lambda one: one.color == here.color,
        "shape": lambda one: one.shape == here.shape,
        "left": lambda one: one.x < here.x,
        "right": lambda one: one.x > here.x,
        "above": lambda one: one.y < here.y,
        "below": lambda one: one.y > here.y,
    }
    others = [one for one in things if one != here and fits.get(hop, lambda _: True)(one)]
    return (max if hop == "far" else min)(others, key=lambda one: apart(one, here))


@pytest.mark.parametrize("level", LEVELS)
def test_relate_leads_where_a_second_solver_gets(level: int) -> None:
    world = Relate()
    for seed in range(25):
        state = world.create(random.Random(seed), world.levels[level - 1])
        here = state.things[state.start]
        trail = [here]
        for hop in state.hops:
            here = led(state.things, here, hop)
            trail.append(here)
        assert world.answer(state) == here.name
        assert len(set(trail)) == len(state.hops) + 1
        assert state.hops[-1] not in ("color", "shape")


def test_relate_takes_a_name_in_any_case_and_with_an_article() -> None:
    state = RelateState(things=SCENE, start=3, hops=("far",))
    for given in ("red star", "Red Star", "the red star.", "a red star"):
        assert Relate().is_right(state, given)
    for given in ("red", "star red", "red red star", "very red star", "the blue"):
        assert Relate().act(state, given).error


def test_mark_rings_an_object_and_removes_the_ring() -> None:
    world = MarkWorld()
    state = MarkState(things=SCENE, group=RED_STARS, marked=(False,) * 4)
    assert world.plan(state) == ["223, 223", "670, 223", "done 2"]
    wrong = world.act(state, "223, 669").state
    assert wrong.marked == (False, False, True, False)
    assert world.plan(wrong) == ["223, 223", "670, 223", "223, 670", "done 2"]
    assert world.progress(wrong) == 0.0
    assert world.act(wrong, "223 669").state == state
    assert world.act(state, "500, 500").state == state
    assert world.act(state, "done two").error


@pytest.mark.parametrize(
    ("marked", "told", "is_solved"),
    [
        ((True, True, False, False), "done 2", True),
        ((True, True, False, False), "done 3", False),
        ((True, False, False, False), "done 2", False),
        ((True, True, True, False), "done 2", False),
    ],
)
def test_mark_ends_with_the_right_marks_and_number(
    marked: tuple[bool, ...], told: str, is_solved: bool
) -> None:
    world = MarkWorld()
    state = world.act(MarkState(things=SCENE, group=RED_STARS, marked=marked), told).state
    assert world.is_over(state)
    assert world.is_solved(state) == is_solved
    assert world.progress(state) == is_solved
    assert world.plan(state) == []


CARDS = ("red star", "red circle", "blue star", "red star", "blue star", "red circle")
TABLE = PairsState(columns=3, cards=CARDS, seen=(False,) * 6, found=(False,) * 6)


def test_pairs_turns_back_what_is_not_a_pair() -> None:
    world = Pairs()
    state = world.act(TABLE, "a1 a2").state
    assert "A1: red star\nA2: red circle\nA3: face down" in world.tell(state)
    state = world.act(state, "A1, B1").state
    assert state.found == (True, False, False, True, False, False)
    state = world.act(state, "A2 A3").state
    assert "A1: red star\nA2: red circle\nA3: blue star\nB1: red star\nB2: face" in world.tell(
        state
    )


@pytest.mark.parametrize("action", ["A1 A1", "A1", "A4 A1", "C1 A1", "A1 A2 A3", "A0 A1", "1A 2A"])
def test_pairs_rejects_what_is_not_two_cells(action: str) -> None:
    outcome = Pairs().act(TABLE, action)
    assert outcome.error
    assert outcome.state == TABLE


def test_pairs_says_the_same_of_every_turn() -> None:
    world = Pairs()
    state = world.act(TABLE, "A1 B1").state
    said = {world.act(state, action).text for action in ("A1 B1", "A2 A3", "A2 B3", "A1 A2")}
    assert len(said) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_pairs_leaves_enough_turns_for_any_order(level: int) -> None:
    """Whoever remembers all cards needs two turns a pair at most."""
    world = Pairs()
    pairs = world.levels[level - 1]
    for seed in range(20):
        state = world.create(random.Random(seed), pairs)
        assert math.ceil(1.5 * len(world.plan(state))) + 2 >= 2 * pairs
        assert len(state.up) == 2
        assert not any(state.found)


def test_pairs_takes_known_pairs_first_and_the_last_card_with_its_partner() -> None:
    seen = (True, False, True, False, True, False)
    assert Pairs().plan(replace(TABLE, seen=seen))[0] == "A3 B2"
    found = (False, True, True, False, True, True)
    assert Pairs().plan(replace(TABLE, seen=(True,) * 3 + (False,) * 3, found=found)) == ["B1 A1"]


def test_shells_moves_balls_with_their_cups() -> None:
    world = Shells()
    state = ShellsState(start=(2, 5), swaps=((1, 2), (1, 5), (3, 4)))
    assert world.plan(state) == ["next", "next", "next", "5 1"]
    early = world.act(state, "5 1")
    assert early.state == state
    assert early.error is None
    for _ in range(3):
        state = world.act(state, "next").state
    assert world.tell(state) == "Swap 3 of 3: cups 3 and 4"
    assert world.act(state, "next").state == state
    assert world.is_solved(world.act(state, "5, 1").state)
    wrong = world.act(state, "1 5").state
    assert world.is_over(wrong)
    assert not world.is_solved(wrong)
    assert world.act(state, "5 5").error
    assert world.act(state, "5 8").error


def test_shells_shows_the_balls_at_the_start_only() -> None:
    state = ShellsState(start=(2, 5), swaps=((1, 2), (1, 5)))
    assert "Red ball under cup 2" in Shells().tell(state)
    assert "ball" not in Shells().tell(Shells().act(state, "next").state)


def test_shells_ends_at_every_place_about_as_often() -> None:
    world = Shells()
    ends = Counter(world.plan(world.create(random.Random(k), 6))[-1] for k in range(1500))
    assert set(ends) == {f"{red} {blue}" for red, blue in permutations(range(1, 8), 2)}
    assert max(ends.values()) < 70


STACKS = StackState(
    stacks=(("red", "blue"), (), ("green",), ()), wanted=(("blue", "red"), (), (), ("green",))
)


def test_stack_moves_the_top_block() -> None:
    world = Stack()
    outcome = world.act(STACKS, "1 2")
    assert outcome.state.stacks == (("red",), ("blue",), ("green",), ())
    assert world.act(STACKS, "2 1").state == STACKS
    for action in ("1 1", "0 1", "1 5", "1", "1 2 3", "\u0661 2"):
        assert world.act(STACKS, action).error
    assert len(world.plan(STACKS)) == 5


def test_stack_counts_blocks_on_the_right_ones_as_progress() -> None:
    wanted = (("red", "blue"), (), ("green",), ())
    stacks = (("red", "green"), (), (), ("blue",))
    assert Stack().progress(StackState(stacks=stacks, wanted=wanted)) == pytest.approx(1 / 3)
    assert Stack().progress(StackState(stacks=wanted, wanted=wanted)) == 1.0


def distances(start: Stacks) -> dict[Stacks, int]:
    """Return the moves to every arrangement by breadth-first search."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        stacks = waiting.popleft()
        for source, target in permutations(range(len(stacks)), 2):
            if stacks[source]:
                after = list(stacks)
                after[source] = stacks[source][:-1]
                after[target] = (*stacks[target], stacks[source][-1])
                if tuple(after) not in found:
                    found[tuple(after)] = found[stacks] + 1
                    waiting.append(tuple(after))
    return found


@pytest.mark.parametrize("blocks", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_stack_plans_as_few_moves_as_a_search_of_all_arrangements(blocks: int) -> None:
    world, rng = Stack(), random.Random(blocks)
    wanted = (tuple(COLOR_NAMES[: blocks - 1]), (), (COLOR_NAMES[blocks - 1],), ())
    found = distances(wanted)  # a move can be taken back, so distances are the same both ways
    assert len(found) == math.factorial(blocks) * math.comb(blocks + 3, 3)
    for stacks in rng.sample(sorted(found), 120):
        assert len(world.plan(StackState(stacks=stacks, wanted=wanted))) == found[stacks]


@pytest.mark.parametrize(
    ("rows", "name", "values"),
    [
        (((0, 1, 2), (1, 2, 3), (2, 3)), "number", {4}),
        (((0, 1, 2), (2, 0, 3), (1, 1)), "number", {3}),
        (((1, 1, 1), (4, 4, 4), (2, 2)), "colour", {2}),
        (((0, 3, 1), (1, 0, 3), (3, 1)), "colour", {0}),
        (((6, 7, 0), (1, 2, 3), (7, 0)), "dot", {1}),
        (((0, 1, 2), (1, 2, 0), (2, 0)), "size", {1}),
        (((0, 1, 2), (0, 1, 2), (2, 2)), "size", set[int]()),
    ],
)
def test_matrix_rules_complete_a_row(
    rows: tuple[tuple[int, ...], ...], name: str, values: set[int]
) -> None:
    assert completions(rows, name) == values


@pytest.mark.parametrize("level", LEVELS)
def test_matrix_has_one_option_that_fits_and_options_that_do_not_tell_it(level: int) -> None:
    world = Matrix()
    for seed in range(25):
        state = world.create(random.Random(seed), world.levels[level - 1])
        lines = [[cell[k] for cell in state.cells] for k in range(5)]
        names = ("shape", "colour", "number", "size", "dot")
        fits = [
            completions((line[:3], line[3:6], line[6:]), name)
            for name, line in zip(names, lines, strict=True)
        ]
        right = [all(v in fit for v, fit in zip(one, fits, strict=True)) for one in state.options]
        assert [at for at, is_right in enumerate(right) if is_right] == [state.right]
        for values in zip(*state.options, strict=True):
            assert set(Counter(values).values()) in ({8}, {4})


def test_matrix_takes_one_letter() -> None:
    world = Matrix()
    state = world.create(random.Random(0), 2)
    assert world.is_right(state, world.answer(state).lower())
    for given in ("", "AB", "I", "1", "ABC"):
        assert world.act(state, given).error
