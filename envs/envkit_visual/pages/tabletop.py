"""What lies on a table: a game of cards, and a road map."""

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from math import dist

from envkit_visual.canvas import COLORS, SIDE, Canvas, Color, Look, Point
from envkit_visual.graphs.network import LETTERS, Network, cheapest, draw_node, letters_in, network
from envkit_visual.world import ChoiceWorld, Outcome, Record, Staged

_ROWS = 3
_SHAPES = ("circle", "square", "triangle")
_COLORS = ("red", "blue", "green")
_FILLINGS = ("full", "empty", "dotted")
_SHEET: Color = (255, 255, 255)

Card = tuple[int, ...]
"""Number, shape, colour and filling, each from 0 to 2."""


class CardsState(Record):
    """Cards on a table."""

    cards: tuple[Card, ...]
    letters: str
    """A letter for each card."""
    taken: str = ""
    """Letters of the cards that are gone."""


class Cards(Staged[CardsState]):
    """Clear a table by taking sets of three cards.

    The picture shows cards with letters. Cards differ in the number of their symbols, and in the
    symbols' shape, colour and filling (full, empty or with a small core). Three cards are a set if
    each of these four is the same on all three or different on all three. Take sets until no card
    is left; a taken card does not come back.

    An action is the letters of three cards, such as A, B, C.
    """

    difficulty = ("number of cards", 6, 9, 12, 15)
    options = tuple(", ".join(LETTERS[at : at + 3]) for at in range(len(LETTERS) - 2))

    def create(self, rng: random.Random, size: int) -> CardsState:
        """Draw sets that share no card, and shuffle them."""
        deck, cards = list(product(range(3), repeat=4)), set[Card]()
        while len(cards) < size - size % 3:
            one, two = rng.sample(deck, 2)
            drawn = {one, two, _third(one, two)}
            if drawn.isdisjoint(cards):
                cards |= drawn
        shuffled = rng.sample(sorted(cards), len(cards))
        letters = "".join(rng.sample(LETTERS, len(shuffled)))
        return CardsState(cards=tuple(shuffled), letters=letters)

    def draw(self, state: CardsState, canvas: Canvas, look: Look) -> None:
        """Draw the cards that are left, in their places."""
        columns = -(-len(state.cards) // _ROWS)
        wide, high = min(120, (SIDE - 8) / columns), (SIDE - 8) / _ROWS
        left = (SIDE - wide * columns) / 2
        for at, (card, letter) in enumerate(zip(state.cards, state.letters, strict=True)):
            if letter not in state.taken:
                row, column = divmod(at, columns)
                x, y = left + wide * (column + 0.5), 4 + high * (row + 0.5)
                corners = (x - wide / 2 + 4, y - high / 2 + 4, x + wide / 2 - 4, y + high / 2 - 4)
                canvas.box(*corners, fill=_SHEET, line=look.ink, width=2, round_by=8)
                canvas.text(x - wide / 2 + 18, y - high / 2 + 18, letter, color=look.ink, size=18)
                _draw_symbols(canvas, x, y, card)

    def tell(self, state: CardsState) -> str:
        """List the cards that are left."""
        return "\n".join(
            f"{letter}: {card[0] + 1} {_FILLINGS[card[3]]} {_COLORS[card[2]]} {_SHAPES[card[1]]}"
            for letter, card in _left(state).items()
        )

    def act(self, state: CardsState, action: str) -> Outcome[CardsState]:
        """Take three cards, if they are a set."""
        letters = letters_in(action) or []
        if len(letters) != 3:
            return Outcome(state=state, error="a move is three letters, such as A, B, C")
        left = _left(state)
        if len(set(letters)) < 3 or not all(letter in left for letter in letters):
            return Outcome(state=state, text="Those are not three cards on the table.")
        one, two, three = (left[letter] for letter in letters)
        if _third(one, two) != three:
            return Outcome(state=state, text="Those are not a set.")
        return Outcome(state=replace(state, taken=state.taken + "".join(letters)), text="Taken.")

    def is_over(self, state: CardsState) -> bool:
        """Return whether the table is clear or cannot be cleared."""
        return not self.plan(state)

    def progress(self, state: CardsState) -> float:
        """Return the part of the cards that are taken."""
        return len(state.taken) / len(state.cards)

    def plan(self, state: CardsState) -> list[str]:
        """Return sets that clear the table; an empty list if there are none."""
        return _cleared(_left(state)) or []


def _left(state: CardsState) -> dict[str, Card]:
    """Return the cards on the table by their letters."""
    pairs = zip(state.letters, state.cards, strict=True)
    return {letter: card for letter, card in pairs if letter not in state.taken}


def _third(one: Card, two: Card) -> Card:
    """Return the card that makes a set with two others."""
    return tuple(-(a + b) % 3 for a, b in zip(one, two, strict=True))


def _cleared(left: dict[str, Card]) -> list[str] | None:
    """Return sets that use each card once; None if there are none."""
    if not left:
        return []
    names = {card: letter for letter, card in left.items()}
    first, *others = left
    for other in others:
        third = names.get(_third(left[first], left[other]))
        if third is None or others.index(third) < others.index(other):
            continue
        taken = (first, other, third)
        rest = _cleared({name: card for name, card in left.items() if name not in taken})
        if rest is not None:
            return [", ".join(taken), *rest]
    return None


def _draw_symbols(canvas: Canvas, x: float, y: float, card: Card) -> None:
    count, shape, color, filling = card
    kind, fill = _SHAPES[shape], COLORS[_COLORS[color]]
    for at in range(count + 1):
        middle = y + 40 * (at - count / 2)
        canvas.shape(kind, x, middle, 18, fill=fill)
        if filling:
            canvas.shape(kind, x, middle, 13, fill=_SHEET)
        if filling == 2:
            canvas.shape(kind, x, middle, 6, fill=fill)


_FEWEST = 4
"""Roads of the drive, so that a guess fails."""
_TRIES = 10
_LEGEND = 54
"""Height of the legend."""
_KINDS = 3
_LAND = ((222, 234, 206), (240, 232, 210), (226, 232, 222))


class MapState(Record):
    """A road map, and a car on it."""

    roads: Network
    """A road's number is its kind: an index of `fuel`."""
    fuel: tuple[int, ...]
    """What a road of each kind takes."""
    car: str
    goal: str
    tank: int
    distance: int
    """Roads of the shortest drive from the start that the fuel allows."""


class Map(ChoiceWorld[MapState]):
    """Drive to a town with just enough fuel.

    The picture shows a road map. Circles with letters are towns; the red one is where your car is,
    the yellow one is your goal. The legend at the bottom gives the fuel that each kind of road
    takes; how long a road is drawn does not count. Your fuel is just enough for the best way. Reach
    the goal.

    An action is the letter of the next town.
    """

    difficulty = ("number of towns", 8, 11, 14, 18)
    options = tuple(LETTERS)
    refusal = "a move is one letter"

    def create(self, rng: random.Random, size: int) -> MapState:
        """Draw roads, and of a few drives the one over the most roads."""
        while True:
            drawn = network(rng, size, 2 * size)
            roads = replace(drawn, weights=tuple(rng.randrange(_KINDS) for _ in drawn.edges))
            fuel = tuple(rng.sample(range(1, 8), _KINDS))
            drives = [_drive(roads, fuel, *rng.sample(roads.names, 2)) for _ in range(_TRIES)]
            drive = max(drives, key=lambda drive: drive.distance)
            if drive.distance >= _FEWEST:
                return drive

    def draw(self, state: MapState, canvas: Canvas, look: Look) -> None:
        """Draw land, roads, towns and the legend."""
        canvas.box(0, 0, SIDE, SIDE - _LEGEND, fill=look.rng("land").choice(_LAND))
        squeeze = (SIDE - _LEGEND) / SIDE
        at = [(x, y * squeeze) for x, y in state.roads.places]
        for (one, two), kind in zip(state.roads.edges, state.roads.weights, strict=True):
            _draw_road(canvas, look, (at[one], at[two]), kind)
        fills = {state.car: COLORS["red"], state.goal: COLORS["yellow"]}
        for (x, y), name in zip(at, state.roads.names, strict=True):
            draw_node(canvas, look, (round(x), round(y)), name, fills.get(name, (255, 255, 255)))
        y = SIDE - _LEGEND / 2
        for kind, cost in enumerate(state.fuel):
            x = 16 + 100 * kind
            _draw_road(canvas, look, ((x, y), (x + 44, y)), kind)
            canvas.text(x + 54, y, str(cost), color=look.ink, size=18, at="lm")
        canvas.text(SIDE - 16, y, f"fuel left: {state.tank}", color=look.ink, size=18, at="rm")

    def tell(self, state: MapState) -> str:
        """List the roads with what they take."""
        roads, names = zip(state.roads.edges, state.roads.weights, strict=True), state.roads.names
        lines = [f"{names[one]}-{names[two]}: {state.fuel[kind]}" for (one, two), kind in roads]
        return "\n".join((*lines, f"car in {state.car}, goal {state.goal}, fuel left {state.tank}"))

    def play(self, state: MapState, choice: str) -> Outcome[MapState]:
        """Drive to a town next to the car's."""
        kind = state.roads.cost(state.car, choice)
        if kind is None:
            return Outcome(state=state, text="No road leads there.")
        tank = state.tank - state.fuel[kind]
        if tank < 0:
            return Outcome(state=state, text="That takes more fuel than is left.")
        return Outcome(state=replace(state, car=choice, tank=tank), text="Arrived.")

    def is_over(self, state: MapState) -> bool:
        """Return whether the goal is reached or the fuel is not enough."""
        return not self.plan(state)

    def progress(self, state: MapState) -> float:
        """Return how much of the drive is done; 0 if the fuel is not enough."""
        left = len(self.plan(state)) or state.distance * (state.car != state.goal)
        return 1 - min(left, state.distance) / state.distance

    def plan(self, state: MapState) -> list[str]:
        """Return the towns of the way that takes the least fuel, if it is enough."""
        cost, towns = _way(state.roads, state.fuel, state.car, state.goal)
        return towns if cost <= state.tank else []


def _drive(roads: Network, fuel: tuple[int, ...], car: str, goal: str) -> MapState:
    """Return a drive with just enough fuel."""
    tank, towns = _way(roads, fuel, car, goal)
    return MapState(roads=roads, fuel=fuel, car=car, goal=goal, tank=tank, distance=len(towns))


def _way(roads: Network, fuel: tuple[int, ...], car: str, goal: str) -> tuple[int, list[str]]:
    """Return the least fuel to the goal, and the towns on the way with the fewest roads."""
    many = len(roads.names)

    def steps(town: int) -> Iterable[tuple[int, int]]:
        return [(fuel[kind] * many + 1, other) for kind, other in roads.lines(town)]

    end = roads.names.index(goal)
    best = cheapest(roads.names.index(car), lambda town: town == end, steps)
    return best[0] // many, [roads.names[town] for town in best[1][1:]]


def _draw_road(canvas: Canvas, look: Look, ends: tuple[Point, Point], kind: int) -> None:
    """Draw a wide road, a narrow one or a dashed track."""
    if kind == 0:
        canvas.path(ends, color=look.ink, width=8)
        canvas.path(ends, color=COLORS["orange"], width=5)
    elif kind == 1:
        canvas.path(ends, color=look.ink, width=2.5)
    else:
        (left, top), (right, bottom) = ends
        count = max(3, round(dist(*ends) / 11)) | 1
        spots = [
            (left + (right - left) * part, top + (bottom - top) * part)
            for part in (at / count for at in range(count + 1))
        ]
        for dash in zip(spots[::2], spots[1::2], strict=True):
            canvas.path(dash, color=COLORS["blue"], width=3)
