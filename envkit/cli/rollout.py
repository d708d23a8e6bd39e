"""`envkit rollout`: play many episodes and keep what was played."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from envkit.cli.options import (
    AsJson,
    BaseUrl,
    EngineName,
    EnvId,
    EnvKwargs,
    ModelName,
    Seed,
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


_LIMITS: Final = "Limits"
_SAMPLING: Final = "Sampling"


def rollout(
    env_id: EnvId,
    count: Annotated[int, typer.Option("-n", "--episodes", min=1, help="Episodes in all.")] = 8,
    group: Annotated[
        int, typer.Option(min=1, help="Episodes of one task; -n must be a multiple.")
    ] = 1,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A scripted policy of the environment, no model."),
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory (default: runs/ID-ENGINE-seedN)."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 16,
    env_kwargs: EnvKwargs = None,
    wrap: Annotated[
        Wrap | None,
        typer.Option(help="Change what the model sees or gets: wrong pictures, faults, films ..."),
    ] = None,
    wrap_kwargs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="An argument of the wrapper, as --env-kwargs; repeatable."
        ),
    ] = None,
    on_fault: Annotated[
        OnFault, typer.Option(help="What an infrastructure failure does to its group.")
    ] = OnFault.MASK,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Replies of an episode.", rich_help_panel=_LIMITS)
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Tokens of a reply; a longer one is cut (default: {_DEFAULT_NEW_TOKENS}).",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_tokens_per_turn: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a reply; a longer one ends the episode.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of the whole context.", rich_help_panel=_LIMITS),
    ] = None,
    step_timeout: Annotated[
        float,
        typer.Option(help="Seconds that a step of the env may take.", rich_help_panel=_LIMITS),
    ] = 120.0,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 is greedy.", rich_help_panel=_SAMPLING)
    ] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, rich_help_panel=_SAMPLING)] = 1.0,
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

    The run directory gets trajectories.jsonl, images/, metrics.json and report.html. Ctrl-C ends
    running episodes early and keeps them; a second one drops them.
    """
    from envkit.cli.engines import EngineChoice
    from envkit.cli.run_plan import RunPlan
    from envkit.cli.run_rollout import run_rollout
    from envkit.rollout import FaultPolicy, Limits, RetryBudget, Sampling

    plan = RunPlan(
        env_id=env_id,
        env_kwargs=parse_env_kwargs(env_kwargs),
        choice=EngineChoice(name=engine, model=model, base_url=base_url, policy=policy),
        episodes=count,
        group_size=group,
        concurrency=concurrency,
        seed=seed,
        limits=Limits(
            max_turns=max_turns,
            max_tokens_per_turn=max_tokens_per_turn,
            max_context_tokens=max_context,
        ),
        retries=RetryBudget(step_timeout_s=step_timeout),
        sampling=Sampling(
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=max_new_tokens or max_tokens_per_turn or _DEFAULT_NEW_TOKENS,
        ),
        on_fault=FaultPolicy(on_fault.value),
        wrap=None if wrap is None else wrap.value,
        wrap_kwargs=parse_env_kwargs(wrap_kwargs, option="--wrap-kwargs"),
        sinks=SinkChoice(
            tensorboard=tensorboard,
            wandb=wandb,
            wandb_project=wandb_project,
            parquet=parquet,
            metrics_port=metrics_port,
            otel=otel,
        ),
        out=out,
        overwrite=overwrite,
        is_quiet=quiet,
        as_json=as_json,
    )
    raise typer.Exit(run_rollout(plan))
