"""Which reasoning-gym datasets are environments."""

import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Final, NamedTuple

from envkit.errors import MissingDependencyError

NOT_PLAYED: Final = frozenset({"codeio", "composite", "list_functions"})
"""Excluded: a mixture, which needs a list of other datasets, and two datasets whose items differ
for the same seed (codeio runs programs with their own random generators)."""


class FixedAnswer(NamedTuple):
    """An answer to every question of a dataset."""

    answer: str
    score: float
    """Mean score over 150 tasks, or 40 if the grader is slow."""
    is_lenient: bool = False
    """Whether wrong answers earn most of the score."""


FIXED_ANSWERS: Final[Mapping[str, FixedAnswer]] = MappingProxyType(
    {
        "acre": FixedAnswer("off", 0.47),
        "aiw": FixedAnswer("5", 0.21),
        "binary_alternation": FixedAnswer("-1", 0.23),
        "calendar_arithmetic": FixedAnswer("Saturday", 0.11),
        "circuit_logic": FixedAnswer("0", 0.63),
        "coin_flip": FixedAnswer("0", 0.95, is_lenient=True),
        "color_cube_rotation": FixedAnswer("silver", 0.10),
        "count_bits": FixedAnswer("14", 0.19),
        "course_schedule": FixedAnswer("True", 0.54),
        "family_relationships": FixedAnswer("wife", 0.16),
        "game_of_life": FixedAnswer(str([[0] * 10] * 10), 0.96, is_lenient=True),
        "game_of_life_halting": FixedAnswer("0", 1.0, is_lenient=True),
        "gcd": FixedAnswer("2", 0.33),
        "graph_color": FixedAnswer(
            '{"0": 1, "1": 1, "2": 1, "3": 2, "4": 1, "5": 1, "6": 2, "7": 2, "8": 2, "9": 1}', 0.11
        ),
        "isomorphic_strings": FixedAnswer("True", 0.51),
        "largest_island": FixedAnswer("0", 0.16),
        "letter_counting": FixedAnswer("1", 0.29),
        "mahjong_puzzle": FixedAnswer("Pass", 0.39),
        "maze": FixedAnswer("5", 0.27),
        "mini_sudoku": FixedAnswer("2 3 1 4\n4 1 3 2\n1 4 2 3\n3 2 4 1", 0.23, is_lenient=True),
        "number_sequence": FixedAnswer("0", 0.15),
        "polynomial_equations": FixedAnswer("0", 0.33, is_lenient=True),
        "propositional_logic": FixedAnswer("P \u2228 Q", 0.82),
        "puzzle24": FixedAnswer("6*(10/2 - 1)", 1.0, is_lenient=True),
        "ransom_note": FixedAnswer("False", 0.51),
        "rectangle_count": FixedAnswer("4", 0.44, is_lenient=True),
        "rotten_oranges": FixedAnswer("-1", 0.39),
        "self_reference": FixedAnswer("2", 0.35),
        "shortest_path": FixedAnswer("infeasible", 0.41),
        "sudoku": FixedAnswer(
            "3 2 7 9 1 8 4 5 6\n8 9 4 5 6 2 1 7 3\n1 5 6 7 4 3 8 2 9\n2 1 9 8 3 6 7 4 5\n"
            "7 6 8 4 2 5 3 9 1\n5 4 3 1 9 7 2 6 8\n4 8 2 6 5 1 9 3 7\n"
            "9 7 5 3 8 4 6 1 2\n6 3 1 2 7 9 5 8 4",
            0.12,
            is_lenient=True,
        ),
        "syllogism": FixedAnswer("Yes", 0.73),
        "time_intervals": FixedAnswer("07:05:37.885", 0.38, is_lenient=True),
        "zebra_puzzles": FixedAnswer("bob", 0.33),
    }
)
"""Datasets in which a fixed answer earns 0.1 or more at their default settings.

Measured by `scripts/reasoning_gym/fixed_answers.py` on reasoning-gym 0.1.25.
"""

PAYS_WRONG_ANSWERS: Final = frozenset({"coin_flip", "game_of_life_halting", "puzzle24"})
"""Datasets whose grader gives its full score to wrong answers, so that no score is success."""


def threshold_of(name: str) -> float | None:
    """Return the threshold of an id, `name-v0`: the full score; None if that proves nothing."""
    return None if name.rpartition("-v")[0] in PAYS_WRONG_ANSWERS else 1.0


def factory() -> ModuleType:
    """Import reasoning-gym's factory.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies emit warnings while being compiled
            return import_module("reasoning_gym.factory")
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            "the collection 'reasoning_gym'", "reasoning-gym", "reasoning-gym"
        ) from error


def member_ids() -> Iterator[str]:
    """Yield the ids, without the namespace.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
    """
    for name in sorted(factory().DATASETS):
        if name not in NOT_PLAYED:
            yield f"{name}-v0"
