"""`envkit filter`: keep the tasks that a policy solves sometimes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import note, say, say_json
from envkit.cli.counting import CountingBar
from envkit.cli.examples import with_examples
from envkit.cli.options import AsJson, RewardThreshold
from envkit.errors import ConfigurationError, StorageError
from envkit.success import checked_threshold
from envkit_exchange.solve_rates import SolveRates, rows_of, solve_rates
from envkit_exchange.tables import check_target, write_table


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions(CommandOptions):
    """The options of `envkit filter`."""

    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Runs of one environment, finished or not."),
    ]
    out: Annotated[Path, typer.Option(metavar="FILE", help="The kept tasks, a .jsonl file.")]
    above: Annotated[float, typer.Option(help="Keep tasks with a solve rate above this.")] = 0.0
    below: Annotated[float, typer.Option(help="Keep tasks with a solve rate below this.")] = 1.0
    reward_threshold: RewardThreshold = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False
    as_json: AsJson = False


@with_examples(
    "filter runs/base --out kept.jsonl",
    "filter runs/base runs/more --above 0.1 --below 0.9 --out kept.jsonl --json",
    group="Train",
)
@takes(FilterOptions)
def filter_tasks(given: FilterOptions) -> None:
    """Keep the tasks that are neither always nor never solved, for training.

    Rates come from the episodes of the runs, so play each task several times first:
    `envkit rollout ID --tasks FILE --group 8`. Faulted and aborted episodes do not count.
    `envkit rollout --tasks` and `envkit export --tasks` read the file.
    """
    above, below, out = given.above, given.below, given.out
    if not above < below:
        raise ConfigurationError(f"--above must be less than --below, got {above:g} and {below:g}")
    check_target(out, is_folder=False, overwrite=given.overwrite, suffixes=(".jsonl",))
    threshold = checked_threshold(given.reward_threshold)
    with CountingBar("trajectories", is_quiet=given.quiet) as bar:
        rates = solve_rates(given.runs, threshold=threshold, progress=bar.show)
    if not rates.tasks:
        runs = ", ".join(map(str, given.runs))
        raise StorageError(f"{runs}: no episode to filter, got an empty file")
    summary = rates.summary(above, below)
    if given.as_json:
        say_json(summary)
    else:
        _print_summary(rates, summary, above, below)
    count = write_table(rows_of(rates, above, below), out)
    if not given.as_json:
        say(f"{out}: {count} of {summary['tasks']} tasks")


def _print_summary(rates: SolveRates, summary: dict[str, Any], above: float, below: float) -> None:
    for reason, number in rates.left_out.most_common():
        note(f"skipped {number} {reason} episodes")
    if summary["tasks/unscored"]:
        note(f"skipped {summary['tasks/unscored']} tasks without a scored episode")
    say(
        f"solve rate   tasks   (mean {summary['solve_rate/mean']:.3f} over "
        f"{summary['episodes']} episodes)"
    )
    largest = max(1, *summary["histogram"].values())
    for name, count in summary["histogram"].items():
        say(f"{name:<10} {count:>7}   {'#' * round(40 * count / largest)}".rstrip())
    say(
        f"{summary['tasks/low']} at {above:g} or below, {summary['tasks/high']} at {below:g} or "
        f"above, {summary['tasks/kept']} between; 95% intervals of a task are "
        f"{summary['solve_rate/interval_width']:.2f} wide on average"
    )
