"""`envkit rollout`: play many episodes and keep what was played."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

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
from envkit.cli.sinks import (
    MetricsPort,
    ParquetFile,
    SinkChoice,
    TensorBoardDir,
    WandbProject,
    WithOtel,
    WithWandb,
)

if TYPE_CHECKING:
    from envkit.rollout import RolloutConfig

_EPISODES: Final = 8
_CONCURRENCY: Final = 16
_DEFAULT_NEW_TOKENS: Final = 96
"""Long enough for a short calculation and an answer, quick for a small model on two cores."""


class OnFault(StrEnum):
    """The values of --on-fault; those of `envkit.rollout.FaultPolicy`, without importing it."""

    MASK = "mask"
    RETRY = "retry"
    DROP_GROUP = "drop_group"


class Wrap(StrEnum):
    """The values of --wrap; the keys of `envkit.wrappers.WRAPPERS`, without importing it."""

    BLANK_IMAGE = "blank-image"
    BUDGET_TEXT = "budget-text"
    CURRICULUM = "curriculum"
    INJECT_FAULTS = "inject-faults"
    RECORD_EPISODE = "record-episode"
    RESCALE_REWARD = "rescale-reward"
    SWAP_IMAGE = "swap-image"


_SETTINGS: Final = "Settings"


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
            help=f"Episodes in all (default: {_EPISODES}, with --tasks all of them).",
        ),
    ] = None,
    group: Annotated[
        int | None, typer.Option(min=1, help="Episodes per task; -n must be a multiple.")
    ] = None,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A scripted policy of the environment, no model."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same seed gives the same tasks (default: 0).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory (default: runs/ID-ENGINE-seedN)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Complete an interrupted run: continue what is unfinished, play what is missing.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help=f"Episodes at once (default: {_CONCURRENCY}).")
    ] = None,
    env_kwargs: EnvKwargs = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Tasks to play, each by one group: one JSON object per line, or the rows of "
            "`envkit export` and `envkit filter`.",
        ),
    ] = None,
    wrap: Annotated[
        Wrap | None,
        typer.Option(help="Change what the model sees or gets: wrong images, faults, films ..."),
    ] = None,
    wrap_kwargs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="An argument of the wrapper, as --env-kwargs; repeatable."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings as YAML or JSON; the keys are those of `envkit.rollout.RolloutConfig`.",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting, such as limits.max_images=4; repeatable.",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    on_fault: Annotated[
        OnFault | None,
        typer.Option(
            help="What an infrastructure failure does to its group (default: mask).",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option(min=1, help="Replies per episode.", rich_help_panel=_SETTINGS),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Tokens per reply; a longer one is cut (default: {_DEFAULT_NEW_TOKENS}).",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 is greedy (default: 1).", rich_help_panel=_SETTINGS),
    ] = None,
    tensorboard: TensorBoardDir = None,
    wandb: WithWandb = False,
    wandb_project: WandbProject = None,
    parquet: ParquetFile = None,
    metrics_port: MetricsPort = None,
    otel: WithOtel = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play episodes with a model, a server or a scripted policy.

    The run directory gets run.json, trajectories.jsonl, images/, metrics.json and report.html. The
    first Ctrl-C, SIGTERM or SIGHUP ends running episodes early and stores them; the second does not
    wait for their running calls. --resume completes the run.
    """
    from envkit.cli.engines import EngineChoice
    from envkit.cli.run_plan import RolloutPlan, TaskList
    from envkit.cli.run_rollout import run_rollout

    sinks = SinkChoice(
        tensorboard=tensorboard,
        wandb=wandb,
        wandb_project=wandb_project,
        parquet=parquet,
        metrics_port=metrics_port,
        otel=otel,
    )
    if resume is not None:
        fixed = {
            "ID": env_id, "-n": count, "--group": group, "--engine": engine, "--model": model,
            "--policy": policy, "--seed": seed, "--out": out, "--overwrite": overwrite or None,
            "--concurrency": concurrency, "--env-kwargs": env_kwargs, "--wrap": wrap,
            "--tasks": tasks, "--wrap-kwargs": wrap_kwargs, "--config": config, "--set": settings,
            "--on-fault": on_fault, "--max-turns": max_turns, "--max-new-tokens": max_new_tokens,
            "--temperature": temperature,
        }  # fmt: skip
        _refuse_beside_resume(fixed)
        plan = RolloutPlan.resumed(
            resume, base_url=base_url, sinks=sinks, is_quiet=quiet, as_json=as_json
        )
        raise typer.Exit(run_rollout(plan))
    overrides: dict[str, Any] = {
        "env_id": env_id,
        "seed": seed,
        "on_fault": None if on_fault is None else on_fault.value,
        "env_kwargs": parse_env_kwargs(env_kwargs),
        "limits": {"max_turns": max_turns},
        "sampling": {"max_new_tokens": max_new_tokens, "temperature": temperature},
    }
    read = _config(config, settings or (), overrides)
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
        concurrency=concurrency or _CONCURRENCY,
        wrap=None if wrap is None else wrap.value,
        wrap_kwargs=parse_env_kwargs(wrap_kwargs, option="--wrap-kwargs"),
        sinks=sinks,
        out=out,
        overwrite=overwrite,
        is_quiet=quiet,
        as_json=as_json,
    )
    raise typer.Exit(run_rollout(plan))


def _refuse_beside_resume(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(
            f"--resume takes its settings from the run: drop {', '.join(given)}"
        )


def _config(
    file: Path | None, pairs: Iterable[str], overrides: Mapping[str, Any]
) -> "RolloutConfig":
    """Return the settings: of the file, then of --set, then of the options that have a name."""
    from envkit.rollout import RolloutConfig
    from envkit.rollout.config import read_settings, with_overrides

    data = with_overrides({} if file is None else read_settings(file), pairs)
    for name, value in overrides.items():
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            section = {key: entry for key, entry in given.items() if entry is not None}
            before: object = data.get(name) or {}
            if not isinstance(before, dict):
                continue  # refused below
            data[name] = {**cast("dict[str, Any]", before), **section}
        elif value is not None:
            data[name] = value
    config = RolloutConfig.from_mapping(data)
    most = config.limits.max_tokens_per_turn or _DEFAULT_NEW_TOKENS
    return replace(config, sampling={"max_new_tokens": most, **config.sampling})
