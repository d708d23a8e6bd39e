"""Options of the commands that play many episodes, and the resulting settings."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from envkit.cli.options import parse_env_kwargs

if TYPE_CHECKING:
    from envkit.cli.trust import Confirmation
    from envkit.rollout import RolloutConfig

DEFAULT_CONCURRENCY: Final = 16
_DEFAULT_NEW_TOKENS: Final = 96
"""Enough for a short calculation and an answer, fast for a small model on two cores."""
_WHOLE_REPLY: Final = 1_000_000
"""A script's reply is not sampled, so by default it is not truncated."""
_SETTINGS: Final = "Settings"
Options = Mapping[str, Any]
"""Values of a command's options, by the names of its parameters."""
RESUMED: Final = "--resume takes its settings from the run"
"""Why other options are rejected with --resume."""
CONFIRMING: Final = frozenset(
    {"trust", "policy", "config", "settings", "env_kwargs", "wrap_kwargs", "agent", "agent_command"}
)
"""Options that confirm with --resume what the run names."""


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


PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="A scripted policy of the environment, or your own as MODULE:FUNCTION; no model.",
    ),
]
RunSeed = Annotated[
    int | None, typer.Option("--seed", help="The same seed gives the same tasks (default: 0).")
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help=f"Concurrent episodes (default: {DEFAULT_CONCURRENCY}).")
]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Play in this many Ray workers (default: 0, in this process)."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="The workers' cluster: HOST:PORT of its head, or auto for one on this machine "
        "(default: RAY_ADDRESS, else a new local one).",
    ),
]
TaskFile = Annotated[
    Path | None,
    typer.Option(
        "--tasks",
        metavar="FILE",
        help="Tasks to play, each by one group: one JSON object per line, or the rows of "
        "`envkit export` and `envkit filter`.",
    ),
]
WrapName = Annotated[
    Wrap | None,
    typer.Option("--wrap", help="Wrap the environment: wrong images, faults, recordings ..."),
]
WrapKwargs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="An argument of the wrapper, as --env-kwargs; repeatable."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Settings as YAML or JSON; the keys are those of `envkit.rollout.RolloutConfig`.",
        rich_help_panel=_SETTINGS,
    ),
]
SettingPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting, such as limits.max_images=4; repeatable.",
        rich_help_panel=_SETTINGS,
    ),
]
FaultChoice = Annotated[
    OnFault | None,
    typer.Option(
        "--on-fault",
        help="What to do with a group after an infrastructure failure (default: mask).",
        rich_help_panel=_SETTINGS,
    ),
]
AgentPath = Annotated[
    str | None,
    typer.Option(
        metavar="AGENT",
        help="What plays the episodes, as MODULE:FUNCTION or a harness such as claude-code; "
        "the model answers it through a gateway.",
        rich_help_panel=_SETTINGS,
    ),
]
AgentCommand = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="A command that runs such an agent, started in its own folder for each episode.",
        rich_help_panel=_SETTINGS,
    ),
]
MaxTurns = Annotated[
    int | None,
    typer.Option(min=1, help="Replies per episode.", rich_help_panel=_SETTINGS),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=(
            f"Tokens per reply; a longer one is truncated (default: {_DEFAULT_NEW_TOKENS}; a "
            "policy's replies are not truncated)."
        ),
        rich_help_panel=_SETTINGS,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0.0, help="0 is greedy (default: 1).", rich_help_panel=_SETTINGS),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run in --out.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]

ResumeOrStart = Annotated[
    bool,
    typer.Option(
        "--resume-or-start",
        help="Complete what --out holds if it was begun with these options, else start it.",
    ),
]
RetryFaults = Annotated[
    bool,
    typer.Option(
        "--retry-faults",
        help="With --resume, play faulted episodes again; faulted.jsonl keeps their records.",
    ),
]

Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="REFERENCE",
        help="With --resume or --tasks, run or contact this too; written as the error lists it. "
        "Repeatable.",
    ),
]


def check_retry_faults(retry_faults: bool, resume: Path | None) -> None:  # an option
    """Reject `--retry-faults` without `--resume`.

    Raises:
        BadParameter: There is no run to resume.
    """
    if retry_faults and resume is None:
        raise typer.BadParameter("--retry-faults plays the faults of a run again: add --resume DIR")


def refuse_options(
    ctx: typer.Context, given: Options, why: str, *, besides: Collection[str]
) -> None:
    """Reject options that have no effect with another one.

    Args:
        ctx: The command's context; names its options as they are typed.
        given: The values; None, False and an empty list mean not given.
        why: Start of the message.
        besides: Names of the parameters that are allowed.

    Raises:
        BadParameter: Any other option was given.
    """
    wrong = [
        option.opts[0] if option.opts[0].startswith("-") else (option.metavar or "").rstrip(".")
        for option in ctx.command.params
        if (option.name or "") not in {*besides, "help"}
        and given[option.name or ""] not in ([], None)
        and given[option.name or ""] is not False
    ]
    if wrong:
        raise typer.BadParameter(f"{why}: drop {', '.join(wrong)}")


def confirmation_of(given: Options) -> "Confirmation":
    """Return what the options of a command with --resume confirm of its runs.

    Args:
        given: As for `read_config`.

    Raises:
        ConfigurationError: An option cannot be read.
    """
    from envkit.cli.trust import Confirmation
    from envkit.secrets import restored

    engine = {"policy": given["policy"]} if given["policy"] is not None else {}
    config = restored(_given_settings(given))
    wrap = parse_env_kwargs(given["wrap_kwargs"], option="--wrap-kwargs")
    replaced = {
        "engine.base_url": given["base_url"] is not None,
        "engine.chat": given["base_url"] is not None,
        "config.ray.address": given["ray"] is not None,
        "config.ray": given["workers"] == 0,
    }
    return Confirmation(
        repeated={"engine": engine, "config": config, "wrap_kwargs": wrap},
        trusted=tuple(given["trust"] or ()),
        replaced=tuple(name for name, is_given in replaced.items() if is_given),
    )


def _given_settings(given: Options) -> dict[str, Any]:
    """Return the settings of --config, --set, --env-kwargs and the options for agents."""
    from envkit.errors import ConfigurationError
    from envkit.rollout.config import read_settings, with_overrides

    file: Path | None = given["config"]
    data = with_overrides({} if file is None else read_settings(file), given["settings"] or ())
    arguments = parse_env_kwargs(given["env_kwargs"])
    before: object = data.get("env_kwargs") or {}
    if arguments and isinstance(before, dict):
        data["env_kwargs"] = {**cast("dict[str, Any]", before), **arguments}
    if given["agent"] is not None and given["agent_command"] is not None:
        raise ConfigurationError("give --agent or --agent-command, not both")
    agents = {"function": given["agent"], "command": given["agent_command"]}
    agent = {name: value for name, value in agents.items() if value is not None}
    if agent:
        before = data.get("agent")
        earlier = cast("dict[str, Any]", before) if isinstance(before, dict) else {}
        kept = {name: value for name, value in earlier.items() if name not in agents}
        data["agent"] = {**kept, **agent}
    return data


def read_config(given: Options, *, env_id: str | None = None) -> "RolloutConfig":
    """Return the settings from --config, overridden by --set, then by named options.

    Args:
        given: The values; None means not given. The replies of a `policy` have no default limit.
        env_id: The environment; None uses that of the file.

    Raises:
        ConfigurationError: A key is unknown, or a value is invalid.
    """
    from envkit.rollout import RolloutConfig
    from envkit.secrets import restored

    on_fault: OnFault | None = given["on_fault"]
    overrides: dict[str, Any] = {
        "env_id": env_id,
        "seed": given["seed"],
        "on_fault": None if on_fault is None else on_fault.value,
        "limits": {"max_turns": given["max_turns"]},
        "sampling": {name: given[name] for name in ("max_new_tokens", "temperature")},
    }
    data = _given_settings(given)
    for name, value in overrides.items():
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value).items()
            section = {key: entry for key, entry in entries if entry is not None}
            before: object = data.get(name) or {}
            if not isinstance(before, dict):
                continue  # rejected below
            data[name] = {**cast("dict[str, Any]", before), **section}
        elif value is not None:
            data[name] = value
    config = RolloutConfig.from_mapping(restored(data))
    default = _DEFAULT_NEW_TOKENS if given["policy"] is None else _WHOLE_REPLY
    limit = config.limits.max_tokens_per_turn or default
    return replace(config, sampling={"max_new_tokens": limit, **config.sampling})
