"""The options of the commands that play many episodes, and what they ask for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from envkit.cli import options
from envkit.cli.command_options import BESIDE_ALL, BESIDE_RESUME, CommandOptions
from envkit.cli.engines import EngineChoice, check_engine
from envkit.errors import ConfigurationError

if TYPE_CHECKING:
    from envkit.cli.trust import Confirmation
    from envkit.rollout import RolloutConfig

DEFAULT_CONCURRENCY: Final = 16
_DEFAULT_NEW_TOKENS: Final = 96
"""Enough for a short calculation and an answer, fast for a small model on two cores."""
_WHOLE_REPLY: Final = 1_000_000
"""A script's reply is not sampled, so by default it is not truncated."""
_SETTINGS: Final = "Settings"
RESUMED: Final = "--resume takes its settings from the run"
"""Why other options are rejected with --resume."""


class OnFault(StrEnum):
    """The values of --on-fault; those of `envkit.rollout.FaultPolicy`, without importing it."""

    MASK = "mask"
    RETRY = "retry"
    DROP_GROUP = "drop_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions(CommandOptions):
    """The options that `rollout` and `eval` share."""

    engine: options.EngineName = None
    model: options.ModelName = None
    base_url: Annotated[options.BaseUrl, BESIDE_RESUME] = None
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A scripted policy of the environment, or your own as MODULE:FUNCTION; no model.",
        ),
        BESIDE_RESUME,
    ] = None
    group: Annotated[
        int | None,
        typer.Option(min=1, help="Episodes per task; -n must be a multiple (default: 1)."),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same tasks (default: 0).")
    ] = None
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REFERENCE",
            help="With --resume or --tasks, run or contact this too; written as the error lists "
            "it. Repeatable.",
        ),
        BESIDE_RESUME,
    ] = None
    retry_faults: Annotated[
        bool,
        typer.Option(
            "--retry-faults",
            help="With --resume, play faulted episodes again; faulted.jsonl keeps their records.",
        ),
        BESIDE_RESUME,
    ] = False
    resume_or_start: Annotated[
        bool,
        typer.Option(
            "--resume-or-start",
            help="Complete what --out holds if it was begun with these options, else start it.",
        ),
    ] = False
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help=f"Concurrent episodes (default: {DEFAULT_CONCURRENCY})."),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Play in this many workers (default: 0, in this process)."),
        BESIDE_RESUME,
    ] = None
    player: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The workers' player (default: the only one installed)."),
        BESIDE_RESUME,
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The workers' cluster: HOST:PORT of its head, or auto for one on this machine "
            "(default: RAY_ADDRESS, else a new local one).",
        ),
        BESIDE_RESUME,
    ] = None
    env_kwargs: Annotated[options.EnvKwargs, BESIDE_RESUME] = None
    wrap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="Wrap the environment, the first one innermost: other images, texts, rewards, "
            "faults; see docs/environments/wrappers.md. Repeatable.",
            autocompletion=options.complete_wrap,
        ),
        BESIDE_RESUME,
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings as YAML or JSON; the keys are those of `envkit.rollout.RolloutConfig`.",
            rich_help_panel=_SETTINGS,
        ),
        BESIDE_RESUME,
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="One setting, such as limits.max_images=4; repeatable.",
            rich_help_panel=_SETTINGS,
        ),
        BESIDE_RESUME,
    ] = None
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT",
            help="What plays the episodes, as MODULE:FUNCTION or a harness such as claude-code; "
            "the model answers it through a gateway.",
            rich_help_panel=_SETTINGS,
        ),
        BESIDE_RESUME,
    ] = None
    agent_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="A command that runs such an agent, started in its own folder for each episode.",
            rich_help_panel=_SETTINGS,
        ),
        BESIDE_RESUME,
    ] = None
    on_fault: Annotated[
        OnFault | None,
        typer.Option(
            help="What to do with a group after an infrastructure failure (default: mask).",
            rich_help_panel=_SETTINGS,
        ),
    ] = None
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Replies per episode.", rich_help_panel=_SETTINGS)
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per reply; a longer one is truncated (default: "
            f"{_DEFAULT_NEW_TOKENS}; a policy's replies are not truncated).",
            rich_help_panel=_SETTINGS,
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 is greedy (default: 1).", rich_help_panel=_SETTINGS),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress."), BESIDE_ALL] = (
        False
    )
    as_json: Annotated[options.AsJson, BESIDE_ALL] = False

    def choice(self, **more: str | None) -> EngineChoice:
        """Return the engine, with the secrets that its options refer to.

        Args:
            more: Other fields of the choice.

        Raises:
            UnknownNameError: No engine has that name.
            ConfigurationError: Options conflict, or a variable is not set.
        """
        from envkit.secrets import restored

        if self.engine is not None:
            check_engine(self.engine)
        choice = EngineChoice(
            name=self.engine,
            model=self.model,
            base_url=self.base_url,
            policy=self.policy,
            **more,
        )
        return EngineChoice(**restored(asdict(choice)))

    def wrappers(self) -> dict[str, dict[str, Any]]:
        """Return the arguments of each --wrap by its name, from the innermost on.

        Raises:
            UnknownNameError: No wrapper has a name.
            ConfigurationError: One cannot be read or built, or is named twice.
        """
        return options.parse_wraps(self.wrap)

    def check_retry_faults(self, resume: Path | None) -> None:
        """Reject `--retry-faults` without `--resume`.

        Raises:
            BadParameter: There is no run to resume.
        """
        if self.retry_faults and resume is None:
            raise typer.BadParameter(
                "--retry-faults plays the faults of a run again: add --resume DIR"
            )

    def confirmation(self) -> "Confirmation":
        """Return what the options confirm of the run that --resume names.

        Raises:
            ConfigurationError: An option cannot be read.
        """
        from envkit.cli.trust import Confirmation
        from envkit.secrets import restored

        given = {name: arguments for name, arguments in self.wrappers().items() if arguments}
        engine = {"policy": self.policy} if self.policy is not None else {}
        config = restored(self._given_settings())
        replaced = {
            "engine.base_url": self.base_url is not None,
            "engine.chat": self.base_url is not None,
            "config.player_options.address": self.ray is not None,
            "config.player_options": self.workers == 0,
        }
        return Confirmation(
            repeated={"engine": engine, "config": config, "wrap_kwargs": given},
            trusted=tuple(self.trust or ()),
            replaced=tuple(name for name, is_given in replaced.items() if is_given),
        )

    def rollout_config(self, *, env_id: str | None = None) -> "RolloutConfig":
        """Return the settings from --config, overridden by --set, then by named options.

        The replies of a policy have no default limit.

        Args:
            env_id: The environment; None uses that of the file.

        Raises:
            ConfigurationError: A key is unknown, or a value is invalid.
            BadParameter: --ray is given without workers.
        """
        from envkit.rollout import RolloutConfig
        from envkit.secrets import restored

        overrides: dict[str, Any] = {
            "env_id": env_id,
            "seed": self.seed,
            "on_fault": None if self.on_fault is None else self.on_fault.value,
        }
        sections = {
            "limits": {"max_turns": self.max_turns},
            "sampling": {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature},
        }
        data = self._given_settings()
        data.update({name: value for name, value in overrides.items() if value is not None})
        for name, section in sections.items():
            given = {key: value for key, value in section.items() if value is not None}
            _merge(data, name, given)
        config = RolloutConfig.from_mapping(restored(data))
        default = _DEFAULT_NEW_TOKENS if self.policy is None else _WHOLE_REPLY
        limit = config.limits.max_tokens_per_turn or default
        config = replace(config, sampling={"max_new_tokens": limit, **config.sampling})
        return self.on_workers(config)

    def on_workers(self, config: "RolloutConfig") -> "RolloutConfig":
        """Return settings, which may have workers already, with the options for workers.

        Raises:
            BadParameter: An option for workers is given without workers.
        """
        if self.workers is None and self.ray is None and self.player is None:
            return config
        count = config.workers if self.workers is None else self.workers
        if not count and (self.ray is not None or self.player is not None):
            option = "--player" if self.ray is None else "--ray"
            raise typer.BadParameter(f"{option} needs workers: add --workers N")
        address = {} if self.ray is None else {"address": self.ray}
        return replace(
            config,
            workers=count,
            player=(self.player or config.player) if count else None,
            player_options={**config.player_options, **address} if count else {},
        )

    def _given_settings(self) -> dict[str, Any]:
        """Return the settings of --config, --set, --env-kwargs and the options for agents."""
        from envkit.plugins import named_agent
        from envkit.rollout.config import read_settings, with_overrides

        file = {} if self.config is None else read_settings(self.config)
        data = with_overrides(file, self.settings or ())
        if arguments := options.parse_env_kwargs(self.env_kwargs):
            _merge(data, "env_kwargs", arguments)
        if self.agent is not None and self.agent_command is not None:
            raise ConfigurationError("give --agent or --agent-command, not both")
        agent = {} if self.agent is None else named_agent(self.agent)
        if self.agent_command is not None:
            agent = {"command": self.agent_command}
        if agent:
            before: object = data.get("agent")
            earlier = cast("dict[str, Any]", before) if isinstance(before, dict) else {}
            kinds = ("function", "harness", "command")
            kept = {name: value for name, value in earlier.items() if name not in kinds}
            data["agent"] = {**kept, **agent}
        return data


def _merge(data: dict[str, Any], name: str, given: Mapping[str, Any]) -> None:
    """Set entries of a section; one that is not a mapping stays, and is rejected later."""
    before: object = data.get(name) or {}
    if isinstance(before, dict):
        data[name] = {**cast("dict[str, Any]", before), **given}
