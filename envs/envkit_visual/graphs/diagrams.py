"""Diagrams to read: flowcharts, logic circuits and family trees."""

import functools
import operator
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import pairwise

from envkit_visual.answers import NumberQuestion
from envkit_visual.canvas import COLORS, SIDE, Canvas, Look, Point, centered
from envkit_visual.graphs.network import LETTERS, LettersQuestion, letters_in
from envkit_visual.world import Asked, Question, Record

_OPERATORS = {"+": operator.add, "-": operator.sub, "<": operator.lt, ">": operator.gt}
_ROWS = 9
"""Shapes in a column of the picture."""
_PITCH = 46
_WIDE = 222
"""Width of a column."""
_MAIN, _ASIDE = 60, 162
"""Middle of the shapes on the way down, and of those beside it."""
_FILLS = ((214, 229, 250), (253, 226, 190), (214, 240, 214))

Values = dict[str, int]


Kind = StrEnum("Kind", ["DO", "IF", "WHILE"])
"""A kind of step."""


class Step(Record):
    """A step of a flowchart."""

    kind: Kind
    do: str
    """Such as "x = x + 7"; what is done if, or while, the test holds."""
    test: str = ""
    """Such as "x < 20"."""


class FlowState(Asked):
    """A flowchart, and the values it starts with."""

    x: int
    y: int
    steps: tuple[Step, ...]


class Flow(NumberQuestion[FlowState]):
    """Run a flowchart and read its result.

    The picture shows a flowchart. Begin at the start, which sets x and y, and follow the arrows. A
    box sets a variable. A diamond asks a question: go on along yes or no. Find the value of x at
    the end.

    An action is a whole number.
    """

    difficulty = ("number of steps", 3, 6, 10, 16)
    options = tuple(str(number) for number in range(50, 600, 7))
    question = "What is the value of x at the end?"

    def create(self, rng: random.Random, size: int) -> FlowState:
        """Add steps that keep the numbers small."""
        x, y = rng.randint(100, 500), rng.randint(100, 500)
        values: Values = {"x": x, "y": y}
        steps: list[Step] = []
        for _ in range(size):
            below_if = bool(steps) and steps[-1].kind is Kind.IF  # a loop's arrow would meet its
            step = _step(rng, rng.choice([*Kind][: 3 - below_if]), values)
            _run(step, values)
            steps.append(step)
        return FlowState(x=x, y=y, steps=tuple(steps))

    def draw(self, state: FlowState, canvas: Canvas, look: Look) -> None:
        """Draw the steps from top to bottom, in two columns if they are many."""
        pen = _Pen(canvas, look, len(state.steps))
        pen.draw_box(*pen.reach(0), 58, f"x = {state.x}, y = {state.y}", is_end=True)
        for at, step in enumerate(state.steps, start=1):
            if step.kind is Kind.DO:
                pen.draw_box(*pen.reach(at), 48, step.do)
            else:
                pen.draw_test(*pen.reach(at, 17), step)
        pen.draw_box(*pen.reach(len(state.steps) + 1), 30, "end", is_end=True)

    def tell(self, state: FlowState) -> str:
        """Write the steps as lines."""
        tests = (f"{step.kind} {step.test}: " if step.test else "" for step in state.steps)
        lines = [test + step.do for test, step in zip(tests, state.steps, strict=True)]
        return "\n".join((f"x = {state.x}, y = {state.y}", *lines))

    def value(self, state: FlowState) -> int:
        """Run the flowchart."""
        values: Values = {"x": state.x, "y": state.y}
        for step in state.steps:
            _run(step, values)
        return values["x"]


def _step(rng: random.Random, kind: Kind, values: Values) -> Step:
    """Return a step that suits the values before it: loops end, and branches go either way."""
    name = rng.choice(("x", "y"))
    value, change = values[name], rng.randint(21, 79)
    if kind is Kind.WHILE:
        sign, compare = rng.choice((("+", "<"), ("-", ">"))[value > 600 : 1 + (value > 400)])
        limit = _OPERATORS[sign](value, rng.randint(change + 1, 4 * change))
        do, test = f"{name} = {name} {sign} {change}", f"{name} {compare} {limit}"
        return Step(kind=kind, do=do, test=test)
    test = f"{name} {rng.choice('<>')} {value + rng.randint(-40, 40)}" if kind is Kind.IF else ""
    while True:
        target, sign = rng.choice(("x", "y")), rng.choice("+-")
        other = rng.choice(("x", "y", str(rng.randint(11, 99)), str(rng.randint(11, 99))))
        step = Step(kind=kind, do=f"{target} = {target} {sign} {other}", test=test)
        if other != target and 0 < _value(step.do.partition(" = ")[2], values) < 1000:
            return step


def _run(step: Step, values: Values) -> None:
    """Do a step."""
    target, _, formula = step.do.partition(" = ")
    if step.kind is Kind.DO or _value(step.test, values):
        values[target] = _value(formula, values)
        if step.kind is Kind.WHILE:
            _run(step, values)


def _value(formula: str, values: Values) -> int:
    """Return the value of two terms with an operator between them."""
    one, sign, two = formula.split()
    first, second = (values[term] if term in values else int(term) for term in (one, two))
    return _OPERATORS[sign](first, second)


class _Pen:
    """Draws the start, the steps and the end in rows, each with the arrow that leads to it."""

    def __init__(self, canvas: Canvas, look: Look, steps: int) -> None:
        self._canvas, self._ink = canvas, look.ink
        self._fills = look.rng("fills").sample(_FILLS, len(_FILLS))
        self._left = 0 if steps + 2 > _ROWS else (SIDE - _WIDE) / 2

    def draw_box(self, x: float, y: float, half: float, text: str, *, is_end: bool = False) -> None:
        """Draw a box: the start, the end, or what sets a variable."""
        fill, size, round_by = (self._fills[2], 12, 12) if is_end else (self._fills[0], 13, 0)
        self._canvas.box(*centered(x, y, half, 13), fill=fill, line=self._ink, round_by=round_by)
        self._canvas.text(x, y, text, color=self._ink, size=size)

    def draw_test(self, x: float, y: float, step: Step) -> None:
        """Draw a branch or a loop: a diamond, and beside it what is done."""
        side, back = x + _ASIDE - _MAIN, y + (21 if step.kind is Kind.IF else -21)
        self._canvas.arrow((x, y), (side - 41, y), color=self._ink)
        self._canvas.path(((side, y), (side, back)), color=self._ink, width=2)
        self._canvas.arrow((side, back), (x + 1, back), color=self._ink)
        corners = ((x - 50, y), (x, y - 17), (x + 50, y), (x, y + 17))
        self._canvas.polygon(corners, fill=self._fills[1], line=self._ink)
        self._canvas.text(x, y, f"{step.test}?", color=self._ink, size=13)
        self._canvas.text(x + 44, y - 10, "yes", color=self._ink, size=12)
        self._canvas.text(x - 5, y + 22, "no", color=self._ink, size=12, at="rm")
        self.draw_box(side, y, 41, step.do)

    def reach(self, at: int, height: float = 13) -> Point:
        """Draw the arrow to a shape of half this height; return its middle."""
        column, row = divmod(at, _ROWS)
        x, y = self._left + _MAIN + _WIDE * column, 36 + _PITCH * row
        if row:
            self._canvas.arrow((x, y - _PITCH + 13), (x, y - height), color=self._ink, head=7)
        elif column:
            left, low, middle = x - _WIDE, 36 + _PITCH * (_ROWS - 1), x - 66
            around = ((left, low + 13), (left, low + 31), (middle, low + 31), (middle, 7), (x, 7))
            self._canvas.path(around, color=self._ink, width=2)
            self._canvas.arrow((x, 7), (x, y - height), color=self._ink, head=7)
        return x, y


_GATES_ROWS = 5
_LEFT = 24
_HALF = 22
"""Half the width of a gate."""
_INPUT = 12
"""Half the width of an input."""

_GATES = {"AND": "001", "OR": "011", "XOR": "010", "NAND": "110", "NOR": "100"}
"""What a gate gives if none, one or both of its inputs are 1."""

Gate = tuple[str, int, int]
"""Its kind, and the rows of its two inputs in the column before it."""


class GatesState(Asked):
    """A circuit of gates in columns."""

    inputs: tuple[bool, ...]
    columns: tuple[tuple[Gate, ...], ...]
    letters: str
    """A lamp's letter in each row."""


class Gates(LettersQuestion[GatesState]):
    """Find the lamps that a logic circuit lights.

    The picture shows a circuit. Signals run from the inputs at the left, which are 0 or 1, through
    gates to lamps at the right. Each gate has two inputs at its left. AND gives 1 if both are 1; OR
    if at least one is; XOR if exactly one is; NAND if not both are; NOR if none is. A lamp is lit
    by 1.

    An action is the letters of all lit lamps in any order, such as A, B.
    """

    difficulty = ("number of columns of gates", 1, 2, 3, 4)
    question = "Which lamps are lit?"

    def create(self, rng: random.Random, size: int) -> GatesState:
        """Draw columns, each with two or three rows that are 1."""
        inputs = tuple(rng.sample((True, True, False, False, rng.random() < 0.5), _GATES_ROWS))
        columns: list[tuple[Gate, ...]] = []
        values = inputs
        while len(columns) < size:
            column = tuple(_gate(rng, row) for row in range(_GATES_ROWS))
            after = _after(values, column)
            if sum(after) in (2, 3):
                columns.append(column)
                values = after
        letters = "".join(rng.sample(LETTERS, _GATES_ROWS))
        return GatesState(inputs=inputs, columns=tuple(columns), letters=letters)

    def draw(self, state: GatesState, canvas: Canvas, look: Look) -> None:
        """Draw lines, then inputs, gates and lamps."""
        row = SIDE / _GATES_ROWS
        step = (SIDE - 2 * _LEFT) / (len(state.columns) + 1)
        heights = [row * (at + 0.5) for at in range(_GATES_ROWS)]
        for at, column in enumerate(state.columns, start=1):
            x, half = _LEFT + step * at, _HALF if at > 1 else _INPUT
            for y, (_, *inputs) in zip(heights, column, strict=True):
                for shift, source in zip((-8, 8), inputs, strict=True):
                    start = (x - step + half, heights[source])
                    line = (start, (start[0] + 4, start[1]), (x - _HALF - 4, y + shift))
                    canvas.path((*line, (x, y + shift)), color=look.ink, width=2)
        for y, value, letter in zip(heights, state.inputs, state.letters, strict=True):
            canvas.path(((SIDE - _LEFT - step, y), (SIDE - _LEFT, y)), color=look.ink, width=2)
            canvas.box(*centered(_LEFT, y, _INPUT, 14), fill=look.ink)
            canvas.text(_LEFT, y, str(int(value)), color=look.paper, size=18)
            canvas.disc(SIDE - _LEFT, y, 16, fill=COLORS["yellow"], line=look.ink, width=2)
            canvas.text(SIDE - _LEFT, y, letter, color=(0, 0, 0), size=17)
        for at, column in enumerate(state.columns, start=1):
            x = _LEFT + step * at
            for y, (kind, *_) in zip(heights, column, strict=True):
                canvas.box(*centered(x, y, _HALF, 16), fill=(255, 255, 255), line=look.ink, width=2)
                canvas.text(x, y, kind, color=(0, 0, 0), size=14)

    def tell(self, state: GatesState) -> str:
        """List inputs, gates and lamps, each by column and row."""
        lines = [f"Inputs from the top: {', '.join(str(int(value)) for value in state.inputs)}"]
        for at, column in enumerate(state.columns, start=1):
            gates = (f"{kind} of rows {one + 1} and {two + 1}" for kind, one, two in column)
            lines.append(f"Column {at} from the top, of the column before: {'; '.join(gates)}")
        return "\n".join((*lines, f"Lamps from the top: {', '.join(state.letters)}"))

    def answer(self, state: GatesState) -> str:
        """Return the letters of the lit lamps."""
        values = state.inputs
        for column in state.columns:
            values = _after(values, column)
        lit = (letter for letter, value in zip(state.letters, values, strict=True) if value)
        return ", ".join(lit)

    def read(self, text: str) -> list[str] | None:
        """Return the letters in alphabetical order."""
        return sorted(letters_in(text) or ()) or None


def _gate(rng: random.Random, row: int) -> Gate:
    """Return a gate with two inputs from near rows, the upper one first."""
    near = [source for source in (row - 1, row, row + 1) if 0 <= source < _GATES_ROWS]
    one, two = sorted(rng.sample(near, 2))
    return rng.choice(tuple(_GATES)), one, two


def _after(values: Sequence[bool], column: Sequence[Gate]) -> tuple[bool, ...]:
    """Return what a column of gates gives for the values before it."""
    return tuple(_GATES[kind][values[one] + values[two]] == "1" for kind, one, two in column)


_FIRST = "AlBeCaDaElFiGaHaJoKaLeMiNoOrPeRuSaTeVaWi"
_LAST = "BinDorLanMirNosRaSelTonViZoKetRinLoMosNelPaRudSinTamVorWenXaZulDek"
_SYLLABLE = re.compile("[A-Z][a-z]+")
_NAMES = tuple(
    first + last.lower() for first in _SYLLABLE.findall(_FIRST) for last in _SYLLABLE.findall(_LAST)
)
_WIDEST = 7
"""People side by side."""
_MEN, _WOMEN = (205, 222, 245), (250, 214, 200)


class Person(Record):
    """A person in a family tree. People are known by their places in a list."""

    name: str
    is_woman: bool
    generation: int
    x: int
    """Left edge in half widths of a person."""
    spouse: int | None = None
    parents: tuple[int, ...] = ()


class FamilyState(Asked):
    """A family tree and a question."""

    people: tuple[Person, ...]
    start: int
    steps: tuple[str, ...]
    """Relations, from the start to the person that is asked for."""


class Family(Question[FamilyState]):
    """Find a relative in a family tree.

    The picture shows a family tree. Men are in boxes with sharp corners, women in boxes with round
    ends. A double line joins a married couple. A line from it leads down to their children, from
    the oldest at the left to the youngest at the right.

    An action is the name of one person.
    """

    difficulty = ("number of generations", 3, 4, 5, 6)
    options = _NAMES

    def create(self, rng: random.Random, size: int) -> FamilyState:
        """Draw a family, and a chain of relations without a return."""
        while True:
            people = _grown(rng, size)
            if people is None:
                continue
            for _ in range(20):
                start = rng.randrange(len(people))
                steps = _chain(rng, people, start, size - 1)
                if len(steps) == size - 1:
                    return FamilyState(people=people, start=start, steps=tuple(steps))

    def draw(self, state: FamilyState, canvas: Canvas, look: Look) -> None:
        """Draw lines, then people."""
        wide = max(person.x for person in state.people) + 2
        slot = min(90.0, (SIDE - 8) / (wide / 2))
        row = (SIDE - 8) / (max(person.generation for person in state.people) + 1)
        left = (SIDE - slot * wide / 2) / 2
        places = [
            (left + slot * (person.x + 1) / 2, 4 + row * (person.generation + 0.5))
            for person in state.people
        ]
        for at, person in enumerate(state.people):
            x, y = places[at]
            if person.spouse is not None and person.spouse > at:
                for shift in (-2, 2):
                    ends = ((x, y + shift), (places[person.spouse][0], y + shift))
                    canvas.path(ends, color=look.ink, width=1.5)
            if person.parents:
                middle = sum(places[parent][0] for parent in person.parents) / 2
                above = places[person.parents[0]][1] + 2
                bend = y - row * 0.42
                line = ((middle, above), (middle, bend), (x, bend), (x, y))
                canvas.path(line, color=look.ink, width=2)
        half = min(34, slot / 2 - 5)
        for person, (x, y) in zip(state.people, places, strict=True):
            fill, round_by = (_WOMEN, 12) if person.is_woman else (_MEN, 0)
            edges = centered(x, y, half, 12)
            canvas.box(*edges, fill=fill, line=look.ink, width=1.5, round_by=round_by)
            canvas.text(x, y, person.name, color=(0, 0, 0), size=13)

    def tell(self, state: FamilyState) -> str:
        """List the people with their relations."""
        lines = list[str]()
        for at, person in enumerate(state.people):
            line = f"{person.name}: {'woman' if person.is_woman else 'man'}"
            if person.spouse is not None:
                line += f", married to {state.people[person.spouse].name}"
            children = ", ".join(state.people[child].name for child in _children(state.people, at))
            lines.append(line + (f", children from the oldest: {children}" if children else ""))
        return "\n".join(lines)

    def ask(self, state: FamilyState) -> str:
        """Ask for the end of the chain."""
        chain = "".join(f"the {step} of " for step in reversed(state.steps))
        return f"Who is {chain}{state.people[state.start].name}?"

    def answer(self, state: FamilyState) -> str:
        """Return the name at the end of the chain."""
        at = state.start
        for step in state.steps:
            at = _relatives(state.people, at)[step]
        return state.people[at].name


def _children(people: Sequence[Person], at: int) -> list[int]:
    """Return someone's children, from the oldest."""
    found = [child for child, person in enumerate(people) if at in person.parents]
    return sorted(found, key=lambda child: people[child].x)


def _relatives(people: Sequence[Person], at: int) -> dict[str, int]:
    """Return the relatives that a word names without doubt."""
    person = people[at]
    found = {"mother" if people[parent].is_woman else "father": parent for parent in person.parents}
    if person.spouse is not None:
        found["wife" if people[person.spouse].is_woman else "husband"] = person.spouse
    children = _children(people, at)
    if len(children) == 1:
        found["only child"] = children[0]
    elif children:
        found |= {"oldest child": children[0], "youngest child": children[-1]}
    siblings = _children(people, person.parents[0]) if person.parents else []
    for older, younger in pairwise(siblings):
        if older == at:
            found["next younger sibling"] = younger
    return found


def _chain(rng: random.Random, people: Sequence[Person], start: int, length: int) -> list[str]:
    """Return relations that lead from one person to others, none of them twice."""
    at, seen, steps = start, {start}, list[str]()
    while len(steps) < length:
        ways = [way for way in _relatives(people, at).items() if way[1] not in seen]
        if not ways:
            break
        step, at = rng.choice(ways)
        seen.add(at)
        steps.append(step)
    return steps


def _grown(rng: random.Random, generations: int) -> tuple[Person, ...] | None:
    """Return a family; None if it is too wide or ends too early."""
    names = rng.sample(_NAMES, len(_NAMES))
    people: list[Person] = []

    def grow(generation: int, left: int, parents: tuple[int, ...]) -> int:
        """Add someone with all descendants; return their width."""
        at, is_woman = len(people), rng.random() < 0.5
        born = functools.partial(Person, generation=generation, x=left)
        people.append(born(name=names.pop(), is_woman=is_woman, parents=parents))
        if generation == generations - 1 or (generation and rng.random() >= 0.55):
            return 2
        people.append(born(name=names.pop(), is_woman=not is_woman))
        width = 0
        for _ in range(rng.choice((1, 2, 2, 3))):
            width += grow(generation + 1, left + width, (at, at + 1))
        if width < 4:  # an only child without a family, under two parents
            people[-1] = replace(people[-1], x=left + 1)
            width = 4
        x = left + (width - 4) // 2
        people[at] = replace(people[at], x=x, spouse=at + 1)
        people[at + 1] = replace(people[at + 1], x=x + 2, spouse=at)
        return width

    width = grow(0, 0, ())
    is_deep = max(person.generation for person in people) == generations - 1
    return tuple(people) if is_deep and width <= 2 * _WIDEST else None
