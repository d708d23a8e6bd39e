"""Measure what geo3k-v0 gives away to a policy that cannot see its figures.

    python scripts/geo3k/leaks.py [--levels 1,2,3,4] [--train 4000] [--test 1000]
        [--by-family [--unlabelled]]

Two measurements per level, as shares of generated problems:

- `text-only`: the answer follows from the numbers in the text. The test is generous: it assumes a
  reader who knows everything about the figure except its numbers, such as which points are joined
  and which lines are parallel, tangent or perpendicular. It compares the gradient of the asked
  quantity with the gradients of all known quantities.
- `frequent` and `learned`: the answers that a blind policy finds with four guesses, three by
  `calc_score` and one in the box. `frequent` guesses the most frequent answers of the level (with
  --by-family: of the family at that level). `learned` has seen thousands of other questions with
  answers. It knows the answers for each wording, for each wording with the same numbers, and the
  usual ratios, sums and differences between the answer and the numbers in the text.

--unlabelled draws the problems without placing labels, which is ten times as fast. Few problems are
rejected for lack of room, so the learned guesses hardly change.
"""

import argparse
import itertools
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envkit.tasks import Task
from envkit_geo3k import FAMILIES, ProceduralSource, source
from envkit_geo3k.draft import Draft
from envkit_geo3k.figure import Figure
from envkit_geo3k.measure import Measure, evaluate_measure
from envkit_geo3k.source import LEVELS

GUESSES = 4
"""Three scored attempts and the box, as in the environment's defaults."""
_NEAR = 1e-6
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:√\d+)?π?(?:/\d+)?|√\d+|π")
_NAME = re.compile(r"\b[A-Z]+\b|∠[A-Z]{3}")
Vector = NDArray[np.float64]
Points = dict[str, tuple[float, float]]
Quantity = Callable[[Points], float]


# What the text decides ---------------------------------------------------------------------------


def follows_from_text(task: Task) -> bool:
    """Return whether the text's numbers and the figure's form determine the answer.

    Args:
        task: A generated problem.
    """
    goals = _goals(task)
    if goals is None:
        return False
    figure = task["figure"]
    size = max(abs(value) for point in figure["points"].values() for value in point)
    points = {name: (x / size, y / size) for name, (x, y) in figure["points"].items()}
    known = [*_marks(figure["shapes"], points), *_incidences(figure["shapes"], points, size)]
    known += _facts(task["question"])
    known += [_measured(g["measure"]) for g in task["givens"] if g["shown"] == "text"]
    rows = [_gradient(quantity, points) for quantity in known]
    matrix = np.array([row / norm for row in rows if (norm := np.linalg.norm(row)) > _NEAR])
    return all(_is_spanned(_gradient(goal, points), matrix) for goal in goals)


def _is_spanned(goal: Vector, rows: Vector) -> bool:
    if not len(rows):
        return False
    _, sizes, directions = np.linalg.svd(rows, full_matrices=False)
    basis = directions[sizes > 1e-5]
    rest = goal - basis.T @ (basis @ goal)
    return bool(np.linalg.norm(rest) < 1e-4 * np.linalg.norm(goal))


def _goals(task: Task) -> list[Quantity] | None:
    """Return the asked quantities; None if the question itself needs a label of the figure."""
    goal = task["goal"]
    if goal[0] == "round":
        goal = goal[2]
    if goal[0] == "solve":
        if "x" not in task["question"].removesuffix("Find x."):
            return None  # the expression in x is a label of the figure
        goal = goal[3]
    return [_measured(part) for part in (goal[1:] if goal[0] == "pair" else [goal])]


def _measured(measure: Measure) -> Quantity:
    def quantity(points: Points) -> float:
        value = evaluate_measure(measure, points)
        if isinstance(value, tuple):
            raise TypeError(f"a pair of coordinates has no single value: {measure}")
        return value

    return quantity


def _gradient(quantity: Quantity, points: Points) -> Vector:
    step = 1e-6
    row: list[float] = []
    for name, (x, y) in points.items():
        for dx, dy in ((step, 0.0), (0.0, step)):
            above = quantity({**points, name: (x + dx, y + dy)})
            below = quantity({**points, name: (x - dx, y - dy)})
            row.append((above - below) / (2 * step))
    return np.array(row)


def _side(a: str, b: str) -> Quantity:
    return lambda p: math.dist(p[a], p[b])


def _same(first: Quantity, second: Quantity) -> Quantity:
    return lambda p: first(p) - second(p)


def _cross(a: str, b: str, c: str, d: str) -> Quantity:
    """Return the cross product of AB and CD, which is zero if they are parallel."""
    return lambda p: (
        (p[b][0] - p[a][0]) * (p[d][1] - p[c][1]) - (p[b][1] - p[a][1]) * (p[d][0] - p[c][0])
    )


def _dot(a: str, vertex: str, b: str) -> Quantity:
    return lambda p: (
        (p[a][0] - p[vertex][0]) * (p[b][0] - p[vertex][0])
        + (p[a][1] - p[vertex][1]) * (p[b][1] - p[vertex][1])
    )


def _from_line(center: str, a: str, b: str) -> Quantity:
    cross, side = _cross(a, b, a, center), _side(a, b)
    return lambda p: abs(cross(p)) / side(p)


def _combination(axis: int, weights: Mapping[str, float]) -> Quantity:
    return lambda p: sum(weight * p[name][axis] for name, weight in weights.items())


def _balanced(weights: Mapping[str, float]) -> list[Quantity]:
    """Return the equation that a weighted sum of points is zero."""
    return [_combination(axis, weights) for axis in (0, 1)]


def _all_same(quantities: Sequence[Quantity]) -> list[Quantity]:
    return [_same(first, second) for first, second in itertools.pairwise(quantities)]


def _marks(shapes: Iterable[Sequence[Any]], points: Points) -> list[Quantity]:
    """Return the equations from right angles, ticks, arrows and equal arcs."""
    found: list[Quantity] = []
    ticks: dict[int, list[Quantity]] = defaultdict(list)
    arrows: dict[int, list[tuple[str, str]]] = defaultdict(list)
    angles: list[Sequence[str]] = []
    for kind, *operands in shapes:
        if kind == "right_angle":
            found.append(_dot(*operands))
        elif kind == "ticks":
            ticks[operands[2]].append(_side(operands[0], operands[1]))
        elif kind == "arrows":
            arrows[operands[2]].append((operands[0], operands[1]))
        elif kind == "angle":
            angles.append(operands[:3])
    for group in ticks.values():
        found += _all_same(group)
    for pairs in arrows.values():
        found += [_cross(*pairs[0], *pair) for pair in pairs[1:]]
    for first, second in itertools.combinations(angles, 2):
        equal = _same(_measured(["angle", *first]), _measured(["angle", *second]))
        if abs(equal(points)) < 1e-5:
            found.append(equal)
    return found


def _incidences(shapes: Sequence[Sequence[Any]], points: Points, size: float) -> list[Quantity]:
    """Return the equations for points on lines and circles, and for tangents."""
    found: list[Quantity] = []
    segments = [shape[1:3] for shape in shapes if shape[0] in ("segment", "dashed")]
    for a, b in segments:
        for name in points.keys() - {a, b}:
            if abs(_cross(a, b, a, name)(points)) < _NEAR * math.dist(points[a], points[b]):
                found.append(_cross(a, b, a, name))
    for center, reach in ((shape[1], shape[2] / size) for shape in shapes if shape[0] == "circle"):
        rim = [n for n in points if abs(math.dist(points[center], points[n]) - reach) < _NEAR]
        lines = {(a, b): _from_line(center, a, b) for a, b in segments if center not in (a, b)}
        found += _all_same([_side(center, name) for name in rim])
        for (a, b), line in lines.items():
            if abs(line(points) - reach) < _NEAR and {a, b} & set(rim):  # a tangent
                touch, other = (a, b) if a in rim else (b, a)
                found.append(_dot(center, touch, other))
        gaps = [line(points) for line in lines.values()]
        if len(lines) == 4 and max(gaps) - min(gaps) < _NEAR:  # in a square, or around it
            found += _all_same(list(lines.values()))
    return found


def _facts(question: str) -> list[Quantity]:
    """Return the equations of sentences that state facts."""
    found: list[Quantity] = []
    for names in re.findall(r"\b([A-Z]{4}) is a parallelogram", question):
        a, b, c, d = names
        found += _balanced({a: 1, b: -1, c: 1, d: -1})
    for names in re.findall(r"\b([A-Z]{4}) is a rhombus", question):
        found += _all_same([_side(a, b) for a, b in zip(names, names[1:] + names[0], strict=True)])
    for names in re.findall(r"\b[Ss]quare ([A-Z]{4})", question):
        a, b, c, d = names
        found += [*_balanced({a: 1, b: -1, c: 1, d: -1}), _dot(a, b, c)]
        found.append(_same(_side(a, b), _side(b, c)))
    for (a, b), (c, d) in re.findall(r"bases ([A-Z]{2}) and ([A-Z]{2})", question):
        found.append(_cross(a, b, c, d))
    for (a, b), (c, d) in re.findall(r"([A-Z]{2}) is parallel to ([A-Z]{2})", question):
        found.append(_cross(a, b, c, d))
    for g, (a, b, c) in re.findall(r"([A-Z]) is the centroid of triangle ([A-Z]{3})", question):
        found += _balanced({g: 3, a: -1, b: -1, c: -1})
    for p, (a, b, c) in re.findall(r"([A-Z]) is the incenter of triangle ([A-Z]{3})", question):
        found += _all_same([_from_line(p, a, b), _from_line(p, b, c), _from_line(p, a, c)])
    for (a, b), o in re.findall(r"([A-Z]{2}) is a diameter of circle ([A-Z])", question):
        found += _balanced({a: 1, b: 1, o: -2})
    return found


# What a blind policy learns ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """A question as a blind policy reads it."""

    template: str
    """The text with its numbers and names replaced."""
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, question: str) -> "Wording":
        """Read a question."""
        numbers = tuple(_value(found) for found in _NUMBER.findall(question))
        names: dict[str, str] = {}

        def renamed(match: re.Match[str]) -> str:
            return "".join(
                letter if letter == "∠" else names.setdefault(letter, chr(97 + len(names)))
                for letter in match.group()
            )

        return cls(template=_NAME.sub(renamed, _NUMBER.sub("#", question)), numbers=numbers)


def _value(text: str) -> float:
    top, _, bottom = text.partition("/")
    factor = math.pi if "π" in top else 1.0
    plain, _, root = top.replace("π", "").partition("√")
    return factor * float(plain or 1) * math.sqrt(float(root or 1)) / float(bottom or 1)


Answer = tuple[float, ...]


def answer_of(task: Task) -> Answer:
    """Return the answer as numbers that compare equal."""
    return tuple(round(value, 4) + 0.0 for value in task["values"])


class BlindPolicy:
    """Guesses answers from the texts of other problems."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._exact: dict[Wording, Counter[Answer]] = defaultdict(Counter)
        self._answers: dict[str, Counter[Answer]] = defaultdict(Counter)
        self._relations: dict[str, Counter[tuple[int, str, float]]] = defaultdict(Counter)
        for task in tasks:
            wording, answer = Wording.of(task["question"]), answer_of(task)
            self._exact[wording][answer] += 1
            self._answers[wording.template][answer] += 1
            if len(answer) == 1:
                self._relations[wording.template].update(set(_relations(wording, answer[0])))

    def guesses(self, question: str) -> list[Answer]:
        """Return the likeliest answers."""
        wording = Wording.of(question)
        scores: dict[Answer, float] = defaultdict(float)
        total = self._answers[wording.template].total() + 1
        for answer, count in self._answers[wording.template].items():
            scores[answer] = count / total
        for (place, kind, constant), count in self._relations[wording.template].items():
            answer = (round(_applied(kind, constant, wording.numbers[place]), 4) + 0.0,)
            scores[answer] = max(scores[answer], count / total)
        same = self._exact[wording]
        for answer, count in same.items():
            scores[answer] = max(scores[answer], (count - 0.5) / (same.total() + 1))
        return sorted(scores, key=lambda answer: -scores[answer])[:GUESSES]


def _relations(wording: Wording, answer: float) -> Iterable[tuple[int, str, float]]:
    for place, number in enumerate(wording.numbers):
        if number:
            yield place, "ratio", round(answer / number, 6)
            yield place, "square", round(answer / number / number, 6)
        yield place, "sum", round(answer + number, 6)
        yield place, "half", round(answer - number / 2, 6)


def _applied(kind: str, constant: float, number: float) -> float:
    match kind:
        case "ratio":
            return constant * number
        case "square":
            return constant * number * number
        case "sum":
            return constant - number
        case _:
            return constant + number / 2


def unlabel(replace: Callable[[object, str, object], None]) -> None:
    """Omit labels from figures, through a function like `setattr`."""

    def unlabelled(_draft: Draft, figure: Figure) -> Figure:
        return figure

    replace(source, "_with_labels", unlabelled)


def text_only_rate(tasks: Iterable[Task]) -> float:
    """Return the share of problems that `follows_from_text` finds."""
    return _mean(follows_from_text(task) for task in tasks)


def frequent_rate(train: Sequence[Task], test: Sequence[Task]) -> float:
    """Return the share of test problems whose answer is among the most frequent ones."""
    common = Counter(answer_of(task) for task in train).most_common(GUESSES)
    return _mean(answer_of(task) in {answer for answer, _ in common} for task in test)


def learned_rate(train: Sequence[Task], test: Sequence[Task]) -> float:
    """Return the share of test problems that the blind policy solves."""
    policy = BlindPolicy(train)
    return _mean(answer_of(task) in policy.guesses(task["question"]) for task in test)


def _mean(outcomes: Iterable[bool]) -> float:
    return float(np.mean(list(outcomes)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", default=",".join(map(str, LEVELS)))
    parser.add_argument("--train", type=int, default=4000, help="problems to learn from")
    parser.add_argument("--test", type=int, default=1000, help="problems to test on")
    parser.add_argument("--by-family", action="store_true")
    parser.add_argument("--unlabelled", action="store_true")
    parser.add_argument("--families", default=",".join(sorted(FAMILIES)))
    options = parser.parse_args()
    names = options.families.split(",")
    if options.unlabelled:
        unlabel(setattr)
    show = sys.stdout.write
    show(f"{'level':24}{'text-only':>10}{'frequent':>10}{'learned':>10}  most frequent answer\n")
    for level in map(int, options.levels.split(",")):
        for chosen in [[name] for name in names] if options.by_family else [names]:
            show(_line(level, chosen, options.train, options.test))
            sys.stdout.flush()


def _line(level: int, families: Sequence[str], trained: int, tested: int) -> str:
    train, test = (
        [ProceduralSource(families=families, level=level, seed=seed).task(n) for n in range(count)]
        for seed, count in ((1, trained), (2, tested))
    )
    title = f"{level} {families[0]}" if len(families) == 1 else str(level)
    top, count = Counter(task["answer"] for task in train).most_common(1)[0]
    rates = (text_only_rate(test), frequent_rate(train, test), learned_rate(train, test))
    columns = "".join(f"{rate:10.1%}" for rate in rates)
    return f"{title:24}{columns}  {top} ({count / len(train):.1%})\n"


if __name__ == "__main__":
    main()
