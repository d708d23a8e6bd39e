"""Games of pieces: discs on pegs, cars in a park, and connect four."""

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from envkit_visual.canvas import COLORS, Canvas, Look, centered
from envkit_visual.cells import DARK, LIGHT, MOVES, SHADE, Cell, CellPen, cells_of, table
from envkit_visual.search import Steps, descent, distances, shortest
from envkit_visual.world import ChoiceWorld, Outcome, Record, plain

Places = tuple[int, ...]
"""The peg of each disc, from the smallest disc."""

_PEGS = "ABCD"
_DISCS = 5


class HanoiState(Record):
    """Where the discs are, and where they belong."""

    places: Places
    goal: Places
    distance: int
    """Moves of the shortest solution from the start."""


class Hanoi(ChoiceWorld[HanoiState]):
    """Bring the discs on four pegs into the order of the goal.

    The picture shows discs on four pegs, and a small drawing of them named Goal. A move takes the
    top disc of a peg and puts it on another peg. A disc never lies on a smaller one. Bring all
    discs to their pegs in the goal.

    An action is the peg to take from and the peg to put on, such as A C.
    """

    difficulty = ("moves of the shortest solution", 4, 6, 8, 10)
    options = tuple(map(" ".join, permutations(_PEGS, 2)))
    refusal = "a move is two different pegs, such as A C"

    def create(self, rng: random.Random, size: int) -> HanoiState:
        """Choose a goal, and a start at the distance."""
        while True:
            goal = tuple(rng.randrange(len(_PEGS)) for _ in range(_DISCS))
            starts = [places for places, moves in _distances(goal).items() if moves == size]
            if starts:
                return HanoiState(places=rng.choice(starts), goal=goal, distance=size)

    def draw(self, state: HanoiState, canvas: Canvas, look: Look) -> None:
        """Draw the discs, and the goal above them."""
        _draw_pegs(canvas, state.places, look, base=396, scale=1)
        _draw_pegs(canvas, state.goal, look, base=142, scale=0.5)
        canvas.text(64, 96, "Goal", color=look.ink, size=20)
        for peg, name in enumerate(_PEGS):
            canvas.text(65 + 106 * peg, 426, name, color=look.ink, size=24)

    def tell(self, state: HanoiState) -> str:
        """List each peg's discs by size."""
        boards = "\nGoal:\n".join(map(_written, (state.places, state.goal)))
        return f"Discs from the top, 1 is the smallest\n{boards}"

    def play(self, state: HanoiState, choice: str) -> Outcome[HanoiState]:
        """Move a disc, if it may lie there."""
        if _PEGS.index(choice[0]) not in state.places:
            return Outcome(state=state, text="There is no disc on that peg.")
        moved = dict(_moves(state.places)).get(choice)
        if moved is None:
            return Outcome(state=state, text="A disc cannot lie on a smaller one.")
        return Outcome(state=replace(state, places=moved), text="Moved.")

    def progress(self, state: HanoiState) -> float:
        """Return how much of the way is done."""
        return max(0.0, 1 - _distances(state.goal)[state.places] / state.distance)

    def plan(self, state: HanoiState) -> list[str]:
        """Return the shortest solution."""
        return descent(state.places, _distances(state.goal), _moves)

    def goal(self, state: HanoiState) -> HanoiState:
        """Return the discs in order."""
        return replace(state, places=state.goal)


def _on(places: Places, peg: int) -> list[int]:
    """Return the discs on a peg, from the top."""
    return [disc for disc, place in enumerate(places) if place == peg]


def _written(places: Places) -> str:
    discs = (" ".join(str(disc + 1) for disc in _on(places, peg)) for peg in range(len(_PEGS)))
    return "\n".join(f"{name}: {line}" for name, line in zip(_PEGS, discs, strict=True))


def _moves(places: Places) -> Iterator[tuple[str, Places]]:
    tops = {peg: disc for disc, peg in reversed(tuple(enumerate(places)))}
    for source, disc in sorted(tops.items()):
        for target in range(len(_PEGS)):
            if disc < tops.get(target, len(places)):  # a disc never moves to its own peg
                moved = (*places[:disc], target, *places[disc + 1 :])
                yield f"{_PEGS[source]} {_PEGS[target]}", moved


@functools.lru_cache(maxsize=64)
def _distances(goal: Places) -> Mapping[Places, int]:
    return distances([goal], _moves)


def _draw_pegs(canvas: Canvas, places: Places, look: Look, *, base: float, scale: float) -> None:
    canvas.box(224 - 212 * scale, base, 224 + 212 * scale, base + 12 * scale, fill=DARK)
    for peg in range(len(_PEGS)):
        x = 224 + (106 * peg - 159) * scale
        canvas.box(x - 4 * scale, base - 190 * scale, x + 4 * scale, base, fill=DARK)
        for level, disc in enumerate(reversed(_on(places, peg)), 1):
            wide = (8 + 43 * (disc + 1) / len(places)) * scale
            top = base - 34 * level * scale
            edges = (x - wide, top, x + wide, top + 33 * scale)
            canvas.box(*edges, fill=COLORS[look.accents[disc]], round_by=9 * scale)


_SIDE = 6
_WAYS = {True: ("left", "right"), False: ("up", "down")}
_MOVES = frozenset(f"{color} {way}" for color in COLORS for way in MOVES)
_GROUND = (236, 236, 232)
_MOST = 1000
"""Positions of a task, so that every search is short."""


class Car(Record):
    """A car that stands in a row or in a column."""

    color: str
    length: int
    is_across: bool
    lane: int
    """Its row if it is across, otherwise its column."""

    def cells(self, place: int) -> tuple[Cell, ...]:
        """Return the cells that it covers from a place in its lane."""
        along = range(place, place + self.length)
        return tuple((self.lane, at) if self.is_across else (at, self.lane) for at in along)

    def bits(self, place: int) -> int:
        """Return the same cells as bits."""
        return sum(1 << row * _SIDE + column for row, column in self.cells(place))


class RushState(Record):
    """The cars; the red one is the first."""

    cars: tuple[Car, ...]
    places: Places
    exit: str
    """The side to which the red car leaves."""


class Rush(ChoiceWorld[RushState]):
    """Clear the way for the red car.

    The picture shows a car park from above. A car moves forwards or backwards, along its length,
    into empty cells only, one cell per move. Bring the red car to the exit, which the arrow shows:
    its front must touch that edge.

    An action is the colour of a car and up, down, left or right, such as blue up.
    """

    difficulty = ("moves of the shortest solution", 4, 6, 8, 11)
    refusal = "a move is a colour and a direction, such as blue up"

    def create(self, rng: random.Random, size: int) -> RushState:
        """Park cars at random, and move them to where the solution has the length."""
        while True:
            parked = _parked(rng, rng.choice((6, 7)))
            if parked is None:
                continue
            moves = _mover(parked.cars)
            found = distances([parked.places], moves, most=_MOST)
            if len(found) > _MOST:
                continue
            ends = (places for places in found if _gap(parked, places) == 0)
            far = distances(ends, moves).items()
            # Red alone cannot solve it: its gap is less than the moves.
            starts = [at for at, count in far if count == size and _gap(parked, at) <= size // 2]
            if starts:
                return replace(parked, places=rng.choice(starts))

    def draw(self, state: RushState, canvas: Canvas, look: Look) -> None:
        """Draw the park, its exit and the cars."""
        pen = CellPen(canvas, _SIDE, _SIDE, room=(34, 34, 380, 380))
        canvas.box(pen.left - 6, pen.top - 6, pen.right + 6, pen.bottom + 6, fill=look.ink)
        canvas.box(pen.left, pen.top, pen.right, pen.bottom, fill=_GROUND)
        pen.grid(SHADE, width=1.5)
        down, across = MOVES[state.exit]
        wide = pen.cell / 2 - 2
        x, y = pen.center((state.cars[0].lane, state.cars[0].lane))
        x, y = (224 + across * 193, y) if across else (x, 224 + down * 193)
        half, high = (4, wide) if across else (wide, 4)
        canvas.box(*centered(x, y, half, high), fill=_GROUND)
        tip = (x + 28 * across, y + 28 * down)
        canvas.arrow((x, y), tip, color=COLORS["red"], width=5, head=16)
        for car, place in zip(state.cars, state.places, strict=True):
            first, *_, last = car.cells(place)
            (left, top), (right, bottom) = pen.center(first), pen.center(last)
            edges = (left - wide + 2, top - wide + 2, right + wide - 2, bottom + wide - 2)
            canvas.box(*edges, fill=COLORS[car.color], line=look.ink, width=2, round_by=12)

    def tell(self, state: RushState) -> str:
        """Write the park with the colours of the cars."""
        cars = zip(state.cars, state.places, strict=True)
        colors = {cell: car.color for car, place in cars for cell in car.cells(place)}
        words = [colors.get(cell, ".") for cell in cells_of(_SIDE, _SIDE)]
        return f"Exit: the red car leaves {state.exit}; . empty\n{table(words, _SIDE)}"

    def act(self, state: RushState, action: str) -> Outcome[RushState]:
        """Move a car; one that is not there is an action too."""
        move = plain(action)
        return self.play(state, move) if move in _MOVES else super().act(state, action)

    def play(self, state: RushState, choice: str) -> Outcome[RushState]:
        """Move a car, if its way is free."""
        moved = dict(_mover(state.cars)(state.places)).get(choice)
        if moved is None:
            return Outcome(state=state, text="That car cannot move there.")
        return Outcome(state=replace(state, places=moved), text="Moved.")

    def progress(self, state: RushState) -> float:
        """Return the part of its lane that the red car has behind it."""
        return 1 - _gap(state, state.places) / (_SIDE - state.cars[0].length)

    def plan(self, state: RushState) -> list[str]:
        """Return the fewest moves."""
        moves = _mover(state.cars)
        return shortest(state.places, lambda places: _gap(state, places) == 0, moves) or []

    def choices(self, state: RushState) -> Sequence[str]:
        """Return every direction for every car."""
        return tuple(f"{car.color} {way}" for car in state.cars for way in MOVES)


def _gap(state: RushState, places: Places) -> int:
    """Return how many cells are between the red car and the exit."""
    is_first = state.exit in ("up", "left")
    return places[0] if is_first else _SIDE - state.cars[0].length - places[0]


def _mover(cars: Sequence[Car]) -> Steps[Places]:
    """Return what yields the moves from a position of these cars."""
    bits = [[car.bits(place) for place in range(_SIDE - car.length + 1)] for car in cars]
    names = [[f"{car.color} {way}" for way in _WAYS[car.is_across]] for car in cars]

    def moves(places: Places) -> Iterator[tuple[str, Places]]:
        taken = sum(mine[place] for mine, place in zip(bits, places, strict=True))
        for index, place in enumerate(places):
            mine, others = bits[index], taken ^ bits[index][place]
            for name, to in zip(names[index], (place - 1, place + 1), strict=True):
                if 0 <= to < len(mine) and not mine[to] & others:
                    yield name, (*places[:index], to, *places[index + 1 :])

    return moves


def _parked(rng: random.Random, size: int) -> RushState | None:
    """Park cars at random, most of them long and across the red one's way; None without room."""
    side = rng.choice(sorted(MOVES))
    is_across = side in ("left", "right")
    cars: list[Car] = []
    places: list[int] = []
    taken: set[Cell] = set()
    for color in ("red", *rng.sample(sorted(set(COLORS) - {"red"}), size - 1)):
        for _ in range(40):
            length = 3 if cars and rng.random() < 0.8 else 2
            is_turned = bool(cars) and rng.random() < 0.6
            lane, place = rng.randrange(_SIDE), rng.randrange(_SIDE - length + 1)
            car = Car(color=color, length=length, is_across=is_across != is_turned, lane=lane)
            is_in_lane = cars and (car.is_across, lane) == (is_across, cars[0].lane)
            if not is_in_lane and taken.isdisjoint(car.cells(place)):
                break
        else:
            return None
        cars.append(car)
        places.append(place)
        taken.update(car.cells(place))
    return RushState(cars=tuple(cars), places=tuple(places), exit=side)


_ROWS = 6
_COLUMNS = 7
_NUMBERS = "1234567"
_HIGH = _ROWS + 1
"""Bits of a column: an empty one on top keeps lines from running into the next column."""
_BOTTOM = sum(1 << column * _HIGH for column in range(_COLUMNS))
_BOARD = _BOTTOM * (2**_ROWS - 1)


class FourState(Record):
    """A position with red to move."""

    red: int
    """Red discs as bits, seven per column from the bottom left."""
    yellow: int
    names: str
    """The number of each column. They are mixed, so no move is likelier than others."""
    left: int
    """Moves in which red is to win."""
    first: int
    """The same at the start."""


class Four(ChoiceWorld[FourState]):
    """Force four in a row against a perfect defence.

    The picture shows a game of connect four. You are red and it is your move. A disc falls to the
    lowest free place of its column. After each of your moves yellow replies as well as it can. Get
    four red discs in a row, across, upright or diagonal, within the given number of moves. The task
    ends when that can no longer be forced.

    An action is the number above the column to play, 1 to 7; the numbers are in mixed order.
    """

    difficulty = ("moves until red wins", 2, 3, 4, 5)
    options = tuple(_NUMBERS)
    refusal = "a column is a number from 1 to 7"
    chance = 0.03

    def create(self, rng: random.Random, size: int) -> FourState:
        """Play at random until only one move forces a win in the given number of moves."""
        names = "".join(rng.sample(_NUMBERS, _COLUMNS))
        while True:
            red, yellow = _random_game(rng, 2 * rng.randint(5, 13))
            if _wins(red, yellow, size - 1) or len([*_winning_moves(red, yellow, size)]) != 1:
                continue
            state = FourState(red=red, yellow=yellow, names=names, left=size, first=size)
            plan = self.plan(state)
            if plan[0] != plan[1]:
                return state

    def draw(self, state: FourState, canvas: Canvas, look: Look) -> None:
        """Draw the discs."""
        pen = CellPen(canvas, _ROWS, _COLUMNS, room=(17, 30, 414, 414))
        canvas.box(pen.left, pen.top, pen.right, pen.bottom, fill=(48, 66, 120), round_by=10)
        fills = {".": LIGHT, "R": COLORS["red"], "Y": COLORS["yellow"]}
        for cell, sign in zip(cells_of(_ROWS, _COLUMNS), "".join(_rows(state)), strict=True):
            canvas.disc(*pen.center(cell), pen.cell * 0.4, fill=fills[sign])
        for column, name in enumerate(state.names):
            x, _ = pen.center((0, column))
            canvas.text(x, pen.top - 18, name, color=look.ink, size=20)
        if state.left:
            canvas.text(224, pen.bottom + 17, self.ask(state), color=look.ink, size=18)

    def tell(self, state: FourState) -> str:
        """Write the board."""
        head = f"R red, Y yellow, . empty. {self.ask(state)}"
        return "\n".join((head, *map(" ".join, (state.names, *_rows(state)))))

    def ask(self, state: FourState) -> str:
        """Say in how many moves red is to win."""
        return f"Win within {state.left} moves." if state.left > 1 else "Win with this move."

    def play(self, state: FourState, choice: str) -> Outcome[FourState]:
        """Drop a disc, and let yellow reply."""
        column = (2**_ROWS - 1) << state.names.index(choice) * _HIGH
        move = _free(state.red | state.yellow) & column
        if not move:
            return Outcome(state=state, text="That column is full.")
        after = _played(state, move)
        if self.is_solved(after):
            return Outcome(state=after, text="Four in a row.")
        if self.is_over(after):
            return Outcome(state=after, text="Played. The win is out of reach.")
        return Outcome(state=after, text=f"Played. Yellow replied. {self.ask(after)}")

    def is_solved(self, state: FourState) -> bool:
        """Return whether red has four in a row."""
        return _has_four(state.red)

    def is_over(self, state: FourState) -> bool:
        """Return whether red has won or can no longer force it in time."""
        won = self.is_solved(state) or _has_four(state.yellow)
        return won or not _wins(state.red, state.yellow, state.left)

    def progress(self, state: FourState) -> float:
        """Return the part of the moves that is done; 0 when the win is out of reach."""
        if self.is_solved(state):
            return 1.0
        return 0.0 if self.is_over(state) else (state.first - state.left) / state.first

    def plan(self, state: FourState) -> list[str]:
        """Return the moves of the quickest win against the longest defence."""
        moves: list[str] = []
        while not self.is_over(state):
            length = _length(state.red, state.yellow, state.left)
            move = next(_winning_moves(state.red, state.yellow, length))
            moves.append(state.names[(move.bit_length() - 1) // _HIGH])
            state = _played(state, move)
        return moves


def _rows(state: FourState) -> list[str]:
    """Return the rows from the top: R is red, Y is yellow."""
    red, yellow = state.red, state.yellow
    signs = [".RY"[(red >> at & 1) + 2 * (yellow >> at & 1)] for at in range(_COLUMNS * _HIGH)]
    return ["".join(signs[row::_HIGH]) for row in reversed(range(_ROWS))]


def _free(taken: int) -> int:
    """Return the lowest free place of each column."""
    return (taken + _BOTTOM) & _BOARD


def _each(bits: int) -> Iterator[int]:
    while bits:
        yield bits & -bits
        bits &= bits - 1


def _has_four(own: int) -> bool:
    pairs = ((own & own >> step, step) for step in (1, _HIGH - 1, _HIGH, _HIGH + 1))
    return any(pair & pair >> 2 * step for pair, step in pairs)


def _fours(own: int, taken: int) -> int:
    """Return the free places that complete four in a row."""
    found = own << 1 & own << 2 & own << 3
    for step in (_HIGH - 1, _HIGH, _HIGH + 1):
        above, below = own << step & own << 2 * step, own >> step & own >> 2 * step
        found |= above & (own << 3 * step | own >> step) | below & (own >> 3 * step | own << step)
    return found & _BOARD & ~taken


@functools.lru_cache(maxsize=200_000)
def _wins(own: int, other: int, moves: int) -> bool:
    """Return whether who is to move can force a win within some moves of its own."""
    return moves > 0 and any(_winning_moves(own, other, moves))


def _winning_moves(own: int, other: int, moves: int) -> Iterator[int]:
    """Yield the moves that force a win within some moves."""
    taken = own | other
    free = _free(taken)
    now = _fours(own, taken) & free
    yield from _each(now)
    if moves == 1:
        return
    danger = _fours(other, taken) & free
    if danger & danger - 1:
        return
    for move in _each((danger or free) & ~now):
        if _holds(own | move, other, moves - 1):
            yield move


def _holds(own: int, other: int, moves: int) -> bool:
    """Return whether a win within some moves is forced when the other side is to move."""
    taken = own | other
    free = _free(taken)
    if not free or _fours(other, taken) & free:
        return False
    threats = _fours(own, taken) & free
    if threats & threats - 1:
        return True
    return all(_wins(own, other | reply, moves) for reply in _each(threats or free))


def _length(own: int, other: int, most: int) -> int:
    """Return the moves of the quickest forced win; one more than the most if there is none."""
    return next((moves for moves in range(1, most + 1) if _wins(own, other, moves)), most + 1)


def _played(state: FourState, move: int) -> FourState:
    """Play a move of red, and yellow's reply: a win, or what delays red's win the longest.

    Among replies that delay it equally, yellow leaves red the fewest places to win at once.
    """
    red, yellow, left = state.red | move, state.yellow, state.left - 1

    def delay(reply: int) -> tuple[int, int, int]:
        taken = red | yellow | reply
        threats = _fours(red, taken) & _free(taken)
        return _length(red, yellow | reply, left), -threats.bit_count(), -reply

    free = _free(red | yellow)
    if free and not _has_four(red):
        now = _fours(yellow, red | yellow) & free
        yellow |= next(_each(now), 0) or max(_each(free), key=delay)
    return replace(state, red=red, yellow=yellow, left=left)


def _random_game(rng: random.Random, discs: int) -> tuple[int, int]:
    """Play at random, taking and preventing wins, until red is to move; no side has won."""
    while True:
        own, other = 0, 0
        for _ in range(discs):
            taken = own | other
            free = _free(taken)
            danger = _fours(other, taken) & free
            if not free or _fours(own, taken) & free:
                break
            own, other = other, own | rng.choice(list(_each(danger or free)))
        else:
            return own, other
