"""Measure what a fixed answer earns on reasoning-gym's datasets at their default settings.

    python scripts/reasoning_gym/fixed_answers.py coin_flip gcd --tasks 200

Prints the best answer of each dataset and its mean score. Candidates are short constants and the
most frequent right answers of other tasks. `envkit_reasoning_gym.names.FIXED_ANSWERS` holds the
datasets where it earns at least 0.1. Without names, all are measured, which takes hours because
some graders need seconds per answer.
"""
# ruff: noqa: T201  # a script prints its figures

import argparse
import warnings
from collections import Counter

from envkit_reasoning_gym.names import member_ids
from envkit_reasoning_gym.source import DatasetTasks

_CONSTANTS = ("", "0", "1", "2", "-1", "0, 0", "[]", "yes", "no", "True", "False", "A", "x", "4*6")
_LEARNED = 6


def best_fixed_answer(name: str, tasks: int) -> tuple[str, float]:
    """Return the best answer and its mean score over a number of tasks."""
    source = DatasetTasks(name, seed=0, size=2 * tasks, level=None, config={})
    right = (source.stated_answer({"index": index}) for index in range(tasks, 2 * tasks))
    frequent = Counter(answer for answer in right if answer is not None)
    candidates = [*_CONSTANTS, *(answer for answer, _ in frequent.most_common(_LEARNED))]
    entries = [source.entry({"index": index}) for index in range(tasks)]
    scores = {
        answer: sum(source.score(answer, entry).score for entry in entries) / tasks
        for answer in dict.fromkeys(candidates)
    }
    best = max(scores, key=scores.__getitem__)
    return best, scores[best]


def main() -> None:
    """Print a line per dataset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="*")
    parser.add_argument("--tasks", type=int, default=200)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.datasets or [member.removesuffix("-v0") for member in member_ids()]:
        answer, score = best_fixed_answer(name, arguments.tasks)
        print(f"{name}\t{score:.3f}\t{answer!r}", flush=True)


if __name__ == "__main__":
    main()
