"""`envkit rollout`: play many episodes and record them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from envkit.cli.command_options import BESIDE_RESUME, takes
from envkit.cli.options import Overwrite, complete_id, complete_sink
from envkit.cli.play_options import RESUMED, PlayOptions
from envkit.cli.sinks import parse_sinks

if TYPE_CHECKING:
    from envkit.cli.run_plan import Output, RolloutPlan

_EPISODES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions(PlayOptions):
    """The options of `envkit rollout`."""

    env_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="An environment id; see `envkit list`. Not with --resume.",
            autocompletion=complete_id,
        ),
    ] = None
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--episodes",
            min=1,
            help=f"Total episodes (default: {_EPISODES}, with --tasks one per task).",
        ),
    ] = None
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tasks to play, each by one group: one JSON object per line, or the rows of "
            "`envkit export` and `envkit filter`.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory (default: runs/ID-ENGINE-seedN)."),
    ] = None
    overwrite: Overwrite = False
    sink: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Also send the episodes to a sink, such as parquet=FILE; repeatable.",
            autocompletion=complete_sink,
        ),
        BESIDE_RESUME,
    ] = None
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Complete an interrupted run: resume unfinished episodes, play missing ones.",
        ),
        BESIDE_RESUME,
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Play one of N parts of the run, I from 0 to N - 1; `envkit merge` joins them.",
        ),
    ] = None


@takes(RolloutOptions)
def rollout(given: RolloutOptions) -> None:
    """Play episodes with a model, a server or a scripted policy.

    The run directory gets run.json, trajectories.jsonl, images/, metrics.json, report.html and
    vocabulary.json. The first Ctrl-C, SIGTERM or SIGHUP ends running episodes early and stores
    them; the second does not wait for running calls. --resume completes the run; so does the same
    command if it has --resume-or-start.
    """
    from envkit.cli.run_plan import Output, RolloutPlan
    from envkit.cli.run_rollout import run_rollout

    output = Output.JSON if given.as_json else Output.TABLE
    given.check_retry_faults(given.resume)
    if given.resume is None:
        plan = _new_plan(given, output)
    else:
        given.refuse(RESUMED, besides=BESIDE_RESUME)
        plan = RolloutPlan.resumed(given.resume, given.confirmation(), base_url=given.base_url)
        plan = replace(
            plan,
            config=given.on_workers(plan.config),
            sinks=parse_sinks(given.sink),
            is_quiet=given.quiet,
            output=output,
            retry_faults=given.retry_faults,
        )
    raise typer.Exit(run_rollout(plan))


def _new_plan(given: RolloutOptions, output: "Output") -> "RolloutPlan":
    from envkit.cli.run_plan import RolloutPlan
    from envkit.cli.trust import check_rows
    from envkit.rollout import EpisodeRequest, RunPlan, Shard, read_requests

    if given.trust and given.tasks is None:
        raise typer.BadParameter("--trust confirms what a run or its tasks name: add --resume DIR")
    config = given.rollout_config(env_id=given.env_id)
    if config.env_id is None:
        raise typer.BadParameter("name an environment, or an interrupted run with --resume")
    requests: tuple[EpisodeRequest, ...] = ()
    if given.tasks is not None:
        requests = read_requests(given.tasks, config.env_id)
        shared = requests[0].env_kwargs
        check_rows(given.tasks, config.env_kwargs, shared, trusted=given.trust or ())
        config = replace(config, env_kwargs={**shared, **config.env_kwargs})
    plan = RolloutPlan.of_options(
        given,
        config,
        given.choice(),
        RunPlan(
            episodes=given.count or len(requests) * (given.group or 1) or _EPISODES,
            group_size=given.group or 1,
            shard=Shard() if given.shard is None else Shard.parse(given.shard),
        ),
        sinks=parse_sinks(given.sink),
        out=given.out,
        overwrite=given.overwrite,
        output=output,
    )
    return plan if given.tasks is None else plan.with_tasks(given.tasks, requests)
