"""`envkit rollout`: play many episodes and record them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from envkit.cli.options import (
    AsJson,
    BaseUrl,
    EngineName,
    EnvKwargs,
    ModelName,
    complete_id,
)
from envkit.cli.playing import (
    CONFIRMING,
    RESUMED,
    AgentCommand,
    AgentPath,
    Concurrency,
    ConfigFile,
    FaultChoice,
    MaxNewTokens,
    MaxTurns,
    Overwrite,
    PolicyName,
    Quiet,
    RayAddress,
    ResumeOrStart,
    RetryFaults,
    RunSeed,
    SettingPairs,
    TaskFile,
    Temperature,
    Trust,
    Workers,
    WrapKwargs,
    WrapName,
    check_retry_faults,
    confirmation_of,
    read_config,
    refuse_options,
)
from envkit.cli.sinks import (
    MetricsPort,
    ParquetFile,
    SinkChoice,
    TensorBoardDir,
    WandbProject,
    WithOtel,
    WithWandb,
)

_EPISODES: Final = 8

_BESIDE_RESUME: Final = {
    "resume", "retry_faults", "base_url", "workers", "ray", "quiet", "as_json",
    "tensorboard", "wandb", "wandb_project", "parquet", "metrics_port", "otel", *CONFIRMING,
}  # fmt: skip


def rollout(
    ctx: typer.Context,
    env_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="An environment id; see `envkit list`. Not with --resume.",
            autocompletion=complete_id,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--episodes",
            min=1,
            help=f"Total episodes (default: {_EPISODES}, with --tasks one per task).",
        ),
    ] = None,
    group: Annotated[
        int | None, typer.Option(min=1, help="Episodes per task; -n must be a multiple.")
    ] = None,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    policy: PolicyName = None,
    seed: RunSeed = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory (default: runs/ID-ENGINE-seedN)."),
    ] = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Complete an interrupted run: resume unfinished episodes, play missing ones.",
        ),
    ] = None,
    trust: Trust = None,
    retry_faults: RetryFaults = False,
    resume_or_start: ResumeOrStart = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Play one of N parts of the run, I from 0 to N - 1; `envkit merge` joins them.",
        ),
    ] = None,
    concurrency: Concurrency = None,
    workers: Workers = None,
    ray: RayAddress = None,
    env_kwargs: EnvKwargs = None,
    tasks: TaskFile = None,
    agent: AgentPath = None,
    agent_command: AgentCommand = None,
    wrap: WrapName = None,
    wrap_kwargs: WrapKwargs = None,
    config: ConfigFile = None,
    settings: SettingPairs = None,
    on_fault: FaultChoice = None,
    max_turns: MaxTurns = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Temperature = None,
    tensorboard: TensorBoardDir = None,
    wandb: WithWandb = False,
    wandb_project: WandbProject = None,
    parquet: ParquetFile = None,
    metrics_port: MetricsPort = None,
    otel: WithOtel = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Play episodes with a model, a server or a scripted policy.

    The run directory gets run.json, trajectories.jsonl, images/, metrics.json and report.html. The
    first Ctrl-C, SIGTERM or SIGHUP ends running episodes early and stores them; the second does not
    wait for running calls. --resume completes the run; so does the same command if it has
    --resume-or-start.
    """
    given = locals()
    from envkit.cli.remote import on_workers
    from envkit.cli.run_plan import Output, RolloutPlan, TaskList
    from envkit.cli.run_rollout import run_rollout
    from envkit.cli.trust import check_rows
    from envkit.rollout.plan import Shard

    sinks = SinkChoice(
        tensorboard=tensorboard,
        wandb=wandb,
        wandb_project=wandb_project,
        parquet=parquet,
        metrics_port=metrics_port,
        otel=otel,
    )
    output = Output.JSON if as_json else Output.TABLE
    check_retry_faults(retry_faults, resume)
    if resume is not None:
        refuse_options(ctx, given, RESUMED, besides=_BESIDE_RESUME)
        plan = RolloutPlan.resumed(resume, confirmation_of(given), base_url=base_url)
        played = on_workers(plan.config, workers, ray)
        raise typer.Exit(
            run_rollout(
                replace(
                    plan,
                    config=played,
                    sinks=sinks,
                    is_quiet=quiet,
                    output=output,
                    retry_faults=retry_faults,
                )
            )
        )
    if trust and tasks is None:
        raise typer.BadParameter("--trust confirms what a run or its tasks name: add --resume DIR")
    read = on_workers(read_config(given, env_id=env_id), workers, ray)
    if read.env_id is None:
        raise typer.BadParameter("name an environment, or an interrupted run with --resume")
    listed = None if tasks is None else TaskList.read(tasks, read.env_id)
    if listed is not None:
        count = count or len(listed.requests) * (group or 1)
        shared = listed.requests[0].env_kwargs
        check_rows(listed.file, read.env_kwargs, shared, trusted=trust or ())
        read = replace(read, env_kwargs={**shared, **read.env_kwargs})
    plan = RolloutPlan.of_options(
        given,
        read,
        tasks=listed,
        episodes=count or _EPISODES,
        group_size=group or 1,
        resume_or_start=resume_or_start,
        shard=Shard() if shard is None else Shard.parse(shard),
        sinks=sinks,
        output=output,
    )
    raise typer.Exit(run_rollout(plan))
