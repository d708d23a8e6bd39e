"""What must be remembered from picture to picture: balls under cups, and cards."""

import random
from dataclasses import replace
from itertools import combinations, permutations

from envkit_visual.canvas import COLORS, SHAPE_NAMES, SIDE, Canvas, Look
from envkit_visual.scenes.scene import COLOR_NAMES, outlined
from envkit_visual.world import ChoiceWorld, Outcome, Record, plain

_CUPS = 7
_FLOOR = 330
_STEP = SIDE / _CUPS


class ShellsState(Record):
    """Places of the red and the blue ball, the swaps, and how many of them were shown."""

    start: tuple[int, int]
    swaps: tuple[tuple[int, int], ...]
    shown: int = 0
    guess: tuple[int, int] | None = None


class Shells(ChoiceWorld[ShellsState]):
    """Follow two balls under cups that swap places.

    7 cups stand in a row; the places are numbered from the left. The first picture shows under
    which cups a red and a blue ball lie. Each further picture shows one swap: the two cups with
    arrows change places, and a ball moves with its cup. Look at all swaps, then name the places of
    both balls. There is one guess.

    An action is next, for the next swap, or after the last swap the place of the red ball and the
    place of the blue ball, such as 3 1.
    """

    difficulty = ("number of swaps", 3, 6, 10, 16)
    chance = 1 / (_CUPS * (_CUPS - 1))
    options = ("next", *(f"{red} {blue}" for red, blue in permutations(range(1, _CUPS + 1), 2)))
    refusal = "an action is next, or two places such as 3 1"

    def create(self, rng: random.Random, size: int) -> ShellsState:
        """Draw swaps, most of which move a ball."""
        red, blue = rng.sample(range(1, _CUPS + 1), 2)
        places, swaps = (red, blue), list[tuple[int, int]]()
        while len(swaps) < size:
            first = rng.choice(places) if rng.random() < 0.6 else rng.randint(1, _CUPS)
            second = rng.choice([place for place in range(1, _CUPS + 1) if place != first])
            swap = (min(first, second), max(first, second))
            if swap not in swaps[-1:]:
                swaps.append(swap)
                places = _moved(places, swap)
        return ShellsState(start=(red, blue), swaps=tuple(swaps))

    def draw(self, state: ShellsState, canvas: Canvas, look: Look) -> None:
        """Draw the cups, with the balls before the first swap and arrows after it."""
        cup = COLORS[next(name for name in look.accents if name not in ("red", "blue"))]
        balls = dict(zip(state.start, ("red", "blue"), strict=True)) if state.shown == 0 else {}
        for place in range(1, _CUPS + 1):
            x, foot = (place - 0.5) * _STEP, _FLOOR - 58 * (place in balls)
            corners = ((x - 19, foot - 60), (x + 19, foot - 60), (x + 26, foot), (x - 26, foot))
            canvas.polygon(corners, fill=cup, line=look.ink, width=2)
            if place in balls:
                canvas.disc(x, _FLOOR - 18, 17, fill=COLORS[balls[place]], line=look.ink, width=2)
            canvas.text(x, _FLOOR + 26, str(place), color=look.ink, size=24)
        canvas.path(((6, _FLOOR + 3), (SIDE - 6, _FLOOR + 3)), color=look.ink, width=3)
        total = len(state.swaps)
        title = f"Swap {state.shown} of {total}" if state.shown else f"Start, {total} swaps to come"
        canvas.text(SIDE / 2, 40, title, color=look.ink, size=24)
        if state.shown:
            _draw_swap(canvas, look, state.swaps[state.shown - 1])

    def tell(self, state: ShellsState) -> str:
        """Say where the balls are, or which cups are swapped."""
        total = len(state.swaps)
        if state.shown:
            first, second = state.swaps[state.shown - 1]
            return f"Swap {state.shown} of {total}: cups {first} and {second}"
        red, blue = state.start
        return f"Red ball under cup {red}, blue ball under cup {blue}; {total} swaps to come"

    def play(self, state: ShellsState, choice: str) -> Outcome[ShellsState]:
        """Show the next swap, or take the guess."""
        is_last = state.shown == len(state.swaps)
        if choice == "next":
            if is_last:
                return Outcome(state=state, text="That was the last swap.")
            return Outcome(state=replace(state, shown=state.shown + 1), text="Here is a swap.")
        if not is_last:
            return Outcome(state=state, text="There are more swaps to look at before the guess.")
        red, blue = map(int, choice.split())
        return Outcome(state=replace(state, guess=(red, blue)), text="Guessed.")

    def is_over(self, state: ShellsState) -> bool:
        """Return whether a guess was taken."""
        return state.guess is not None

    def progress(self, state: ShellsState) -> float:
        """Return the part of the actions that is done, or whether the guess is right."""
        if self.is_over(state):
            return float(state.guess == _end(state))
        return state.shown / (len(state.swaps) + 1)

    def plan(self, state: ShellsState) -> list[str]:
        """Return the swaps to come, and the places at the end."""
        if self.is_over(state):
            return []
        red, blue = _end(state)
        return [*["next"] * (len(state.swaps) - state.shown), f"{red} {blue}"]


def _draw_swap(canvas: Canvas, look: Look, swap: tuple[int, int]) -> None:
    """Draw an arrow from each of two cups to the other, one above the other."""
    left, right = ((place - 0.5) * _STEP for place in swap)
    top, color = _FLOOR - 64, look.ink
    for start, end, height in ((left - 8, right + 8, 150), (right - 8, left + 8, 90)):
        level = top - height
        canvas.path(((start, top), (start, level), (end, level)), color=color, width=3)
        canvas.arrow((end, level), (end, top), color=color, width=3, head=14)


def _moved(places: tuple[int, int], swap: tuple[int, int]) -> tuple[int, int]:
    trade = {swap[0]: swap[1], swap[1]: swap[0]}
    return trade.get(places[0], places[0]), trade.get(places[1], places[1])


def _end(state: ShellsState) -> tuple[int, int]:
    """Return the places of the balls after all swaps."""
    places = state.start
    for swap in state.swaps:
        places = _moved(places, swap)
    return places


_COLUMNS = {6: 4, 8: 4, 10: 5, 15: 6}
_EDGE = 34
"""Room for the labels of rows and columns."""


class PairsState(Record):
    """Cards row by row, and what is known of them."""

    columns: int
    cards: tuple[str, ...]
    seen: tuple[bool, ...]
    found: tuple[bool, ...]
    up: tuple[int, ...] = ()
    """The two cards that lie face up for now."""


class Pairs(ChoiceWorld[PairsState]):
    """Find the pairs among cards that lie face down.

    The picture shows cards, two of them face up at first. Every card has exactly one partner with
    the same colour and shape. Turn over two cards at a time. A pair stays face up. Two other cards
    are shown in one picture and are then face down again, so remember them. Find all pairs. A cell
    is named by the letter of its row and the number of its column.

    An action is two cells, such as A1 C3.
    """

    difficulty = ("number of pairs", 6, 8, 10, 15)
    refusal = "an action is two different cells of the picture, such as A1 C3"

    def create(self, rng: random.Random, size: int) -> PairsState:
        """Deal cards, again if turning them over in order finds too many pairs by luck.

        Whoever remembers every card needs at most two turns a pair, which is then less than the
        budget.
        """
        columns = _COLUMNS.get(size, 6)
        while True:
            names = rng.sample([f"{c} {s}" for c in COLOR_NAMES for s in SHAPE_NAMES], size)
            cards = names * 2
            rng.shuffle(cards)
            hidden = (False,) * len(cards)
            dealt = PairsState(columns=columns, cards=tuple(cards), seen=hidden, found=hidden)
            state = _turned(dealt, *rng.sample(range(len(cards)), 2))
            if not any(state.found) and 2 * len(self.plan(state)) >= 3 * size:
                return state

    def draw(self, state: PairsState, canvas: Canvas, look: Look) -> None:
        """Draw the cards and the names of rows and columns."""
        rows = -(-len(state.cards) // state.columns)
        step = (SIDE - _EDGE - 6) / max(rows, state.columns)
        back = COLORS[look.accents[0]]
        for at in range(max(rows, state.columns)):
            middle = _EDGE + step * (at + 0.5)
            if at < state.columns:
                canvas.text(middle, 17, str(at + 1), color=look.ink, size=20)
            if at < rows:
                canvas.text(17, middle, "ABCDEF"[at], color=look.ink, size=20)
        for at, card in enumerate(state.cards):
            left, top = (_EDGE + step * steps for steps in divmod(at, state.columns)[::-1])
            corners = (left + 3, top + 3, left + step - 3, top + step - 3)
            fill = (255, 255, 255) if _is_up(state, at) else back
            canvas.box(*corners, fill=fill, line=look.ink, width=2)
            if _is_up(state, at):
                color, shape = card.split()
                x, y = left + step / 2, top + step / 2
                outlined(canvas, look, shape, x, y, step * 0.27, color)

    def tell(self, state: PairsState) -> str:
        """List the cells."""
        seen = [card if _is_up(state, at) else "face down" for at, card in enumerate(state.cards)]
        return "\n".join(f"{_cell(state, at)}: {card}" for at, card in enumerate(seen))

    def act(self, state: PairsState, action: str) -> Outcome[PairsState]:
        """Turn over two cards, named in any order."""
        return super().act(state, " ".join(sorted(plain(action).split())))

    def play(self, state: PairsState, choice: str) -> Outcome[PairsState]:
        """Turn over two cards."""
        turned = [at for at in range(len(state.cards)) if _cell(state, at) in choice]
        return Outcome(state=_turned(state, *turned), text="Both cards are face up now.")

    def progress(self, state: PairsState) -> float:
        """Return the part of the cards that is found."""
        return sum(state.found) / len(state.found)

    def plan(self, state: PairsState) -> list[str]:
        """Return the turns of a player who remembers every card, but does not peek."""
        names = list[str]()
        while not all(state.found):
            first, second = _next(state)
            names.append(f"{_cell(state, first)} {_cell(state, second)}")
            state = _turned(state, first, second)
        return names

    def choices(self, state: PairsState) -> list[str]:
        """Return every two cells."""
        cells = [_cell(state, at) for at in range(len(state.cards))]
        return [f"{first} {second}" for first, second in combinations(cells, 2)]


def _is_up(state: PairsState, at: int) -> bool:
    return state.found[at] or at in state.up


def _cell(state: PairsState, at: int) -> str:
    return f"{'ABCDEF'[at // state.columns]}{at % state.columns + 1}"


def _turned(state: PairsState, first: int, second: int) -> PairsState:
    up = tuple(sorted((first, second)))
    is_pair = state.cards[first] == state.cards[second]
    seen = tuple(one or at in up for at, one in enumerate(state.seen))
    found = tuple(one or (is_pair and at in up) for at, one in enumerate(state.found))
    return replace(state, seen=seen, found=found, up=up)


def _next(state: PairsState) -> tuple[int, int]:
    """Return a known pair; without one, two cards that nobody saw, or the last and its partner."""
    seen, unseen = dict[str, int](), list[int]()
    for at, card in enumerate(state.cards):
        if not state.found[at] and not state.seen[at]:
            unseen.append(at)
        elif not state.found[at]:
            if card in seen:
                return seen[card], at
            seen[card] = at
    return unseen[0], unseen[1] if len(unseen) > 1 else next(iter(seen.values()))
