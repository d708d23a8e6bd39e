"""Figures of cubes that are turned, and sheets of paper that are folded."""

import functools
import random
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise, permutations, product
from math import cos, radians, sin

import numpy as np

from envkit_visual.answers import different_letters
from envkit_visual.canvas import COLORS, SIDE, Canvas, Color, Look, Point
from envkit_visual.cells import Cell, cell_name, cells_of
from envkit_visual.warps.art import badge
from envkit_visual.world import Asked, Question, Record

Cube = tuple[int, ...]
"""Steps to the right, to the front and upwards; the viewer sees those three sides of a cube."""
Figure = tuple[Cube, ...]

_NAMES = "ABCDE"
_SUBSETS = tuple("".join(some) for count in range(1, 6) for some in combinations(_NAMES, count))
_YAW, _PITCH = radians(32), radians(30)
_LONGEST = 4
_LEAST_SEEN = 7
"""Of the 27 points on the three sides of a cube that face the viewer, how many are not hidden."""
_SAMPLES = (0.1, 0.5, 0.9)


class CubesState(Asked):
    """A figure, and five figures that are it or its mirror image, each turned."""

    figure: Figure
    options: tuple[Figure, ...]
    same: str
    """Letters of those that are not mirrored."""


class Cubes(Question[CubesState]):
    """Tell turned figures of cubes from mirrored ones.

    The first figure is made of cubes. Each of the figures A to E is either the same figure, turned
    in space, or its mirror image, turned in space. Which ones are the same figure? At least one of
    them is. Part of every cube can be seen.

    An action is the letters of all figures that are the same, such as "B D".
    """

    difficulty = ("number of cubes", 4, 6, 8, 10)
    chance = 1 / (2 ** len(_NAMES) - 1)
    options = tuple(map(" ".join, _SUBSETS))
    refusal = "the answer is letters from A to E, each once"

    def create(self, rng: random.Random, size: int) -> CubesState:
        """Draw a figure that differs from its mirror image, and views that hide no cube."""
        while True:
            grown = _grown(rng, size)
            views = _views(grown)
            mirrored = _views([(-right, front, up) for right, front, up in grown])
            if set(views) & set(mirrored):
                continue
            clear, clear_mirrored = ([*filter(_is_clear, one)] for one in (views, mirrored))
            if min(len(clear), len(clear_mirrored)) > len(_NAMES):
                break
        same = rng.choice(_SUBSETS)
        first, *clear = rng.sample(clear, len(clear))
        clear_mirrored = rng.sample(clear_mirrored, len(clear_mirrored))
        options = tuple((clear if name in same else clear_mirrored).pop() for name in _NAMES)
        return CubesState(figure=first, options=options, same=same)

    def draw(self, state: CubesState, canvas: Canvas, look: Look) -> None:
        """Draw the six figures in two rows."""
        width, height = SIDE / 3, SIDE / 2
        color = COLORS[next(name for name in look.accents if name not in ("grey", "brown"))]
        figures = (state.figure, *state.options)
        names = ("first figure", *_NAMES)
        spans = [(right - left, low - top) for left, top, right, low in map(_bounds, figures)]
        unit = min(30, *(min((width - 16) / wide, (height - 44) / high) for wide, high in spans))
        for index, (name, figure) in enumerate(zip(names, figures, strict=True)):
            left, top = width * (index % 3), height * (index // 3)
            canvas.box(left + 2, top + 2, left + width - 2, top + height - 2, line=look.ink)
            badge(canvas, left + width / 2, top + 16, name, look)
            center = (left + width / 2, top + height / 2 + 12)
            _draw_figure(canvas, figure, center, unit, color)

    def tell(self, state: CubesState) -> str:
        """List the cubes of each figure."""
        told = ["Cubes as steps to the right, to the front and up:"]
        names = ("First figure", *_NAMES)
        for name, figure in zip(names, (state.figure, *state.options), strict=True):
            told.append(f"{name}: {' '.join(str(cube).replace(' ', '') for cube in figure)}")
        return "\n".join(told)

    def answer(self, state: CubesState) -> str:
        """Return the letters of the same figures."""
        return " ".join(state.same)

    def read(self, text: str) -> list[str] | None:
        """Return the letters in alphabetical order."""
        return sorted(different_letters(text, _NAMES) or ()) or None


def _grown(rng: random.Random, size: int) -> list[Cube]:
    """Return a connected figure that is at most `_LONGEST` cubes long in each direction."""
    figure: list[Cube] = [(0, 0, 0)]
    while len(figure) < size:
        start, axis, step = rng.choice(figure), rng.randrange(3), rng.choice((-1, 1))
        cube = (*start[:axis], start[axis] + step, *start[axis + 1 :])
        spans = zip(*figure, cube, strict=True)
        if cube not in figure and all(max(span) - min(span) < _LONGEST for span in spans):
            figure.append(cube)
    return figure


def _views(figure: Iterable[Cube]) -> list[Figure]:
    """Return a figure in its different orientations, of which there are at most 24.

    Each is moved to the origin, with its cubes sorted.
    """
    turned = np.array(figure) @ _turns()
    turned -= turned.min(axis=1, keepdims=True)
    return sorted({tuple(sorted(map(tuple, cubes))) for cubes in turned.tolist()})


@functools.cache
def _turns() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return the 24 turns of a cube as matrices: orders of axes and signs that do not mirror."""
    orders, signs = permutations(np.eye(3, dtype=int)), list(product((1, -1), repeat=3))
    matrices = [np.array(order) * sign for order in orders for sign in signs]
    return np.array([one for one in matrices if np.linalg.det(one) > 0], dtype=np.int64)


def _is_clear(figure: Figure) -> bool:
    """Return whether the viewer sees enough of each cube to know where it is."""
    for cube in figure:
        hidden = 0
        for other in figure:
            hidden |= _hidden_by(tuple(map(int.__sub__, other, cube)))
        if 27 - hidden.bit_count() < _LEAST_SEEN:
            return False
    return True


@functools.cache
def _hidden_by(step: Cube) -> int:
    """Return as bits which points of a cube the cube that is a step away hides."""
    if min(step) < 0 or step == (0, 0, 0):
        return 0
    ray = (sin(_YAW) * cos(_PITCH), cos(_YAW) * cos(_PITCH), sin(_PITCH))
    hidden = 0
    for bit, (side, one, other) in enumerate(product(range(3), _SAMPLES, _SAMPLES)):
        point = [one, other]
        point.insert(side, 1.0)
        starts = [(step[at] - point[at]) / ray[at] for at in range(3)]
        ends = [(step[at] + 1 - point[at]) / ray[at] for at in range(3)]
        if max(*starts, 0) < min(ends) - 1e-9:
            hidden |= 1 << bit
    return hidden


@functools.lru_cache(maxsize=512)
def _corners(cube: Cube) -> dict[Cube, Point]:
    """Return where the corners of a cube are in the picture, by the steps to them.

    Edges have a length of 1.
    """
    corners = dict[Cube, Point]()
    for steps in product((0, 1), repeat=3):
        right, front, up = map(int.__add__, cube, steps)
        near = right * sin(_YAW) + front * cos(_YAW)
        across, down = right * cos(_YAW) - front * sin(_YAW), near * sin(_PITCH) - up * cos(_PITCH)
        corners[steps] = across, down
    return corners


def _bounds(figure: Figure) -> tuple[float, float, float, float]:
    """Return the left, top, right and bottom of a figure, for an edge of 1."""
    places = [place for cube in figure for place in _corners(cube).values()]
    across, down = zip(*places, strict=True)
    return min(across), min(down), max(across), max(down)


_SIDES: tuple[tuple[float, tuple[Cube, ...]], ...] = (
    (1.25, ((0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))),
    (0.95, ((0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1))),
    (0.65, ((1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 0, 1))),
)
"""Brightness and corners of the sides that the viewer sees."""


def _draw_figure(canvas: Canvas, figure: Figure, center: Point, unit: float, color: Color) -> None:
    """Draw a figure from the back to the front."""
    start, top, end, bottom = _bounds(figure)
    left, top = center[0] - unit * (start + end) / 2, center[1] - unit * (top + bottom) / 2
    for cube in sorted(figure, key=sum):
        places = {at: (left + unit * x, top + unit * y) for at, (x, y) in _corners(cube).items()}
        for light, corners in _SIDES:
            red, green, blue = (min(255, round(value * light)) for value in color)
            points = [places[corner] for corner in corners]
            canvas.polygon(points, fill=(red, green, blue))
            canvas.path((*points, points[0]), color=(0, 0, 0), width=1.5)


_SIDE = 6
_COLUMNS = "ABCDEF"
_PUNCHES = 2
_MOST = 12
"""Holes after unfolding, so that an answer stays short."""
_CELLS = cells_of(_SIDE, _SIDE)
_FEWEST = 6
"""Cells that the folded sheet covers, so that answers differ."""


class Fold(Record):
    """The part before a line is folded over it, or the part after it."""

    is_column: bool
    """Whether the line is between two columns, so that the fold goes left or right."""
    line: int
    """Cells before the line."""
    is_first: bool
    """Whether the part before the line, on the left or on top, is folded over."""


_MIRRORED = [[*product({row, 5 - row}, {column, 5 - column})] for row, column in _CELLS]
"""Cells that mirror each other, as after simple folds."""


class FoldState(Asked):
    """Folds in their order, and the cells that are punched at the end."""

    folds: tuple[Fold, ...]
    punched: tuple[Cell, ...]


class FoldedSheet(Question[FoldState]):
    """Find the holes of a punched sheet after unfolding it.

    A sheet of 6 by 6 cells is folded along the red lines, panel by panel. The arrow starts on the
    part that is folded over and points to where it lands. Darker cells have more layers. In the
    last panel holes are punched through all layers, and then the sheet is unfolded. Which of its
    cells have a hole? Columns are A to F from left to right, rows are 1 to 6 from the top.

    An action is all cells with a hole, such as "B2 E2 B5 E5".
    """

    name = "fold"
    difficulty = ("number of folds", 1, 2, 3, 5)
    refusal = "the answer is cells, such as B2 E5"
    options = tuple(" ".join(sorted(map(cell_name, cells))) for cells in _MIRRORED)

    def create(self, rng: random.Random, size: int) -> FoldState:
        """Draw folds, and punches of which at least one goes through a folded part."""
        while True:
            folds: list[Fold] = []
            while len(folds) < size:
                folds.append(rng.choice(_possible(folds)))
            layers = _layers(folds)
            punched = tuple(sorted(rng.sample(sorted(layers), _PUNCHES)))
            counts = [len(layers[cell]) for cell in punched]
            if len(layers) >= _FEWEST and max(counts) >= min(2**size, 4) and sum(counts) <= _MOST:
                return FoldState(folds=tuple(folds), punched=punched)

    def draw(self, state: FoldState, canvas: Canvas, look: Look) -> None:
        """Draw a panel for each fold, and one for the punches."""
        count = len(state.folds) + 1
        columns = 2 if count <= 4 else 3
        step, cell = SIDE / columns, (26.0 if columns == 2 else 19.0)
        for index, fold in enumerate((*state.folds, None)):
            left, top = step * (index % columns) + 24, SIDE / 2 * (index // columns) + 46
            name = f"fold {index + 1}" if fold else "punch"
            canvas.text(left + 3 * cell, top - 32, name, color=look.ink, size=16)
            _draw_sheet(canvas, _layers(state.folds[:index]), (left, top, cell), look)
            if fold:
                _draw_fold(canvas, fold, left, top, cell)
                continue
            for row, column in state.punched:
                x, y = left + cell * (column + 0.5), top + cell * (row + 0.5)
                canvas.disc(x, y, cell * 0.3, fill=(0, 0, 0))

    def tell(self, state: FoldState) -> str:
        """Say what each panel shows."""
        told: list[str] = []
        for fold in state.folds:
            names, kind = (_COLUMNS, "columns") if fold.is_column else ("123456", "rows")
            sides = ("left", "right") if fold.is_column else ("top", "bottom")
            side, onto = sides if fold.is_first else sides[::-1]
            told.append(
                f"The {side} part is folded onto the {onto} one along the line between the {kind} "
                f"{names[fold.line - 1]} and {names[fold.line]}."
            )
        return "\n".join(
            (*told, f"Then {' and '.join(map(cell_name, state.punched))} are punched.")
        )

    def answer(self, state: FoldState) -> str:
        """Return the cells of the sheet that lie where it is punched."""
        layers = _layers(state.folds)
        return " ".join(sorted(cell_name(cell) for at in state.punched for cell in layers[at]))

    def read(self, text: str) -> set[str] | None:
        """Return the cells."""
        parts = set(text.upper().replace(",", " ").split())
        return parts if parts and parts <= set(map(cell_name, _CELLS)) else None


Layers = dict[Cell, list[Cell]]
"""For each cell that a folded sheet covers, which cells of the sheet lie there."""


def _layers(folds: Sequence[Fold]) -> Layers:
    layers: Layers = {}
    for cell in _CELLS:
        at = list(cell)
        for fold in folds:
            axis = int(fold.is_column)
            if (at[axis] < fold.line) == fold.is_first:
                at[axis] = 2 * fold.line - 1 - at[axis]
        layers.setdefault((at[0], at[1]), []).append(cell)
    return layers


def _possible(folds: Sequence[Fold]) -> list[Fold]:
    """Return the folds of which the part that moves is no longer than what it falls onto."""
    covered = _layers(folds)
    possible: list[Fold] = []
    for is_column in (False, True):
        places = sorted({cell[is_column] for cell in covered})
        for before, after in pairwise(places):
            sizes = {True: before - places[0] + 1, False: places[-1] - after + 1}
            for is_first, size in sizes.items():
                if size <= sizes[not is_first]:
                    possible.append(Fold(is_column=is_column, line=after, is_first=is_first))
    return possible


def _draw_sheet(canvas: Canvas, layers: Layers, place: Sequence[float], look: Look) -> None:
    """Draw the cells that the sheet covers, and the names of columns and rows.

    Args:
        canvas: Where to draw.
        layers: The layers of each cell that is covered.
        place: Left, top and the side of a cell.
        look: The colors.
    """
    left, top, cell = place
    for at, name in enumerate(_COLUMNS):
        center = cell * (at + 0.5)
        canvas.text(left + center, top - 10, name, color=look.ink, size=13)
        canvas.text(left - 11, top + center, str(at + 1), color=look.ink, size=13)
    for (row, column), there in layers.items():
        x, y = left + cell * column, top + cell * row
        shade = max(130, 255 - 25 * (len(there) - 1))
        canvas.box(x, y, x + cell + 1, y + cell + 1, fill=(shade, shade, shade), line=(90, 90, 90))
    canvas.box(left, top, left + 6 * cell, top + 6 * cell, line=look.ink, width=1.5)


def _draw_fold(canvas: Canvas, fold: Fold, left: float, top: float, cell: float) -> None:
    """Draw the line and an arrow over it."""
    line, far = cell * fold.line, cell * _SIDE
    way = -16 if fold.is_first else 16

    def spot(along: float, across: float) -> Point:
        return (left + along, top + across) if fold.is_column else (left + across, top + along)

    edge, red = far + 8 + fold.is_column, COLORS["red"]
    canvas.path((spot(line, -2), spot(line, far + 2)), color=red, width=3)
    canvas.arrow(spot(line + way, edge), spot(line - way, edge), color=red, width=3)
