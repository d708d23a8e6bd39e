"""Rules of the domain pages, on states made by hand, and independent solvers."""

import itertools
import random
from dataclasses import replace

import pytest

from envkit_visual.graphs.network import Network
from envkit_visual.pages.papers import (
    Crosscheck,
    CrosscheckState,
    Line,
    Receipt,
    ReceiptState,
    Sale,
    Table,
    TableState,
)
from envkit_visual.pages.tabletop import Cards, CardsState, Map, MapState


def test_receipt_adds_up_counts_times_prices() -> None:
    lines = (
        Line(item="Tea", count=2, price=305, amount=610),
        Line(item="Jam", count=3, price=150, amount=460),
    )
    state = ReceiptState(lines=lines)
    assert Receipt().answer(state) == "10.60"
    assert Receipt().is_right(state, "10.6")
    assert not Receipt().is_right(state, "10.70")
    assert Receipt().act(state, "$10.60").error


@pytest.mark.parametrize("size", Receipt.levels)
def test_receipt_has_one_wrong_amount(size: int) -> None:
    for seed in range(20):
        lines = Receipt().create(random.Random(seed), size).lines
        assert sum(line.count * line.price != line.amount for line in lines) == 1
        assert all(line.amount > 0 for line in lines)


def test_table_adds_up_rows_of_a_city_that_fit_either_way() -> None:
    sales = (
        Sale(city="Oslo", goods="tea", year=2015, units=11),
        Sale(city="Oslo", goods="wool", year=2020, units=20),
        Sale(city="Oslo", goods="wool", year=2019, units=40),
        Sale(city="Oslo", goods="tea", year=2022, units=80),
        Sale(city="Lima", goods="tea", year=2022, units=90),
    )
    state = TableState(sales=sales, city="Oslo", goods="tea", since=2020)
    assert Table().answer(state) == "111"
    assert Table().is_right(state, "111.0")
    assert not Table().is_right(state, "131")


FORM = CrosscheckState(
    fields=("time", "room"), right=("11:34", "785"), copied=("11:36", "785"), wrong=1
)


def test_crosscheck_changes_a_field() -> None:
    world = Crosscheck()
    assert world.plan(FORM) == ["time: 11:34"]
    assert world.act(FORM, "phone: 1").state == FORM
    assert world.act(FORM, "time").error is not None
    assert world.act(FORM, "time:").error is not None
    spoilt = world.act(FORM, "room: 786").state
    assert world.plan(spoilt) == ["time: 11:34", "room: 785"]
    assert world.progress(spoilt) == 0.0
    assert world.act(FORM, "Time : 11:34").state == world.goal(FORM)
    assert world.is_solved(world.act(FORM, "time: 11:34").state)


ROADS = MapState(
    roads=Network(
        names="ABCD",
        places=((50, 50), (300, 50), (300, 300), (50, 300)),
        edges=((0, 1), (1, 2), (2, 3), (0, 3)),
        weights=(0, 1, 0, 2),
    ),
    fuel=(1, 2, 5),
    car="A",
    goal="D",
    tank=4,
    distance=3,
)


def test_map_ends_when_the_fuel_is_not_enough() -> None:
    world = Map()
    assert world.plan(ROADS) == ["B", "C", "D"]
    assert world.act(ROADS, "C").text == "No road leads there."
    assert world.act(ROADS, "D").text == "That takes more fuel than is left."
    moved = world.act(ROADS, "b").state
    assert world.plan(moved) == ["C", "D"]
    back = world.act(moved, "A").state
    assert world.is_over(back)
    assert not world.is_solved(back)
    assert world.progress(back) == 0.0


def test_map_prefers_fewer_roads_for_the_same_fuel() -> None:
    assert Map().plan(replace(ROADS, fuel=(1, 2, 4))) == ["D"]


@pytest.mark.parametrize("seed", range(4))
def test_map_agrees_with_relaxation(seed: int) -> None:
    state = Map().create(random.Random(seed), 18)
    best = dict(enumerate([(10**6, 0)] * 18))
    best[state.roads.names.index(state.car)] = (0, 0)
    for _ in range(18):
        for (one, two), kind in zip(state.roads.edges, state.roads.weights, strict=True):
            for start, end in ((one, two), (two, one)):
                fuel, roads = best[start]
                best[end] = min(best[end], (fuel + state.fuel[kind], roads + 1))
    goal = best[state.roads.names.index(state.goal)]
    assert (state.tank, len(Map().plan(state))) == goal


CARDS = CardsState(
    cards=(
        (0, 0, 0, 0),
        (0, 0, 0, 1),
        (0, 0, 0, 2),
        (0, 1, 2, 0),
        (1, 1, 2, 1),
        (2, 1, 2, 2),
    ),
    letters="ABCDEF",
)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("a c b", "Taken."),
        ("D, E, F", "Taken."),
        ("A, B, D", "Those are not a set."),
        ("A, A, A", "Those are not three cards on the table."),
        ("A, B, K", "Those are not three cards on the table."),
    ],
)
def test_cards_are_taken_in_sets(action: str, text: str) -> None:
    assert Cards().act(CARDS, action).text == text


def test_cards_are_over_when_the_rest_cannot_be_cleared() -> None:
    world = Cards()
    assert world.act(CARDS, "A, B").error is not None
    assert world.plan(CARDS) == ["A, B, C", "D, E, F"]
    stuck = replace(CARDS, cards=(*CARDS.cards[:5], (2, 1, 2, 1)))
    assert world.is_over(stuck)
    assert not world.is_solved(stuck)
    cleared = replace(CARDS, taken="ABCDEF")
    assert world.is_solved(cleared)
    assert world.is_over(cleared)


@pytest.mark.parametrize("seed", range(12))
def test_cards_can_be_cleared_exactly_when_a_partition_exists(seed: int) -> None:
    rng = random.Random(seed)
    deck = list(itertools.product(range(2), range(3), range(1), range(3)))
    cards = tuple(rng.sample(deck, 9))
    state = CardsState(cards=cards, letters="ABCDEFGHJ")
    sets = [
        trio
        for trio in itertools.combinations(range(9), 3)
        if all(len({cards[at][kind] for at in trio}) != 2 for kind in range(4))
    ]
    exists = any(
        len(set().union(*chosen)) == 9 for chosen in itertools.combinations(map(set, sets), 3)
    )
    assert bool(Cards().plan(state)) == exists
