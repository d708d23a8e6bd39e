"""`envkit export`: an environment's tasks, or a run's trajectories, as a dataset."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import note, say
from envkit.cli.counting import CountingBar
from envkit.cli.examples import with_examples
from envkit.cli.options import Overwrite, parse_env_kwargs
from envkit.cli.trust import check_rows
from envkit.errors import ConfigurationError
from envkit.registration import registry
from envkit.rollout.request import read_requests
from envkit_exchange.inspect_log import export_inspect
from envkit_exchange.tables import SUFFIXES, check_target
from envkit_exchange.task_rows import TaskFormat
from envkit_exchange.tasks import TaskDraw, export_tasks
from envkit_exchange.trajectories import Selection, TrajectoryFormat, export_trajectories


class ExportFormat(StrEnum):
    """The values of --format: `TaskFormat`, `TrajectoryFormat` and `inspect`."""

    SLIME = "slime"
    MILES = "miles"
    VERL = "verl"
    SKYRL = "skyrl"
    TRL = "trl"
    JSONL = "jsonl"
    HF = "hf"
    SFT = "sft"
    PARQUET = "parquet"
    INSPECT = "inspect"


_TRAJECTORIES: Final = (ExportFormat.SFT, ExportFormat.PARQUET, ExportFormat.INSPECT)
_TASKS_PANEL: Final = "Tasks (slime, miles, verl, skyrl, trl, jsonl, hf)"
_ROWS_PANEL: Final = "Trajectories (sft, parquet, hf, inspect)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(CommandOptions):
    """The options of `envkit export`."""

    source: Annotated[
        str,
        typer.Argument(
            metavar="ID_OR_FILE", help="An environment id, a run, or a trajectory file."
        ),
    ]
    kind: Annotated[ExportFormat, typer.Option("--format", help="Format of the rows.")]
    out: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="A .parquet or .jsonl file; .eval for inspect, a folder for hf."
        ),
    ]
    count: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="Number of tasks.", rich_help_panel=_TASKS_PANEL),
    ] = None
    start: Annotated[
        int | None,
        typer.Option(min=0, help="Index of the first task.", rich_help_panel=_TASKS_PANEL),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the tasks (default: 0).", rich_help_panel=_TASKS_PANEL),
    ] = None
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the split, such as train or test.",
            rich_help_panel=_TASKS_PANEL,
        ),
    ] = None
    with_images: Annotated[
        bool,
        typer.Option(
            "--with-images", help="Write the first images too.", rich_help_panel=_TASKS_PANEL
        ),
    ] = False
    env_kwargs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An argument of the environment, its value as JSON or plain text; repeatable.",
            rich_help_panel=_TASKS_PANEL,
        ),
    ] = None
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own tasks, one JSON object per line, instead of the environment's.",
            rich_help_panel=_TASKS_PANEL,
        ),
    ] = None
    min_reward: Annotated[
        float | None,
        typer.Option(help="Skip episodes that scored less.", rich_help_panel=_ROWS_PANEL),
    ] = None
    only_terminated: Annotated[
        bool,
        typer.Option(
            "--only-terminated",
            help="Skip episodes that the environment did not end.",
            rich_help_panel=_ROWS_PANEL,
        ),
    ] = False
    steps: Annotated[
        bool, typer.Option("--steps", help="One row per turn.", rich_help_panel=_ROWS_PANEL)
    ] = False
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="One row per run of turns that extend each other.",
            rich_help_panel=_ROWS_PANEL,
        ),
    ] = False
    overwrite: Overwrite = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False


@with_examples(
    "export geo3k-v0 --format verl --rows 1000 --out train.parquet",
    "export runs/oracle --format sft --min-reward 1 --out sft.jsonl",
    "export runs/oracle --format inspect --out oracle.eval",
    group="Train",
)
@takes(ExportOptions)
def export(given: ExportOptions) -> None:
    """Write tasks for a trainer's loader, trajectories with exact tokens, or an Inspect log.

    --out appears only once complete, never as a partial file.
    """
    _check_target(given.out, given.kind, overwrite=given.overwrite)
    if given.kind in _TRAJECTORIES or (
        given.kind is ExportFormat.HF and Path(given.source).exists()
    ):
        given.refuse_panel(_TASKS_PANEL, "an export of trajectories does not use")
        _refuse_environment(given.source, given.kind)
        if given.steps and given.merge:
            raise ConfigurationError(
                "--steps writes one row per turn and --merge joins them: choose one"
            )
        if given.kind is ExportFormat.INSPECT and (given.steps or given.merge):
            raise ConfigurationError("an Inspect log has no rows: drop --steps and --merge")
        selection = Selection(
            min_reward=given.min_reward,
            only_terminated=given.only_terminated,
            only_trained=given.kind is ExportFormat.SFT,
            steps=given.steps,
            merge=given.merge,
        )
        _export_trajectories(given.source, given.out, given.kind, selection, is_quiet=given.quiet)
        return
    given.refuse_panel(_ROWS_PANEL, "an export of tasks does not use")
    arguments = parse_env_kwargs(given.env_kwargs)
    listed = None if given.tasks is None else read_requests(given.tasks, given.source)
    if given.tasks is not None and listed:
        check_rows(given.tasks, arguments, listed[0].env_kwargs)
    with TaskDraw(
        given.source,
        count=given.count,
        start=given.start,
        seed=given.seed or 0,
        split=given.split,
        env_kwargs=arguments,
        tasks=listed,
    ) as draw:
        _export_tasks(
            draw, given.out, given.kind, with_images=given.with_images, is_quiet=given.quiet
        )


def _refuse_environment(source: str, kind: ExportFormat) -> None:
    if source in registry() and not Path(source).exists():
        raise ConfigurationError(
            f"--format {kind.value} takes a run or its file, got the environment {source!r}: first "
            f"run envkit rollout {source}"
        )


def _export_trajectories(
    source: str, out: Path, kind: ExportFormat, selection: Selection, *, is_quiet: bool
) -> None:
    with CountingBar("trajectories", is_quiet=is_quiet) as bar:
        tally = (
            export_inspect(source, out, selection, progress=bar.show)
            if kind is ExportFormat.INSPECT
            else export_trajectories(
                source, out, TrajectoryFormat(kind.value), selection, progress=bar.show
            )
        )
    for reason, number in tally.left_out.most_common():
        note(f"skipped {number} {reason}")
    what = "samples" if kind is ExportFormat.INSPECT else "rows"
    say(f"{out}: {tally.rows} {what} of {tally.trajectories} trajectories")


def _export_tasks(
    draw: TaskDraw, out: Path, kind: ExportFormat, *, with_images: bool, is_quiet: bool
) -> None:
    with CountingBar("tasks", is_quiet=is_quiet) as bar:
        rows = export_tasks(
            draw, out, TaskFormat(kind.value), with_images=with_images, progress=bar.show
        )
    say(f"{out}: {rows} tasks")


def _check_target(out: Path, kind: ExportFormat, *, overwrite: bool) -> None:
    suffixes = (".eval",) if kind is ExportFormat.INSPECT else SUFFIXES
    is_folder = kind is ExportFormat.HF
    check_target(out, is_folder=is_folder, overwrite=overwrite, suffixes=suffixes)
