"""Networks of lettered circles joined by straight lines, drawn so that nothing is ambiguous."""

import heapq
import itertools
import math
import random
import re
from abc import ABC
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

from envkit_visual.canvas import COLORS, SIDE, Canvas, Color, Look, Point, centered
from envkit_visual.cells import cells_of
from envkit_visual.world import Asked, Q, Question, Record

LETTERS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ"
"""Names of circles, without the letters that look like digits."""

RADIUS: Final = 14
"""Of a circle with a letter."""

_MARGIN = 8
_CLEAR = 14
"""Distance from a number to lines that it does not belong to."""
_APART = 28
"""Distance between two numbers."""
_SHORTEST = 70
_BREAKS = re.compile(r"[\s,;>\-→]+")

Edge = tuple[int, int]
Place = tuple[int, int]
T = TypeVar("T", bound=Hashable)


class Network(Record):
    """Circles and the lines between them."""

    names: str
    """A letter for each circle."""
    places: tuple[Place, ...]
    edges: tuple[Edge, ...]
    weights: tuple[int, ...]
    """The number on each line."""

    def cost(self, first: str, second: str) -> int | None:
        """Return the number on the line between two letters; None without a line."""
        ends = {self.names.find(first), self.names.find(second)}
        lines = zip(self.edges, self.weights, strict=True)
        return next((weight for edge, weight in lines if ends == set(edge)), None)

    def lines(self, at: int) -> Iterable[tuple[int, int]]:
        """Yield the number of each line from a circle, and the circle at its other end."""
        for edge, weight in zip(self.edges, self.weights, strict=True):
            if at in edge:
                yield weight, sum(edge) - at

    def label(self, edge: Edge) -> str:
        """Return a line's two letters."""
        return self.names[edge[0]] + self.names[edge[1]]


class LettersQuestion(Question[Q], ABC):
    """A question that letters answer."""

    options = tuple(map(", ".join, itertools.pairwise(LETTERS)))
    refusal = "the answer is letters, such as A, B"

    def read(self, text: str) -> object:
        """Return the letters."""
        return letters_in(text)


class NetworkState(Asked):
    """A network, and two letters that are asked for."""

    network: Network
    start: str = ""
    end: str = ""


class NetworkQuestion(LettersQuestion[NetworkState], ABC):
    """A question about a network."""

    def draw(self, state: NetworkState, canvas: Canvas, look: Look) -> None:
        """Draw the network, with the two letters marked."""
        draw_lines(canvas, look, state.network)
        for place, name in zip(state.network.places, state.network.names, strict=True):
            fill = COLORS["yellow"] if name in state.start + state.end else (255, 255, 255)
            draw_node(canvas, look, place, name, fill)

    def tell(self, state: NetworkState) -> str:
        """List the lines."""
        return tell_lines(state.network)


def network(rng: random.Random, nodes: int, lines: int, *, heaviest: int = 20) -> Network:
    """Draw a connected network whose lines do not cross, with letters in no order.

    Args:
        rng: The only source of chance.
        nodes: How many circles.
        lines: Lines at most.
        heaviest: Greatest number on a line.
    """
    while True:
        places = _scattered(rng, nodes)
        edges = _joined(rng, places, lines)
        if len(spanning(nodes, edges)) == nodes - 1:
            names = "".join(rng.sample(LETTERS, nodes))
            weights = tuple(rng.randint(1, heaviest) for _ in edges)
            return Network(names=names, places=places, edges=edges, weights=weights)


def spanning(nodes: int, edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges that join circles which those before them do not join."""
    group = list(range(nodes))
    chosen: list[Edge] = []
    for edge in edges:
        old, new = group[edge[0]], group[edge[1]]
        if old != new:
            chosen.append(edge)
            group = [new if one == old else one for one in group]
    return chosen


def cheapest(
    start: T, is_goal: Callable[[T], bool], steps: Callable[[T], Iterable[tuple[int, T]]]
) -> tuple[int, list[T]]:
    """Return the cost of the cheapest way to a goal that can be reached, and its nodes.

    Args:
        start: First node.
        is_goal: Whether a node is a goal.
        steps: The cost and node of each step from a node. Their order breaks ties.
    """
    order = itertools.count()
    waiting = [(0, next(order), [start])]
    seen = set[T]()
    while True:
        cost, _, way = heapq.heappop(waiting)
        if is_goal(way[-1]):
            return cost, way
        if way[-1] not in seen:
            seen.add(way[-1])
            for extra, following in steps(way[-1]):
                heapq.heappush(waiting, (cost + extra, next(order), [*way, following]))


def letters_in(text: str) -> list[str] | None:
    """Return single letters that spaces, commas, hyphens or arrows part, as capitals."""
    parts = [part for part in _BREAKS.split(text.upper()) if part]
    return parts if parts and all(part in LETTERS and len(part) == 1 for part in parts) else None


def draw_lines(canvas: Canvas, look: Look, drawn: Network, *, numbers: bool = True) -> None:
    """Draw the lines, each with its number in the middle."""
    for first, second in drawn.edges:
        canvas.path((drawn.places[first], drawn.places[second]), color=COLORS["grey"], width=3)
    if not numbers:
        return
    for (first, second), weight in zip(drawn.edges, drawn.weights, strict=True):
        x, y = _middle(drawn.places[first], drawn.places[second])
        half = canvas.text_width(str(weight), 16) / 2 + 2
        canvas.box(*centered(x, y, half, 9), fill=look.paper)
        canvas.text(x, y, str(weight), color=look.ink, size=16)


def draw_node(
    canvas: Canvas, look: Look, place: Point, name: str, fill: Color, *, is_square: bool = False
) -> None:
    """Draw a circle or a square with its letter, in black or white."""
    if is_square:
        canvas.box(*centered(*place, RADIUS - 1, RADIUS - 1), fill=fill, line=look.ink, width=2)
    else:
        canvas.disc(*place, RADIUS, fill=fill, line=look.ink, width=2)
    light = sum(part * value for part, value in zip((0.3, 0.59, 0.11), fill, strict=True))
    canvas.text(*place, name, color=(0, 0, 0) if light > 140 else (255, 255, 255), size=17)


def tell_lines(told: Network, *, numbers: bool = True) -> str:
    """List the lines by their letters."""
    pairs = [f"{told.names[first]}-{told.names[second]}" for first, second in told.edges]
    rows = zip(pairs, map(str, told.weights), strict=True)
    return "\n".join(map(": ".join, rows) if numbers else pairs)


def _scattered(rng: random.Random, nodes: int) -> tuple[Place, ...]:
    """Return places that are not close to each other: one at most in each cell of a grid."""
    columns = math.ceil(math.sqrt(nodes))
    rows = math.ceil(nodes / columns)
    edge = _MARGIN + RADIUS
    width, height = (SIDE - 2 * edge) / columns, (SIDE - 2 * edge) / rows
    places: list[Place] = []
    for row, column in rng.sample(cells_of(rows, columns), nodes):
        x, y = column + rng.uniform(0.16, 0.84), row + rng.uniform(0.16, 0.84)
        places.append((round(edge + width * x), round(edge + height * y)))
    return tuple(places)


def _joined(rng: random.Random, places: Sequence[Place], lines: int) -> tuple[Edge, ...]:
    """Return lines that cross nothing, short ones first."""
    pairs = [(one, two) for two in range(len(places)) for one in range(two)]
    pairs.sort(key=lambda pair: math.dist(*(places[at] for at in pair)) * rng.uniform(1, 1.5))
    edges: list[Edge] = []
    for pair in pairs:
        if len(edges) < lines and _fits(places, edges, pair):
            edges.append(pair)
    rng.shuffle(edges)
    return tuple(edges)


def _fits(places: Sequence[Place], edges: list[Edge], pair: Edge) -> bool:
    start, end = places[pair[0]], places[pair[1]]
    others = [place for at, place in enumerate(places) if at not in pair]
    return (
        math.dist(start, end) >= _SHORTEST
        and all(_gap(place, start, end) >= RADIUS + 7 for place in others)
        and all(_are_apart(start, end, places[one], places[two]) for one, two in edges)
    )


def _are_apart(a: Place, b: Place, c: Place, d: Place) -> bool:
    """Return whether two lines do not cross and leave room for their numbers."""
    middle, other = _middle(a, b), _middle(c, d)
    if min(_gap(middle, c, d), _gap(other, a, b)) < _CLEAR or math.dist(middle, other) < _APART:
        return False
    return not {a, b}.isdisjoint((c, d)) or not _cross(a, b, c, d)


def _middle(start: Point, end: Point) -> Point:
    return (start[0] + end[0]) / 2, (start[1] + end[1]) / 2


def _gap(point: Point, start: Point, end: Point) -> float:
    """Return the distance from a point to a line between two points."""
    across, down = end[0] - start[0], end[1] - start[1]
    part = ((point[0] - start[0]) * across + (point[1] - start[1]) * down) / (across**2 + down**2)
    part = min(1.0, max(0.0, part))
    return math.dist(point, (start[0] + part * across, start[1] + part * down))


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Return whether two lines between points cross."""
    return _side(a, b, c) != _side(a, b, d) and _side(c, d, a) != _side(c, d, b)


def _side(a: Point, b: Point, c: Point) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) > (b[1] - a[1]) * (c[0] - a[0])
