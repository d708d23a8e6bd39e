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
    parse_env_kwargs,
)
from envkit.cli.playing import (
    DEFAULT_CONCURRENCY,
    RESUMED,
    Concurrency,
    ConfigFile,
    FaultChoice,
    MaxNewTokens,
    MaxTurns,
    Overwrite,
    PolicyName,
    Quiet,
    RayAddress,
    RunSeed,
    SettingPairs,
    TaskFile,
    Temperature,
    Workers,
    WrapKwargs,
    WrapName,
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


def rollout(
    env_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="An environment; see `envkit list`. Not with --resume.",
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
            help="Complete an interrupted run: continue what is unfinished, play what is missing.",
        ),
    ] = None,
    concurrency: Concurrency = None,
    workers: Workers = None,
    ray: RayAddress = None,
    env_kwargs: EnvKwargs = None,
    tasks: TaskFile = None,
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
    wait for running calls. --resume completes the run.
    """
    from envkit.cli.engines import EngineChoice
    from envkit.cli.remote import on_workers
    from envkit.cli.run_plan import Output, RolloutPlan, TaskList
    from envkit.cli.run_rollout import run_rollout

    sinks = SinkChoice(
        tensorboard=tensorboard,
        wandb=wandb,
        wandb_project=wandb_project,
        parquet=parquet,
        metrics_port=metrics_port,
        otel=otel,
    )
    output = Output.JSON if as_json else Output.TABLE
    if resume is not None:
        fixed = {
            "ID": env_id, "-n": count, "--group": group, "--engine": engine, "--model": model,
            "--policy": policy, "--seed": seed, "--out": out, "--overwrite": overwrite,
            "--concurrency": concurrency, "--env-kwargs": env_kwargs, "--wrap": wrap,
            "--tasks": tasks, "--wrap-kwargs": wrap_kwargs, "--config": config, "--set": settings,
            "--on-fault": on_fault, "--max-turns": max_turns, "--max-new-tokens": max_new_tokens,
            "--temperature": temperature,
        }  # fmt: skip
        refuse_options(RESUMED, fixed)
        plan = RolloutPlan.resumed(
            resume, base_url=base_url, sinks=sinks, is_quiet=quiet, output=output
        )
        plan = replace(plan, config=on_workers(plan.config, workers, ray))
        raise typer.Exit(run_rollout(plan))
    read = read_config(
        config,
        settings,
        env_id=env_id,
        policy=policy,
        seed=seed,
        on_fault=on_fault,
        env_kwargs=env_kwargs,
        max_turns=max_turns,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
    )
    read = on_workers(read, workers, ray)
    played = read.env_id
    if played is None:
        raise typer.BadParameter("name an environment, or an interrupted run with --resume")
    listed = None if tasks is None else TaskList.read(tasks, played)
    if listed is not None:
        count = count or len(listed.requests) * (group or 1)
        shared = listed.requests[0].env_kwargs
        read = replace(read, env_kwargs={**shared, **read.env_kwargs})
    plan = RolloutPlan(
        env_id=played,
        config=read,
        tasks=listed,
        choice=EngineChoice(name=engine, model=model, base_url=base_url, policy=policy),
        episodes=count or _EPISODES,
        group_size=group or 1,
        concurrency=concurrency or DEFAULT_CONCURRENCY,
        wrap=None if wrap is None else wrap.value,
        wrap_kwargs=parse_env_kwargs(wrap_kwargs, option="--wrap-kwargs"),
        sinks=sinks,
        out=out,
        overwrite=overwrite,
        is_quiet=quiet,
        output=output,
    )
    raise typer.Exit(run_rollout(plan))
