"""Read numbers, letters and places from text, and worlds that are judged by what was read."""

import re
from abc import abstractmethod

from envkit.marks import Mark
from envkit_visual.canvas import SIDE, Point
from envkit_visual.replies import number_in
from envkit_visual.world import Q, Question


def spot_in(text: str) -> Point | None:
    """Return the point that a text "x, y" is, in units of the picture.

    It is written in thousandths. None if it is not two numbers from 0 to 1000.
    """
    numbers = [number_in(part) for part in text.strip("()[] ").replace(",", " ").split()]
    if len(numbers) != 2 or any(one is None or not 0 <= one <= 1000 for one in numbers):
        return None
    x, y = (SIDE * (one / 1000) for one in numbers if one is not None)
    return x, y


def at(point: Point) -> str:
    """Return a point in units of the picture as actions write it, in thousandths."""
    return ", ".join(str(round(1000 * place / SIDE)) for place in point)


def click_mark(spot: Point | None) -> Mark | None:
    """Return the mark of a click; None without a point."""
    return spot and {"kind": "click", "x": spot[0], "y": spot[1]}


def whole_numbers(text: str, count: int) -> tuple[int, ...] | None:
    """Return the whole numbers that a text is, separated by spaces or commas.

    Args:
        text: Such as "3 -7".
        count: How many there must be; None is returned otherwise.
    """
    numbers = [number_in(part) for part in text.replace(",", " ").split()]
    if len(numbers) != count or any(one is None or one != int(one) for one in numbers):
        return None
    return tuple(int(one) for one in numbers if one is not None)


def different_letters(text: str, known: str) -> str | None:
    """Return the letters that a text is, in capitals and in its order.

    Args:
        text: Such as "A C D", "acd", "A, C, D" or "A > C > D".
        known: The letters there are; None is returned for others and for repeated ones.
    """
    found = re.sub("[, >]", "", text.upper())
    return found if found and set(found) <= set(known) and len(set(found)) == len(found) else None


class NumberQuestion(Question[Q]):
    """A question whose answer is a number."""

    refusal = "the answer is a number"

    @abstractmethod
    def value(self, state: Q) -> float:
        """Return the right number."""

    def slack(self, state: Q) -> float:
        """Return how far an answer may be off."""
        return 0

    def answer(self, state: Q) -> str:
        """Return the right number as text."""
        return f"{self.value(state):g}"

    def read(self, text: str) -> float | None:
        """Return the number."""
        return number_in(text)

    def is_right(self, state: Q, given: str) -> bool:
        """Accept what is close enough."""
        number = self.read(given)
        return number is not None and abs(number - self.value(state)) <= self.slack(state) + 1e-6


class PlaceQuestion(Question[Q]):
    """A question whose answer is a place in the picture."""

    refusal = "the answer is two numbers from 0 to 1000"

    def read(self, text: str) -> Point | None:
        """Return the place in units of the picture."""
        return spot_in(text)

    def mark(self, state: Q, given: str) -> Mark | None:
        """Return a click."""
        return click_mark(spot_in(given))
