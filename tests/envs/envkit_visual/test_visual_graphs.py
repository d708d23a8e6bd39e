"""Rules of the domain graphs, on states made by hand, and independent solvers."""

import itertools
import random
from dataclasses import replace

import pytest

from envkit_visual.catalogue import WORLDS
from envkit_visual.graphs.diagrams import (
    Family,
    FamilyState,
    Flow,
    FlowState,
    Gates,
    GatesState,
    Kind,
    Person,
    Step,
)
from envkit_visual.graphs.network import Network, NetworkState, letters_in, network
from envkit_visual.graphs.networks import (
    Colour,
    ColourState,
    Metro,
    MetroState,
    Route,
    Tree,
    Wires,
    WiresState,
)

SQUARE = Network(
    names="ABCD",
    places=((50, 50), (300, 50), (300, 300), (50, 300)),
    edges=((0, 1), (1, 2), (2, 3), (0, 3)),
    weights=(1, 2, 4, 7),
)


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("A-B-C", ["A", "B", "C"]),
        ("a, b", ["A", "B"]),
        ("A -> B", ["A", "B"]),
        ("AB", None),
        ("I", None),
        ("", None),
        ("A 1", None),
        ("-", None),
    ],
)
def test_letters_are_read_with_any_separator(text: str, letters: list[str] | None) -> None:
    assert letters_in(text) == letters


@pytest.mark.parametrize(
    ("given", "is_right"), [("A-B-C-D", True), ("A-D", True), ("A-C-D", False)]
)
def test_route_accepts_every_way_of_the_least_length(given: str, is_right: bool) -> None:
    state = NetworkState(network=SQUARE, start="A", end="D")
    assert Route().is_right(state, given) is is_right
    longer = replace(state, network=replace(SQUARE, weights=(1, 2, 5, 7)))
    assert not Route().is_right(longer, "A-B-C-D")


def test_route_must_join_the_two_towns() -> None:
    state = NetworkState(network=SQUARE, start="A", end="D")
    assert not Route().is_right(state, "B-C-D")
    assert not Route().is_right(state, "D-A")
    assert Route().act(state, "from A to D").error


@pytest.mark.parametrize("seed", range(6))
def test_route_agrees_with_every_simple_path(seed: int) -> None:
    state = Route().create(random.Random(seed), 7)
    between = [name for name in state.network.names if name not in (state.start, state.end)]
    costs = list[int]()
    for count in range(len(between) + 1):
        for middle in itertools.permutations(between, count):
            way = (state.start, *middle, state.end)
            steps = [state.network.cost(*pair) for pair in itertools.pairwise(way)]
            if None not in steps:
                costs.append(sum(filter(None, steps)))
    best = Route().answer(state).split("-")
    assert sum(state.network.cost(*pair) or 0 for pair in itertools.pairwise(best)) == min(costs)
    assert len(best) > 3


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        ("AB, BC, CD", True),
        ("dc, b-a, C B", True),
        ("AB, BC, AD", False),
        ("AB, BC, CD, AD", False),
        ("AB, BC, CD, DC", False),
        ("AB, BC, AC", False),
    ],
)
def test_tree_is_cheapest_and_has_no_pipe_too_many(given: str, is_right: bool) -> None:
    assert Tree().is_right(NetworkState(network=SQUARE), given) is is_right


@pytest.mark.parametrize("seed", range(4))
def test_tree_agrees_with_every_choice_of_pipes(seed: int) -> None:
    state = Tree().create(random.Random(seed), 5)
    pipes = dict(zip(state.network.edges, state.network.weights, strict=True))
    right = [
        chosen
        for chosen in itertools.combinations(pipes, 4)
        if Tree().is_right(state, ", ".join(map(state.network.label, chosen)))
    ]
    assert right
    joined = [chosen for chosen in itertools.combinations(pipes, 4) if len(reached(chosen)) == 5]
    least = min(sum(pipes[edge] for edge in chosen) for chosen in joined)
    assert {sum(pipes[edge] for edge in chosen) for chosen in right} == {least}


def reached(edges: tuple[tuple[int, int], ...]) -> set[int]:
    """Return the circles that edges join to circle 0."""
    found = {0}
    for _ in edges:
        found |= {end for edge in edges if found & set(edge) for end in edge}
    return found


def test_wires_follow_crossings() -> None:
    state = WiresState(columns=((0, 2), (1,)), letters="KLMN", asked=(0, 3))
    assert Wires().answer(state) == "M, L"
    assert Wires().is_right(state, "m l")
    assert not Wires().is_right(state, "L, M")
    assert Wires().act(state, "M").error


def test_colour_paints_circles_only() -> None:
    state = ColourState(
        lines=SQUARE,
        fixed=(0,),
        painting=("red", "", "", ""),
        solution=("red", "blue", "red", "blue"),
    )
    world = Colour()
    assert world.plan(state) == ["B blue", "C red", "D blue"]
    assert world.act(state, "a blue").text == "No circle has that letter."
    assert world.act(state, "a blue").state == state
    assert world.act(state, "B green").error is not None
    wrong = world.act(state, "B red").state
    assert world.plan(wrong) == world.plan(state)
    done = wrong
    for action in ("b Blue", "c red", "d blue"):
        done = world.act(done, action).state
    assert world.is_solved(done)
    assert world.progress(done) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_colour_has_one_solution(seed: int) -> None:
    state = Colour().create(random.Random(seed), 9)
    free = [at for at in range(9) if at not in state.fixed]
    found = list[tuple[str, ...]]()
    for paints in itertools.product(("red", "blue", "yellow"), repeat=len(free)):
        painting = list(state.painting)
        for at, paint in zip(free, paints, strict=True):
            painting[at] = paint
        if all(painting[one] != painting[two] for one, two in state.lines.edges):
            found.append(tuple(painting))
    assert found == [state.solution]


METRO = MetroState(
    lines=("ABCDE", "BFG", "DHG"),
    places=tuple((name, (at, 0)) for at, name in enumerate("ABCDEFGH")),
    start="A",
    end="H",
)


def test_metro_weighs_changes_against_stops() -> None:
    assert Metro().answer(METRO) == "D"
    assert Metro().is_right(METRO, "D")
    assert not Metro().is_right(METRO, "B, G")
    assert not Metro().is_right(METRO, "C, D")
    assert not Metro().is_right(METRO, "E")
    assert not Metro().is_right(METRO, "A, D")


def test_metro_accepts_a_trip_of_the_same_length() -> None:
    state = replace(METRO, end="G", lines=("ABCD", "BFG", "DG"))
    assert Metro().answer(state) == "B"
    tied = replace(state, lines=("ABCD", "BFXG", "DG"))
    assert Metro().is_right(tied, "B")
    assert Metro().is_right(tied, "D")


def test_flow_runs_branches_and_loops() -> None:
    steps = (
        Step(kind=Kind.WHILE, test="x < 20", do="x = x + 6"),
        Step(kind=Kind.DO, do="y = y - x"),
        Step(kind=Kind.IF, test="y > 0", do="x = x + 100"),
        Step(kind=Kind.IF, test="y < 0", do="x = x - y"),
    )
    state = FlowState(x=8, y=5, steps=steps)
    assert Flow().answer(state) == "35"
    assert Flow().is_right(state, "35.0")
    assert not Flow().is_right(state, "nan")
    assert Flow().act(state, "x is 35").error


def test_gates_light_lamps() -> None:
    column = (("AND", 0, 1), ("OR", 0, 2), ("XOR", 1, 2), ("NAND", 2, 4), ("NOR", 3, 4))
    state = GatesState(inputs=(True, False, True, False, False), columns=(column,), letters="PQRST")
    assert Gates().answer(state) == "Q, R, S, T"
    assert Gates().is_right(state, "T-S-R-Q")
    assert not Gates().is_right(state, "Q, R, S")
    assert not Gates().is_right(state, "Q, R, S, T, T")


def test_family_follows_relations() -> None:
    def person(name: str, generation: int, x: int, **more: object) -> Person:
        is_woman = name.endswith("a")
        return replace(Person(name=name, is_woman=is_woman, generation=generation, x=x), **more)

    people = (
        person("Olra", 0, 1, spouse=1),
        person("Benos", 0, 3, spouse=0),
        person("Kalra", 1, 0, parents=(0, 1)),
        person("Jomir", 1, 2, parents=(0, 1), spouse=4),
        person("Sara", 1, 4, spouse=3),
        person("Tebin", 2, 3, parents=(3, 4)),
    )
    steps = ("mother", "husband", "father", "oldest child")
    state = FamilyState(people=people, start=5, steps=steps)
    assert Family().answer(state) == "Kalra"
    assert Family().is_right(state, "kalra")
    assert Family().ask(state) == (
        "Who is the oldest child of the father of the husband of the mother of Tebin?"
    )
    sibling = replace(state, start=2, steps=("next younger sibling", "only child"))
    assert Family().answer(sibling) == "Tebin"


@pytest.mark.parametrize("name", ["metro", "family"])
def test_questions_are_not_answered_by_what_they_name(name: str) -> None:
    world = WORLDS[name]()
    for seed in range(20):
        state = world.create(random.Random(seed), world.levels[0])
        answer = world.plan(state)[0]
        assert not set(answer.split(", ")) & set(world.ask(state).rstrip("?").split())


@pytest.mark.parametrize("nodes", [5, 18])
def test_network_is_joined_and_its_circles_are_apart(nodes: int) -> None:
    drawn = network(random.Random(nodes), nodes, 2 * nodes)
    assert len(reached(drawn.edges)) == nodes or nodes > len(drawn.edges)
    for one, two in itertools.combinations(drawn.places, 2):
        assert (one[0] - two[0]) ** 2 + (one[1] - two[1]) ** 2 > 30**2


def test_flow_keeps_numbers_positive_and_short() -> None:
    for seed in range(100):
        state = Flow().create(random.Random(seed), Flow.levels[-1])
        for count in range(len(state.steps) + 1):
            result = int(Flow().answer(replace(state, steps=state.steps[:count])))
            assert 0 < result < 1000
