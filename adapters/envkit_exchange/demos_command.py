"""`envkit demos`: demonstrations of an environment's oracle, for supervised training."""

import asyncio
import json
import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import envkit
from envkit.cli.command_options import CommandOptions, takes
from envkit.cli.console import note, say, say_json
from envkit.cli.engines import EngineChoice, build, policy_of
from envkit.cli.examples import with_examples
from envkit.cli.options import (
    AsJson,
    EnvId,
    EnvKwargs,
    ModelName,
    Overwrite,
    RewardThreshold,
    Seed,
    complete_wrap,
    make_env,
    parse_env_kwargs,
    parse_wraps,
)
from envkit.cli.run_plan import RolloutPlan
from envkit.errors import ConfigurationError, StorageError
from envkit.files import replace_file
from envkit.rollout.config import RolloutConfig
from envkit.rollout.plan import RunPlan
from envkit.secrets import stored
from envkit.success import checked_threshold
from envkit_exchange.demonstration_rows import DemoFormat, DemoTable, check_format
from envkit_exchange.demonstrations import (
    TEST,
    DemoSelection,
    DemoTally,
    DemoWriter,
    NoisyOracle,
    check_demonstrations,
    noise_policy,
    play_demonstrations,
)
from envkit_exchange.tables import check_target, replacing

if TYPE_CHECKING:
    from envkit.env import Env

CARD_FILE: Final = "card.json"
_SCRATCH: Final = "played"
_WHOLE_REPLY: Final = 1_000_000
"""An oracle's reply is not sampled, so it is not truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemosOptions(CommandOptions):
    """The options of `envkit demos`."""

    env_id: EnvId
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")]
    count: Annotated[
        int, typer.Option("-n", "--episodes", min=1, help="Episodes to play, each of another seed.")
    ] = 100
    kind: Annotated[DemoFormat, typer.Option("--format", help="What reads the demonstrations.")] = (
        DemoFormat.LEDGER
    )
    noise: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="RATE",
            help="Share of the turns at which the environment's policy `random` plays an action "
            "and the oracle goes on from there; those replies are not trained.",
        ),
    ] = 0.0
    steps: Annotated[
        bool,
        typer.Option("--steps", help="One row per turn, as prompt and completion (--format trl)."),
    ] = False
    test_share: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.9, metavar="SHARE", help="Share of the tasks for the split test."
        ),
    ] = 0.0
    with_failed: Annotated[
        bool, typer.Option("--with-failed", help="Keep episodes that did not solve their task.")
    ] = False
    reward_threshold: RewardThreshold = None
    seed: Seed = 0
    model: ModelName = None
    env_kwargs: EnvKwargs = None
    wrap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="Wrap the environment, the first one innermost; repeatable.",
            autocompletion=complete_wrap,
        ),
    ] = None
    overwrite: Overwrite = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False
    as_json: AsJson = False

    def plan(self) -> RolloutPlan:
        """Return what is played.

        Rows of whole episodes train every reply in one context, so nothing may be dropped from it.

        Raises:
            ConfigurationError: An argument of the environment or a wrapper cannot be read.
        """
        config = RolloutConfig(
            env_id=self.env_id,
            env_kwargs=parse_env_kwargs(self.env_kwargs),
            seed=self.seed,
            history=None if self.kind.is_exact or self.steps else "keep",
            sampling={"max_new_tokens": _WHOLE_REPLY},
        )
        return RolloutPlan(
            config=config,
            choice=EngineChoice(policy="oracle", model=self.model),
            run=RunPlan(episodes=self.count),
            wraps=parse_wraps(self.wrap),
        )

    def selection(self) -> DemoSelection:
        """Return which episodes are kept."""
        return DemoSelection(
            test_share=self.test_share,
            with_failed=self.with_failed,
            threshold=checked_threshold(self.reward_threshold),
        )


@with_examples(
    "demos visual/maze-v0 -n 1000 --format trl --test-share 0.1 --out demos/maze",
    "demos visual/maze-v0 -n 1000 --noise 0.2 --format trl --steps --out demos/noisy",
    "demos canary-v0 -n 200 --format llama-factory --out demos/canary",
    "demos geo3k-v0 -n 200 --out demos/geo3k",
    group="Train",
)
@takes(DemosOptions)
def demos(given: DemosOptions) -> None:
    """Play an environment's oracle, and write the episodes for supervised training.

    --out gets train and test files that share no task, and card.json. It appears only once
    complete.
    """
    check_format(given.kind, noise=given.noise, steps=given.steps)
    _check_out(given)
    plan, selection = given.plan(), given.selection()
    with replacing(given.out) as folder:
        tally = _write(given, plan, selection, folder)
        card = _card(given, plan, tally)
        text = json.dumps(card, indent=2, sort_keys=True)
        replace_file(folder / CARD_FILE, f"{text}\n".encode())
    if given.as_json:
        say_json(card)
        return
    for reason, number in tally.left_out.most_common():
        note(f"left out {number} {reason}")
    if given.test_share and TEST not in tally.splits:
        note("no demonstration belongs to the test split: play more with -n")
    for split, held in tally.splits.items():
        rows = f"{held.rows} rows, " if held.rows else ""
        say(
            f"{given.out / split}: {held.demonstrations} demonstrations, {rows}{held.turns} turns "
            f"({held.noisy_turns} noisy), {held.images} images, {held.tokens} tokens"
        )


def _check_out(given: DemosOptions) -> None:
    """Check early that the folder can be written, and that --overwrite replaces nothing else.

    Raises:
        StorageError: It holds something else, or something at all without --overwrite.
        MissingDependencyError: The format needs a package that is not installed.
    """
    out = given.out
    is_other = out.is_dir() and any(out.iterdir()) and not (out / CARD_FILE).is_file()
    if is_other and given.overwrite:
        raise StorageError(
            f"--overwrite replaces only demonstrations, and {out} has no {CARD_FILE}: choose "
            "another --out"
        )
    check_target(out, is_folder=True, overwrite=given.overwrite)


def _write(
    given: DemosOptions, plan: RolloutPlan, selection: DemoSelection, folder: Path
) -> DemoTally:
    """Play the demonstrations and write them into an empty folder."""
    played = folder if given.kind.is_exact else folder / _SCRATCH
    env = make_env(plan.env_id, dict(plan.config.env_kwargs))
    try:
        tally = asyncio.run(_play(given, plan, env, selection, played))
    except StorageError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        # The writer names a file that is removed with the rest.
        reason = f"cannot write {given.out}, so nothing is kept: {error.__cause__.strerror}"
        raise StorageError(reason) from error.__cause__
    finally:
        env.close()
    check_demonstrations(tally)
    if not given.kind.is_exact:
        table = DemoTable(
            kind=given.kind,
            name=plan.env_id.replace("/", "-"),
            steps=given.steps,
            threshold=selection.threshold,
        )
        table.write(played, folder, tally)
        shutil.rmtree(played)
    return tally


async def _play(
    given: DemosOptions, plan: RolloutPlan, env: "Env", selection: DemoSelection, folder: Path
) -> DemoTally:
    if env.tools and not given.kind.is_exact:
        names = ", ".join(tool.name for tool in env.tools)
        raise ConfigurationError(
            f"--format {given.kind} has no place for the definitions of tools, which the model "
            f"reads first, got {plan.env_id} with {names}; use --format ledger, or an argument of "
            f"the environment that offers no tools (envkit info {plan.env_id})"
        )
    built = await build(plan.choice, env, plan.config, progress=None if given.quiet else note)
    if given.noise:
        oracle, other = policy_of(env, "oracle"), noise_policy(env)
        engine = NoisyOracle(built.codec, oracle, other, rate=given.noise)
        built = replace(built, engine=engine)
    with DemoWriter(folder, selection, built.codec.token_text) as writer:
        await play_demonstrations(
            plan.environment(),
            built,
            plan.config,
            writer,
            episodes=given.count,
            is_quiet=given.quiet,
        )
    return writer.tally


def _card(given: DemosOptions, plan: RolloutPlan, tally: DemoTally) -> dict[str, Any]:
    """Return what the folder holds and how to write it again, as JSON data."""
    settings = plan.settings()
    return {
        "env_id": plan.env_id,
        "env_kwargs": stored(dict(plan.config.env_kwargs)),
        "wrap": settings["wrap"],
        "wrap_kwargs": settings["wrap_kwargs"],
        "format": given.kind.value,
        "one_row_per": "turn" if given.steps else "episode",
        "policy": "oracle",
        "noise": given.noise,
        "seed": given.seed,
        "test_share": given.test_share,
        "with_failed": given.with_failed,
        "reward_threshold": given.reward_threshold,
        "tokenizer": given.model or "builtin",
        "versions": {"envkit": envkit.__version__, "python": platform.python_version()},
        "licence": "generated",
        **tally.summary(),
    }
