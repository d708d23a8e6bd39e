"""Pieces and views of one picture, to be put in order."""

import random
from dataclasses import replace
from itertools import combinations

import numpy as np

from envkit_visual.answers import different_letters, whole_numbers
from envkit_visual.canvas import SIDE, Canvas, Look
from envkit_visual.warps.art import LEGEND, art, badge, colored, letters
from envkit_visual.world import Outcome, Record, Staged

_MARGIN = 4
_SAMPLE = 240
"""Pixels at which pieces are compared and told; every number of pieces to a side divides it."""
_PLAIN = 0.95
_TOLD = 6
"""Rows and columns of letters that tell a piece."""


class JigsawState(Record):
    """A picture in pieces."""

    art: int
    side: int
    """Pieces to a side."""
    pieces: tuple[int, ...]
    """The piece at each place, as its own place; row by row."""


class Jigsaw(Staged[JigsawState]):
    """Swap the pieces of a picture until it is whole.

    The picture was cut into square pieces, and the pieces were shuffled; none was turned. Swap
    pieces until the picture is whole. The numbers belong to the places, row by row, and stay where
    they are.

    An action is the numbers of the two places whose pieces to swap, such as "3 7".
    """

    difficulty = ("pieces to a side", 3, 4, 5, 6)

    def create(self, rng: random.Random, size: int) -> JigsawState:
        """Choose a picture whose pieces can be told apart, and shuffle most of them."""
        seed = rng.randrange(2**31)
        while _has_plain_piece(seed, size):
            seed = rng.randrange(2**31)
        while True:
            pieces = tuple(rng.sample(range(size * size), size * size))
            state = JigsawState(art=seed, side=size, pieces=pieces)
            if 3 * len(self.plan(state)) >= 2 * size * size:
                return state

    def draw(self, state: JigsawState, canvas: Canvas, look: Look) -> None:
        """Draw the pieces with thin gaps and the numbers of the places."""
        step = (SIDE - 2 * _MARGIN) / state.side
        cut = canvas.pixels(step - 2)
        whole = colored(art(state.art, state.side * cut), look)
        for place, piece in enumerate(state.pieces):
            row, column = divmod(piece, state.side)
            part = whole.crop((column * cut, row * cut, (column + 1) * cut, (row + 1) * cut))
            left, top = (_MARGIN + 1 + step * at for at in divmod(place, state.side)[::-1])
            canvas.paste(part, left, top)
            badge(canvas, left + 11, top + 10, str(place + 1), look)

    def tell(self, state: JigsawState) -> str:
        """Write each piece as letters."""
        whole = art(state.art, _SAMPLE)
        cut = _SAMPLE // state.side
        told = [LEGEND]
        for place, piece in enumerate(state.pieces):
            top, left = (cut * at for at in divmod(piece, state.side))
            part = whole.crop((left, top, left + cut, top + cut))
            told.append("\n".join((f"Place {place + 1}:", *letters(part, _TOLD))))
        return "\n".join(told)

    def act(self, state: JigsawState, action: str) -> Outcome[JigsawState]:
        """Swap two pieces."""
        places = whole_numbers(action, 2)
        pieces = list(state.pieces)
        if places is None or not all(1 <= place <= len(pieces) for place in places):
            return Outcome(state=state, error=f"a swap is two numbers from 1 to {len(pieces)}")
        first, second = (place - 1 for place in places)
        if first == second:
            return Outcome(state=state, text="A piece cannot be swapped with itself.")
        pieces[first], pieces[second] = pieces[second], pieces[first]
        return Outcome(state=replace(state, pieces=tuple(pieces)), text="Swapped.")

    def progress(self, state: JigsawState) -> float:
        """Return the part of the pieces that are in place."""
        pieces = state.pieces
        return sum(place == piece for place, piece in enumerate(pieces)) / len(pieces)

    def plan(self, state: JigsawState) -> list[str]:
        """Follow each cycle of the permutation, which takes one swap less than it is long."""
        pieces, plan = list(state.pieces), list[str]()
        for place in range(len(pieces)):
            while (piece := pieces[place]) != place:
                plan.append(f"{place + 1} {piece + 1}")
                pieces[place], pieces[piece] = pieces[piece], piece
        return plan

    def goal(self, state: JigsawState) -> JigsawState:
        """Return the whole picture."""
        return replace(state, pieces=tuple(range(len(state.pieces))))

    def choices(self, state: JigsawState) -> list[str]:
        """Return all swaps."""
        places = range(1, len(state.pieces) + 1)
        return [f"{first} {second}" for first, second in combinations(places, 2)]


def _has_plain_piece(seed: int, side: int) -> bool:
    """Return whether a piece has next to one color only, so that it fits in many places."""
    cut = _SAMPLE // side
    pieces = np.asarray(art(seed, _SAMPLE)).reshape(side, cut, side, cut).swapaxes(1, 2)
    counts = map(np.bincount, pieces.reshape(side * side, cut * cut))
    return any(count.max() > _PLAIN * cut * cut for count in counts)


_NAMES = "ABCDEF"
_VIEW = 140
"""Units of a view's side."""
_ZOOM_TOLD = 16
"""Rows and columns of letters that tell a view."""
_GUESSES = random.Random(0)


class ZoomState(Record):
    """Views of a picture around its center."""

    art: int
    percent: int
    """How much closer each view is than the one before."""
    ranks: tuple[int, ...]
    """Place of each view in the right order, from 0 for the widest; by the views' names."""
    order: str
    """Names of the views in the order in which they are shown."""


class Zoom(Staged[ZoomState]):
    """Order views of one picture by how close they are.

    The six views show one picture around the same center, each magnified differently. Order them
    from the widest view, in which things look smallest, to the closest. The views are then shown in
    your order, row by row, and keep their letters.

    An action is all six letters in order, such as "C A F B E D".
    """

    difficulty = ("percent by which each view is closer than the one before", 60, 35, 20, 10)
    options = tuple(" ".join(_GUESSES.sample(_NAMES, len(_NAMES))) for _ in range(12))

    def create(self, rng: random.Random, size: int) -> ZoomState:
        """Draw a picture, and an order that is not the one shown first."""
        ranks = tuple(range(len(_NAMES)))
        while ranks == tuple(sorted(ranks)):
            ranks = tuple(rng.sample(range(len(_NAMES)), len(_NAMES)))
        return ZoomState(art=rng.randrange(2**31), percent=size, ranks=ranks, order=_NAMES)

    def draw(self, state: ZoomState, canvas: Canvas, look: Look) -> None:
        """Draw the views in three columns and two rows."""
        gap, top = (SIDE - 3 * _VIEW) / 4, (SIDE - 2 * _VIEW - 60) / 2
        for place, name in enumerate(state.order):
            row, column = divmod(place, 3)
            left, upper = gap + (_VIEW + gap) * column, top + 22 + (_VIEW + 38) * row
            view = art(state.art, canvas.pixels(_VIEW), side=_side(state, name), is_deep=True)
            canvas.paste(colored(view, look), left, upper)
            right, lower = left + _VIEW, upper + _VIEW
            canvas.box(left - 1, upper - 1, right + 1, lower + 1, line=look.ink)
            badge(canvas, left + _VIEW / 2, upper - 12, name, look, size=16)

    def tell(self, state: ZoomState) -> str:
        """Write each view as letters."""
        told = [LEGEND]
        for name in state.order:
            view = art(state.art, _VIEW, side=_side(state, name), is_deep=True)
            told.append("\n".join((f"View {name}:", *letters(view, _ZOOM_TOLD))))
        return "\n".join(told)

    def act(self, state: ZoomState, action: str) -> Outcome[ZoomState]:
        """Show the views in another order."""
        order = different_letters(action, _NAMES)
        if order is None or len(order) != len(_NAMES):
            return Outcome(state=state, error="an action is each of the letters A to F once")
        return Outcome(state=replace(state, order=order), text="The views are in your order.")

    def progress(self, state: ZoomState) -> float:
        """Return the part of the views that are in place."""
        pairs = zip(state.order, _right(state), strict=True)
        return sum(one == other for one, other in pairs) / len(_NAMES)

    def plan(self, state: ZoomState) -> list[str]:
        """Return the right order."""
        return [] if self.is_solved(state) else [" ".join(_right(state))]

    def goal(self, state: ZoomState) -> ZoomState:
        """Return the views in the right order."""
        return replace(state, order=_right(state))


def _right(state: ZoomState) -> str:
    return "".join(sorted(_NAMES, key=lambda name: state.ranks[_NAMES.index(name)]))


def _side(state: ZoomState, name: str) -> float:
    """Return the part of the picture that a view shows."""
    return (1 + state.percent / 100) ** -state.ranks[_NAMES.index(name)]
