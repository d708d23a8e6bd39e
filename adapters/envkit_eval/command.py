"""`envkit eval`: evaluate a model or a policy on fixed tasks."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from envkit.cli.examples import with_examples
from envkit.cli.options import (
    COUNTING,
    AsJson,
    BaseUrl,
    EngineName,
    EnvKwargs,
    ModelName,
    RewardThreshold,
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
    PolicyName,
    Quiet,
    RayAddress,
    ResumeOrStart,
    RetryFaults,
    RunSeed,
    SettingPairs,
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

_TASKS: Final = 64
_SHOWN: Final = {"by", "reward_threshold", "quiet", "as_json"}
_BESIDE_PAIRED: Final = {"targets", "paired", *_SHOWN}
_BESIDE_RESUME: Final = {
    "resume", "retry_faults", "paired", "base_url", "workers", "ray", "pass_at", "max_faults",
    "prices", *CONFIRMING, *_SHOWN,
}  # fmt: skip


@with_examples(
    "eval geo3k-v0 canary-v0 --policy oracle -n 64 --out runs/oracle",
    "eval search-v0 --engine sglang --base-url http://127.0.0.1:30000 --model DIR -k 8",
    "eval geo3k-v0 --chat https://api.openai.com/v1 --model gpt-4.1-mini --prices prices.toml",
    "eval --resume runs/oracle --by hops",
    "eval runs/before runs/after --paired",
    group="Roll out",
)
def evaluate(
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...",
            help="Environment ids; see `envkit list`. With --paired, two runs or evaluations.",
            autocompletion=complete_id,
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option("-n", "--tasks", min=1, help=f"Tasks per environment (default: {_TASKS})."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("-k", "--samples", min=1, help="Episodes per task (default: 1).")
    ] = None,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    policy: PolicyName = None,
    chat: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible chat endpoint, up to /v1, that serves --model.",
        ),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with the endpoint's key (default: OPENAI_API_KEY).",
        ),
    ] = None,
    seed: RunSeed = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder (default: runs/eval-ENGINE-seedN)."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an evaluation in --out.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Complete an interrupted evaluation, or recount a complete one.",
        ),
    ] = None,
    trust: Trust = None,
    retry_faults: RetryFaults = False,
    resume_or_start: ResumeOrStart = False,
    paired: Annotated[
        bool,
        typer.Option("--paired", help="Compare two runs or evaluations of the same tasks."),
    ] = False,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TAG",
            help="Also group by this entry of the tasks, such as hops; repeatable "
            "(default: family and level).",
            rich_help_panel=COUNTING,
        ),
    ] = None,
    pass_at: Annotated[
        list[int] | None,
        typer.Option(
            metavar="K",
            help="Estimate pass@K; repeatable (default: 1, 2, 4, ... up to -k).",
            rich_help_panel=COUNTING,
        ),
    ] = None,
    reward_threshold: RewardThreshold = None,
    max_faults: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Exit with 1 if more episodes of an environment fault (default: 0.05).",
            rich_help_panel=COUNTING,
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML or JSON: dollars per million tokens, by model.",
            rich_help_panel=COUNTING,
        ),
    ] = None,
    concurrency: Concurrency = None,
    workers: Workers = None,
    ray: RayAddress = None,
    env_kwargs: EnvKwargs = None,
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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model or a policy: success, reward and pass@k with intervals, tokens, cost.

    Each environment plays the same tasks for the same --seed, and gets a run directory as from
    `envkit rollout`. Faulted episodes are reported and excluded. Ctrl-C keeps finished episodes;
    --resume completes it.
    """
    given = locals()
    from envkit.cli.remote import on_workers
    from envkit.cli.run_plan import Output, RolloutPlan
    from envkit.success import checked_threshold
    from envkit_eval.plan import (
        EvalPlan,
        claimed,
        claimed_again,
        counted_otherwise,
        new_evaluation,
    )
    from envkit_eval.run import run_eval

    output = Output.JSON if as_json else Output.TABLE
    threshold = checked_threshold(reward_threshold)
    check_retry_faults(retry_faults, resume)
    if paired:
        from envkit_eval import TAGS
        from envkit_eval.paired_page import show_comparison

        refuse_options(ctx, given, "--paired plays nothing", besides=_BESIDE_PAIRED)
        show_comparison(targets or (), by=by or TAGS, threshold=threshold, output=output)
        return
    counting: dict[str, Any] = {
        "by": by and tuple(by),
        "pass_at": pass_at and tuple(pass_at),
        "reward_threshold": threshold,
        "max_faults": max_faults,
    }
    if resume is not None:
        refuse_options(ctx, given, RESUMED, besides=_BESIDE_RESUME)
        with claimed_again(resume):
            begun = EvalPlan.read(
                resume,
                confirmation_of(given),
                base_url=base_url,
                is_quiet=quiet,
                retry_faults=retry_faults,
            )
            begun = begun.on_workers(workers, ray)
            plan = counted_otherwise(begun, counting, prices=prices)
            raise typer.Exit(run_eval(plan, output=output))
    if trust:
        raise typer.BadParameter("--trust confirms what an evaluation names: add --resume DIR")
    run = RolloutPlan.of_options(
        given,
        on_workers(read_config(given), workers, ray),
        episodes=(tasks or _TASKS) * (samples or 1),
        group_size=samples or 1,
        resume_or_start=resume_or_start,
        output=Output.NOTHING,
    )
    with claimed(run) as folder:
        begun = new_evaluation(run, targets or (), folder)
        if resume_or_start:
            begun = begun.continued()
        plan = counted_otherwise(begun, counting, prices=prices)
        raise typer.Exit(run_eval(plan, output=output))
