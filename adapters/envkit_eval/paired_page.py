"""`envkit eval A B --paired`: two runs or evaluations of the same tasks."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import typer

from envkit.cli.console import say, say_json, table
from envkit.cli.run_plan import Output
from envkit.success import UNDECLARED
from envkit_eval import Comparison, Difference, compare, read_side
from envkit_eval.figures import with_interval

TESTS: Final = ("better", "worse", "tied", "p", "left out")
"""Last columns of a row."""
_LISTED: Final = 20
"""Maximum changed outcomes shown."""


def show_comparison(
    targets: Sequence[str], *, by: Sequence[str], threshold: float | None, output: Output
) -> None:
    """Write what changed from the first target to the second.

    Args:
        targets: Two runs or evaluations.
        by: Tags that differences are grouped by.
        threshold: Rewards from this on count as solved; None uses what the runs recorded.
        output: A table or JSON.

    Raises:
        BadParameter: Other than two targets.
        ConfigurationError: The targets did not play the same tasks.
        StorageError: One of them cannot be read.
    """
    if len(targets) != 2:
        raise typer.BadParameter(
            f"--paired compares two runs or evaluations, got {len(targets)}: "
            "envkit eval BEFORE AFTER --paired"
        )
    first, second = (read_side(Path(one), by=by, threshold=threshold) for one in targets)
    found = compare(first, second, by=by)
    if output is Output.JSON:
        say_json({"first": first.name, "second": second.name, **asdict(found)})
        return
    say(f"A: {first.name}")
    say(f"B: {second.name}")
    _show(found)


def _show(found: Comparison) -> None:
    columns = ("B minus A", "tasks", "success", "reward", "turns", "tokens out")
    table((*columns, *TESTS), [row_of(line) for line in found.differences])
    test = (
        "McNemar's exact test"
        if all(line.is_mcnemar for line in found.differences)
        else "exact sign test on tasks"
    )
    say(f"brackets: 95% paired bootstrap intervals over tasks; p: {test}")
    for line in found.differences:
        if line.tag is None and line.success is None and line.reward is not None:
            say(f"{line.env_id}: success is undefined, because {UNDECLARED}")
    for flip in found.changed_outcomes[:_LISTED]:
        what = "now solved" if flip.now_solved else "now failed"
        say(f"{what}: {flip.env_id} seed {flip.seed} ({flip.first}, {flip.second}) {flip.excerpt}")
    hidden = len(found.changed_outcomes) - _LISTED
    if hidden > 0:
        say(f"and {hidden} other changed outcomes; --json has them all")


def row_of(line: Difference) -> list[str]:
    """Return the cells of a difference."""
    name = line.env_id if line.tag is None else f"  {line.tag} {line.value}"
    tests = [str(line.better), str(line.worse), str(line.tied), f"{line.p_value:.3g}"]
    return [
        name,
        "0" if line.reward is None else str(line.reward.seeds),
        with_interval(line.success, factor=100, digits=1, unit="%", sign="+"),
        with_interval(line.reward, sign="+"),
        with_interval(line.turns, digits=2, sign="+"),
        with_interval(line.reply_tokens, digits=1, sign="+"),
        *(["-"] * len(tests) if line.success is None else tests),
        str(line.unpaired),
    ]
