"""A matrix of figures to complete, and stacks of blocks to rebuild."""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise, permutations, product

from envkit_visual.canvas import COLORS, SIDE, Canvas, Look
from envkit_visual.scenes.scene import COLOR_NAMES, outlined
from envkit_visual.search import shared
from envkit_visual.world import Asked, ChoiceWorld, Outcome, Question, Record

Cell = tuple[int, ...]
"""The value of each attribute, from 0."""

_SHAPES = ("circle", "square", "triangle", "diamond", "star")
_COLORS = ("red", "blue", "green", "yellow", "purple")
_SIDE = 76
_PITCH = 82
_LETTERS = "ABCDEFGH"
_VALUES = {"shape": 5, "colour": 5, "number": 5, "size": 3, "dot": 8}
"""Attributes and how many values each has."""
_ORDERED = ("number", "size", "dot")
_SPOTS = {
    **{"top": (0, -1), "top right": (1, -1), "right": (1, 0), "bottom right": (1, 1)},
    **{"bottom": (0, 1), "bottom left": (-1, 1), "left": (-1, 0), "top left": (-1, -1)},
}
"""Places of the dot, from the center of a cell."""
_PAIR, _TRIPLE = ((-13, 0), (13, 0)), ((-14, -14), (14, -14), (0, 14))
_SQUARE = ((-20, -20), (20, -20), (-20, 20), (20, 20))
_OFFSETS = (((0, 0),), _PAIR, _TRIPLE, _SQUARE, (*_SQUARE, (0, 0)))
_SIZES = {"small": 5.6, "medium": 7.6, "large": 10}


class MatrixState(Asked):
    """Eight cells row by row, what may complete them, and which of those does."""

    cells: tuple[Cell, ...]
    options: tuple[Cell, ...]
    right: int


class Matrix(Question[MatrixState]):
    """Choose what completes a matrix of figures.

    The picture shows a matrix of nine cells; the last one is missing. A cell has figures of one
    shape, colour and size, and a black dot at one of eight places around its edge. Shape, colour,
    size, number of figures and place of the dot each follow a rule of their own, the same in every
    row: the value is equal in the whole row; it changes by the same step from cell to cell; the
    numbers of the first two cells add up to the third; or each row has the same three values in any
    order. Choose the cell that completes the last row.

    An action is the letter of a cell on the right, from A to H.
    """

    difficulty = ("number of attributes that change within rows", 1, 2, 3, 5)
    chance = 1 / len(_LETTERS)
    refusal = "the answer is a letter from A to H"
    options = tuple(_LETTERS)
    question = "Which cell completes the matrix?"

    def create(self, rng: random.Random, size: int) -> MatrixState:
        """Draw a rule for each attribute, then options that differ in up to three of them.

        Each of three attributes has two values among the options, in every combination, so
        nothing in the options alone tells which is right.
        """
        changing = rng.sample(list(_VALUES), size)
        values = {name: _drawn(rng, name, is_changing=name in changing) for name in _VALUES}
        *cells, last = zip(*values.values(), strict=True)
        spare = [name for name in _VALUES if name not in changing]
        told = [*rng.sample(changing, min(3, size)), *rng.sample(spare, max(0, 3 - size))]
        choices = {name: [value] for name, value in zip(_VALUES, last, strict=True)}
        for name, (value,) in choices.items():
            if name in told:
                others = [other for other in range(_VALUES[name]) if other != value]
                choices[name] = [value, rng.choice(others)]
        options = list(product(*choices.values()))
        rng.shuffle(options)
        return MatrixState(cells=tuple(cells), options=tuple(options), right=options.index(last))

    def draw(self, state: MatrixState, canvas: Canvas, look: Look) -> None:
        """Draw the matrix on the left and the options on the right."""
        top = (SIDE - 3 * _PITCH) / 2
        for at, cell in enumerate(state.cells):
            _draw_cell(canvas, look, 8 + _PITCH * (at % 3), top + _PITCH * (at // 3), cell)
        x, y = 8 + _PITCH * 2, top + _PITCH * 2
        canvas.box(x, y, x + _SIDE, y + _SIDE, line=look.ink, width=2)
        canvas.text(x + _SIDE / 2, y + _SIDE / 2, "?", color=look.ink, size=40)
        for at, cell in enumerate(state.options):
            x, y = 268 + 90 * (at % 2), 24 + 106 * (at // 2)
            canvas.text(x + _SIDE / 2, y - 11, _LETTERS[at], color=look.ink, size=17)
            _draw_cell(canvas, look, x, y, cell)

    def tell(self, state: MatrixState) -> str:
        """List the cells and the options."""
        cells = (f"row {at // 3 + 1}, column {at % 3 + 1}" for at in range(len(state.cells)))
        pairs = [*zip(cells, state.cells, strict=True), *zip(_LETTERS, state.options, strict=True)]
        return "\n".join(f"{name}: {_told(cell)}" for name, cell in pairs)

    def answer(self, state: MatrixState) -> str:
        """Return the letter."""
        return _LETTERS[state.right]

    def read(self, text: str) -> str | None:
        """Return the letter of an option."""
        return text.upper() if len(text) == 1 and text.upper() in _LETTERS else None


def completions(rows: Sequence[Sequence[int]], name: str) -> set[int]:
    """Return every value of an attribute that some rule gives for the last cell.

    Args:
        rows: The values, row by row; the last row has two.
        name: The attribute.
    """
    *whole, (left, middle) = rows
    first = set(whole[0])
    turn = _VALUES[name] if name == "dot" else 100
    found = set[int]()
    if left == middle and all(len(set(row)) == 1 for row in whole):
        found.add(left)
    if first == set(whole[1]) == {left, middle, *first} and left != middle:
        found |= first - {left, middle}
    steps = {(b - a) % turn for row in whole for a, b in pairwise(row)}
    if name in _ORDERED and steps == {(middle - left) % turn} and left != middle:
        found.add((2 * middle - left) % turn)
    if name == "number" and all(row[0] + row[1] + 1 == row[2] for row in whole):
        found.add(left + middle + 1)
    return found & set(range(_VALUES[name]))


def _drawn(rng: random.Random, name: str, *, is_changing: bool) -> list[int]:
    """Draw nine values by a rule, such that no other rule gives another last value."""
    kinds = [_equal]
    if is_changing:
        kinds = [_turns, *[_steps] * (name in _ORDERED), *[_sums] * (name == "number")]
    count = _VALUES[name]
    while True:
        rows = rng.choice(kinds)(rng, count)
        if name == "dot":
            rows = [[value % count for value in row] for row in rows]
        across = completions((*rows[:2], rows[2][:2]), name)
        turned = [list(column) for column in zip(*rows, strict=True)]
        down = completions((*turned[:2], turned[2][:2]), name)
        flat = [value for row in rows for value in row]
        if set(flat) <= set(range(count)) and across | down == {flat[8]}:
            return flat


def _equal(rng: random.Random, count: int) -> list[list[int]]:
    return [[value] * 3 for value in rng.choices(range(count), k=3)]


def _turns(rng: random.Random, count: int) -> list[list[int]]:
    three = rng.sample(range(count), 3)
    return [rng.sample(three, 3) for _ in range(3)]


def _steps(rng: random.Random, count: int) -> list[list[int]]:
    step = rng.choice((-2, -1, 1, 2))
    return [[start, start + step, start + 2 * step] for start in rng.choices(range(count), k=3)]


def _sums(rng: random.Random, count: int) -> list[list[int]]:
    pairs = [(rng.randrange(count), rng.randrange(count)) for _ in range(3)]
    return [[left, middle, left + middle + 1] for left, middle in pairs]


def _told(cell: Cell) -> str:
    """Return a cell in words."""
    shape, color, number, size, dot = cell
    figures = f"{number + 1} {[*_SIZES][size]} {_COLORS[color]} {_SHAPES[shape]}"
    return f"{figures}, dot at the {[*_SPOTS][dot]}"


def _draw_cell(canvas: Canvas, look: Look, left: float, top: float, cell: Cell) -> None:
    """Draw a cell with its figures and its dot."""
    shape, color, number, size, dot = cell
    canvas.box(left, top, left + _SIDE, top + _SIDE, fill=(255, 255, 255), line=look.ink, width=2)
    x, y, radius = left + _SIDE / 2, top + _SIDE / 2, [*_SIZES.values()][size]
    for across, down in _OFFSETS[number]:
        outlined(canvas, look, _SHAPES[shape], x + across, y + down, radius, _COLORS[color])
    across, down = [*_SPOTS.values()][dot]
    canvas.disc(x + 32.5 * across, y + 32.5 * down, 3.5, fill=look.ink)


_PLACES = 4
_MOVES = tuple(permutations(range(_PLACES), 2))
_FLOOR = 408
_WIDTH = 50
_HEIGHT = 40

Stacks = tuple[tuple[str, ...], ...]
"""Colours of the blocks at each place, from below."""


class StackState(Record):
    """Stacks as they are and as they should be."""

    stacks: Stacks
    wanted: Stacks


class Stack(ChoiceWorld[StackState]):
    """Rebuild stacks of blocks as in a picture of the goal.

    The left half of the picture shows stacks of blocks on 4 numbered places; the right half shows
    how they should stand in the end. A move takes the top block of one place and puts it on top of
    another place.

    An action is the number of the place to take from and of the place to put on, such as 2 4.
    """

    difficulty = ("number of blocks", 4, 5, 6, 8)
    options = tuple(f"{source + 1} {target + 1}" for source, target in _MOVES)
    refusal = f"a move is two places from 1 to {_PLACES}"

    def create(self, rng: random.Random, size: int) -> StackState:
        """Draw two arrangements that are far enough apart."""
        blocks = rng.sample(COLOR_NAMES, size)
        while True:
            state = StackState(stacks=_dealt(rng, blocks), wanted=_dealt(rng, blocks))
            if len(self.plan(state)) >= size + 2:
                return state

    def draw(self, state: StackState, canvas: Canvas, look: Look) -> None:
        """Draw both arrangements."""
        half = SIDE / 2
        for left, title, stacks in ((0, "Now", state.stacks), (half, "Goal", state.wanted)):
            canvas.text(left + half / 2, 22, title, color=look.ink, size=22)
            for place, blocks in enumerate(stacks):
                x = left + 12 + _WIDTH * place
                line = ((x + 3, _FLOOR + 2), (x + _WIDTH - 3, _FLOOR + 2))
                canvas.text(x + _WIDTH / 2, _FLOOR + 20, str(place + 1), color=look.ink, size=20)
                canvas.path(line, color=look.ink, width=4)
                for height, color in enumerate(blocks, 1):
                    top = _FLOOR - _HEIGHT * height
                    corners = (x + 4, top, x + _WIDTH - 4, top + _HEIGHT)
                    canvas.box(*corners, fill=COLORS[color], line=look.ink, width=2)
        canvas.path(((half, 8), (half, SIDE - 8)), color=look.ink, width=2)

    def tell(self, state: StackState) -> str:
        """List the blocks of each place."""
        return "\n".join(
            f"{title}, place {place}, from below: {', '.join(blocks) or 'empty'}"
            for title, stacks in (("Now", state.stacks), ("Goal", state.wanted))
            for place, blocks in enumerate(stacks, 1)
        )

    def play(self, state: StackState, choice: str) -> Outcome[StackState]:
        """Move a block."""
        stacks = dict(_stack_steps(state.stacks)).get(choice)
        if stacks is None:
            return Outcome(state=state, text="That place is empty.")
        return Outcome(state=replace(state, stacks=stacks), text="Moved.")

    def progress(self, state: StackState) -> float:
        """Return the part of the blocks that stand where they should, on the right ones."""
        whole = sum(map(len, state.wanted))
        return sum(map(shared, state.stacks, state.wanted)) / whole

    def plan(self, state: StackState) -> list[str]:
        """Return the fewest moves, by A*."""
        order, wanted = count(), state.wanted
        best = {state.stacks: 0}
        waiting = [(_bound(state.stacks, wanted), next(order), state.stacks, list[str]())]
        while True:
            _, _, stacks, names = heapq.heappop(waiting)
            if stacks == wanted:
                return names
            moves = len(names) + 1
            for name, following in _stack_steps(stacks):
                if moves < best.get(following, moves + 1):
                    best[following] = moves
                    bound = moves + _bound(following, wanted)
                    heapq.heappush(waiting, (bound, -next(order), following, [*names, name]))

    def goal(self, state: StackState) -> StackState:
        """Return the stacks as they should be."""
        return replace(state, stacks=state.wanted)


def _dealt(rng: random.Random, blocks: Sequence[str]) -> Stacks:
    """Draw an arrangement; each is as likely as any other."""
    order = rng.sample(blocks, len(blocks))
    bars = sorted(rng.sample(range(len(blocks) + _PLACES - 1), _PLACES - 1))
    cuts = [0, *(bar - at for at, bar in enumerate(bars)), len(blocks)]
    return tuple(tuple(order[start:end]) for start, end in pairwise(cuts))


def _stack_steps(stacks: Stacks) -> Iterator[tuple[str, Stacks]]:
    for source, target in _MOVES:
        if stacks[source]:
            after = list(stacks)
            after[target] = (*stacks[target], stacks[source][-1])
            after[source] = stacks[source][:-1]
            yield f"{source + 1} {target + 1}", tuple(after)


def _bound(stacks: Stacks, wanted: Stacks) -> int:
    """Return moves that are needed at least.

    A block that must come back to its place needs two, and so does one that lies on a block that
    it must also lie on in the end: it has to make way first.
    """
    below = {block: {*goal[:at]} for goal in wanted for at, block in enumerate(goal)}
    moves = 0
    for blocks, goal in zip(stacks, wanted, strict=True):
        rest = blocks[shared(blocks, goal) :]
        for at, block in enumerate(rest):
            is_twice = block in goal or not below[block].isdisjoint(rest[:at])
            moves += 1 + is_twice
    return moves
