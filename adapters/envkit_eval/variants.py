"""Variants of an evaluation: the same tasks with different wrappers, compared with the first."""

import itertools
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envkit.cli.console import say, table
from envkit.cli.options import parse_wraps
from envkit.cli.run_plan import RolloutPlan
from envkit.errors import ConfigurationError
from envkit.secrets import stored
from envkit.wrappers.named import TASK_WRAPPERS
from envkit_eval.paired import Difference, PairedEpisode, Side, compare
from envkit_eval.paired_page import TESTS, row_of

Wraps = Mapping[str, Mapping[str, Any]]
"""Arguments of each wrapper by name, the innermost first."""
NONE: Final = "none"
_LONGEST: Final = 200
"""Characters of a folder's name before its number; most file systems allow 255."""
_PLUS: Final = re.compile(r"\+(?=\s*[a-z])")
"""Separates the wrappers of a variant; the sign of a number, as in 1e+3, does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantDifference:
    """What a variant changes in an environment."""

    first: str
    """Label of the first variant."""
    first_run: str
    """The folder of its run."""
    variant: str
    run: str
    difference: Difference
    """The variant minus the first."""


def combinations(given: Sequence[str]) -> list[Wraps]:
    """Return the variants of `wrap=A|B` options: each combination of one value of each.

    Raises:
        ConfigurationError: An option is not of that form, a combination occurs twice, or there is
            only one.
    """
    choices: list[list[Wraps]] = []
    for one in given:
        name, separator, rest = one.partition("=")
        values = [value.strip() for value in rest.split("|")]
        if name.strip() != "wrap" or not separator or not all(values):
            raise ConfigurationError(
                f"--vary takes wrap=A|B, such as 'wrap=none|blank-image', got {one!r}"
            )
        choices.append([_wraps(value) for value in values])
    variants = [joined(*parts) for parts in itertools.product(*choices)]
    for number, one in enumerate(variants):
        if any(list(one.items()) == list(other.items()) for other in variants[:number]):
            raise ConfigurationError(f"--vary gives {label_of(one)} twice: name each variant once")
    if given and len(variants) == 1:
        raise ConfigurationError(
            f"--vary compares variants with the first, got only {label_of(variants[0])}: add "
            "another, such as none, or use --wrap"
        )
    return variants


def joined(*parts: Wraps) -> Wraps:
    """Return wrappers in one mapping.

    Raises:
        ConfigurationError: A wrapper is in several.
    """
    names = Counter(name for part in parts for name in part)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ConfigurationError(f"a variant takes each wrapper once, got {twice[0]!r} twice")
    return {name: arguments for part in parts for name, arguments in part.items()}


def check_tasks(wraps: Wraps) -> None:
    """Reject wrappers with which variants would not play the same tasks.

    Raises:
        ConfigurationError: One chooses other tasks.
    """
    other = next((name for name in wraps if name in TASK_WRAPPERS), None)
    if other is not None:
        raise ConfigurationError(
            f"--vary compares variants on the same tasks, and {other} chooses other tasks for the "
            "same seeds: leave it out, or evaluate it separately"
        )


def label_of(wraps: Wraps) -> str:
    """Return wrappers as --vary writes them, without secrets."""
    parts = (
        name
        + ":" * bool(given)
        + ",".join(f"{key}={value}" for key, value in stored(dict(given)).items())
        for name, given in wraps.items()
    )
    return "+".join(parts) or NONE


def folder_of(env_id: str, variant: Wraps, *, is_only: bool, taken: Container[str]) -> str:
    """Return the name of a run's folder.

    Args:
        env_id: The environment.
        variant: Its wrappers.
        is_only: Whether it is the only variant.
        taken: Names of the other folders.
    """
    name = env_id.replace("/", "-")
    if not is_only:
        name += "-" + re.sub(r"[^A-Za-z0-9.=+_-]+", "-", label_of(variant))
    name = name[:_LONGEST]
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in taken)


def labels_of(runs: Mapping[str, RolloutPlan]) -> dict[str, str]:
    """Return the labels of runs that share their environment with another, by folder name."""
    counts = Counter(run.env_id for run in runs.values())
    return {
        name: f"{run.env_id} {label_of(run.wraps)}"
        for name, run in runs.items()
        if counts[run.env_id] > 1
    }


def compare_variants(
    runs: Mapping[str, RolloutPlan], episodes: Mapping[str, Sequence[PairedEpisode]]
) -> tuple[list[VariantDifference], list[str]]:
    """Return what each variant changes, compared with the first of its environment.

    Args:
        runs: All runs by folder name.
        episodes: Those of each run that `labels_of` names.

    Returns:
        The differences, and why each of the other variants did not play the same tasks.
    """
    found: list[VariantDifference] = []
    refused: list[str] = []
    first: dict[str, str] = {}
    for name in labels_of(runs):
        baseline = first.setdefault(runs[name].env_id, name)
        if name == baseline:
            continue
        sides = [Side(name=one, episodes=episodes[one], env_kwargs={}) for one in (baseline, name)]
        try:
            differences = compare(*sides, by=()).differences
        except ConfigurationError as error:
            refused.append(str(error))
            continue
        found += [
            VariantDifference(
                first=label_of(runs[baseline].wraps),
                first_run=baseline,
                variant=label_of(runs[name].wraps),
                run=name,
                difference=one,
            )
            for one in differences
            if one.tag is None
        ]
    return found, refused


def show_variants(compared: Sequence[VariantDifference]) -> None:
    """Write a table of what the variants change."""
    if not compared:
        return
    columns = ("", "tasks", "success", "reward", "turns", "tokens out", *TESTS)
    rows = [
        [f"{one.difference.env_id} {one.variant} minus {one.first}", *row_of(one.difference)[1:]]
        for one in compared
    ]
    table(columns, rows)
    say("paired by task; brackets: 95% bootstrap intervals; p: exact test on tasks")


def _wraps(value: str) -> Wraps:
    names = [one.strip() for one in _PLUS.split(value)]
    if NONE in names and len(names) > 1:
        raise ConfigurationError(
            f"the variant none has no wrappers, so --vary cannot add it to others, got {value!r}: "
            "leave +none out, or write A|none for two variants"
        )
    return {} if names == [NONE] else parse_wraps(names)
