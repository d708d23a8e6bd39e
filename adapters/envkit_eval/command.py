"""`envkit eval`: evaluate a model or a policy on fixed tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from envkit.cli import options
from envkit.cli.command_options import BESIDE_RESUME, takes
from envkit.cli.examples import with_examples
from envkit.cli.play_options import RESUMED, PlayOptions

if TYPE_CHECKING:
    from envkit.cli.run_plan import Output

_TASKS: Final = 64
_BESIDE_PAIRED: Final = "beside --paired"
"""Marks an option that has an effect with --paired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions(PlayOptions):
    """The options of `envkit eval`."""

    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...",
            help="Environment ids; see `envkit list`. With --paired, two runs or evaluations.",
            autocompletion=options.complete_id,
        ),
        _BESIDE_PAIRED,
    ] = None
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--episodes",
            min=1,
            help=f"Episodes per environment (default: those of {_TASKS} tasks).",
        ),
    ] = None
    chat: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible chat endpoint, up to /v1, that serves --model.",
        ),
    ] = None
    key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable with the endpoint's key (default: OPENAI_API_KEY).",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder (default: runs/eval-ENGINE-seedN)."),
    ] = None
    overwrite: options.Overwrite = False
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Complete an interrupted evaluation, or recount a complete one.",
        ),
        BESIDE_RESUME,
    ] = None
    paired: Annotated[
        bool,
        typer.Option("--paired", help="Compare two runs or evaluations of the same tasks."),
        BESIDE_RESUME,
        _BESIDE_PAIRED,
    ] = False
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="wrap=A|B",
            help="Play the same tasks in each of these wrappers, and compare them with the "
            "first; none is no wrapper, A+B is both. Repeat it for all combinations.",
        ),
    ] = None
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TAG",
            help="Also group by this entry of the tasks, such as hops; repeatable "
            "(default: family and level).",
            rich_help_panel=options.COUNTING,
        ),
        BESIDE_RESUME,
        _BESIDE_PAIRED,
    ] = None
    pass_at: Annotated[
        list[int] | None,
        typer.Option(
            metavar="K",
            help="Estimate pass@K; repeatable (default: 1, 2, 4, ... up to --group).",
            rich_help_panel=options.COUNTING,
        ),
        BESIDE_RESUME,
    ] = None
    reward_threshold: Annotated[options.RewardThreshold, BESIDE_RESUME, _BESIDE_PAIRED] = None
    max_faults: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Exit with 1 if more episodes of an environment fault (default: 0.05).",
            rich_help_panel=options.COUNTING,
        ),
        BESIDE_RESUME,
    ] = None
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML or JSON: dollars per million tokens, by model.",
            rich_help_panel=options.COUNTING,
        ),
        BESIDE_RESUME,
    ] = None


@with_examples(
    "eval geo3k-v0 canary-v0 --policy oracle -n 64 --out runs/oracle",
    "eval search-v0 --engine sglang --base-url http://127.0.0.1:30000 --model DIR --group 8",
    "eval geo3k-v0 --chat https://api.openai.com/v1 --model gpt-4.1-mini --prices prices.toml",
    "eval canary-v0 --vary 'wrap=none|blank-image|resize-image:side=112' --out runs/pictures",
    "eval --resume runs/oracle --by hops",
    "eval runs/before runs/after --paired",
    group="Roll out",
)
@takes(EvalOptions)
def evaluate(given: EvalOptions) -> None:
    """Evaluate a model or a policy: success, reward and pass@k with intervals, tokens, cost.

    Each environment plays the same tasks for the same --seed, and gets a run directory as from
    `envkit rollout`. Faulted episodes are reported and excluded. Ctrl-C keeps finished episodes;
    --resume completes it.
    """
    from envkit.cli.run_plan import Output
    from envkit.success import checked_threshold

    output = Output.JSON if given.as_json else Output.TABLE
    threshold = checked_threshold(given.reward_threshold)
    given.check_retry_faults(given.resume)
    if given.paired:
        from envkit_eval import TAGS
        from envkit_eval.paired_page import show_comparison

        given.refuse("--paired plays nothing", besides=_BESIDE_PAIRED)
        show_comparison(
            given.targets or (), by=given.by or TAGS, threshold=threshold, output=output
        )
        return
    counting: dict[str, Any] = {
        "by": given.by and tuple(given.by),
        "pass_at": given.pass_at and tuple(given.pass_at),
        "reward_threshold": threshold,
        "max_faults": given.max_faults,
    }
    if given.resume is not None:
        given.refuse(RESUMED, besides=BESIDE_RESUME)
        _resume(given, given.resume, counting, output)
    if given.trust:
        raise typer.BadParameter("--trust confirms what an evaluation names: add --resume DIR")
    _start(given, counting, output)


def _resume(
    given: EvalOptions, folder: Path, counting: dict[str, Any], output: "Output"
) -> NoReturn:
    from envkit_eval.plan import EvalPlan, claimed_again, counted_otherwise
    from envkit_eval.run import run_eval

    with claimed_again(folder):
        begun = EvalPlan.read(
            folder,
            given.confirmation(),
            base_url=given.base_url,
            is_quiet=given.quiet,
            retry_faults=given.retry_faults,
        )
        begun = begun.on_workers(given)
        plan = counted_otherwise(begun, counting, prices=given.prices)
        raise typer.Exit(run_eval(plan, output=output))


def _start(given: EvalOptions, counting: dict[str, Any], output: "Output") -> NoReturn:
    from envkit.cli.run_plan import Output, RolloutPlan
    from envkit.rollout import RunPlan
    from envkit_eval.plan import claimed, counted_otherwise, new_evaluation
    from envkit_eval.run import run_eval
    from envkit_eval.variants import combinations

    group = given.group or 1
    run = RolloutPlan.of_options(
        given,
        given.rollout_config(),
        given.choice(chat=given.chat, key_env=given.key_env),
        RunPlan(episodes=given.count or _TASKS * group, group_size=group),
        out=given.out,
        overwrite=given.overwrite,
        output=Output.NOTHING,
    )
    with claimed(run) as folder:
        variants = combinations(given.vary or ())
        begun = new_evaluation(run, given.targets or (), folder, variants)
        if given.resume_or_start:
            begun = begun.continued()
        plan = counted_otherwise(begun, counting, prices=given.prices)
        raise typer.Exit(run_eval(plan, output=output))
