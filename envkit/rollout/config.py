"""Every setting of a rollout, declared once.

Python, the command line (`--config FILE`, `--set limits.max_images=4`) and the adapters' `envkit:`
mappings read the same class.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, cast

from envkit.agents import load_adjust
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.files import expanded, read_data
from envkit.plugins import load_plugin, plugins
from envkit.ranges import at_least
from envkit.rollout.breaker import BreakerSettings
from envkit.rollout.engine import Sampling
from envkit.rollout.history import HistorySetting, history_policy
from envkit.rollout.limits import Limits, RetryBudget
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.rollout.self_check import DEFAULT_SHARE
from envkit.rollout.setting_types import built, check_fields, check_keys, check_types, section
from envkit.rollout.setup import PlayAgent, RolePlan
from envkit.rollout.sources import ISOLATION
from envkit.rollout.tail import Tail
from envkit.seeds import checked_seed
from envkit.tokens.codec import ChatCodec
from envkit.tokens.sanity import SanityMode

AGENTS: Final = "envkit.agents"
"""Entry-point group of what plays episodes with an agent; called with the setting `agent`."""


class FaultPolicy(StrEnum):
    """Handling of a group if infrastructure failed one of its episodes."""

    MASK = "mask"
    """The faulted trajectory is delivered, without reward and with mask 0."""
    RETRY = "retry"
    """The episode is played again in a fresh environment; if that faults too, it is masked."""
    DROP_GROUP = "drop_group"
    """No member of the group is delivered; `RolloutState.dropped` contains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """The environment and how to play its episodes. Every key is optional."""

    env_id: str | None = None
    """None if every dataset row names its own."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    draw_tasks: bool = False
    """Whether the environment draws the tasks of a trainer's dataset rows that do not name any.
    Otherwise such a row is an error: a dataset that no episode reads gives healthy curves."""
    limits: Limits = field(default_factory=Limits)
    retries: RetryBudget = field(default_factory=RetryBudget)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    """When a player whose episodes all fault waits, and when it gives up."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Sampling` that override the trainer's settings."""
    history: HistorySetting = None
    """What the model sees of the earlier conversation: "keep" appends everything, "rerender"
    follows a chat template that rewrites earlier replies, and a policy drops or summarises old
    turns (see `envkit.rollout.history`). None uses the environment's setting, or "keep"."""
    agent: str | Mapping[str, Any] | None = None
    """An agent that plays the episodes through a gateway: the path of a function,
    `module:function`, or the fields of `envkit_gateway.AgentSettings`. None plays the loop."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables of the chat template, such as `enable_thinking`."""
    sanity: SanityMode = "strict"
    """Differences between an observation's tokens and a full render that fault a trajectory."""
    sanity_share: float = DEFAULT_SHARE
    """Share of the observations that are compared; in the first episodes all are, and in long
    conversations fewer; 1 compares all."""
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the adapter's engine."""
    adjust_rewards: str | None = None
    """For environments with several agents: "team_mean", "team_last" or a function's path,
    `module:function`; None keeps the environment's rewards."""
    seed: int = 0
    """Seed of the run, from which every group's seed is derived."""
    on_fault: FaultPolicy = FaultPolicy.MASK
    """Handling of a faulted group in envkit's own runs; trainers have their own settings."""
    tail: Tail = field(default_factory=Tail)
    """When a batch is complete in envkit's own runs; trainers have their own settings."""
    isolation: str = "none"
    """"process" runs every environment in a worker process, whose death does not affect the run.
    Other names are installed entry points of the group `envkit.isolation`."""
    worker_memory_mb: int | None = None
    """MiB of address space per worker process; None is unlimited. Do not set it for browsers, which
    reserve far more than they use."""
    workers: int = 0
    """Number of workers that play the episodes, such as Ray actors; 0 plays them here."""
    player: str | None = None
    """The workers' player, an entry point of the group `envkit.players`; None uses the only one
    installed."""
    player_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the workers' player, such as the fields of `envkit_ray.RayOptions`."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> "RolloutConfig":
        """Read settings.

        Args:
            mapping: Keys are the fields of this class; `limits`, `tail`, `breaker`, `retries` and
                `retries.backoff` are mappings themselves. None gives the defaults.

        Raises:
            ConfigurationError: A key is unknown (the message suggests the nearest one), or a value
                is invalid.
        """
        data: Mapping[str, Any] = {}
        if mapping is not None:
            data = section(mapping, "the configuration")
        return built(cls, expanded_paths(data), "the configuration")

    def __post_init__(self) -> None:
        """Reject values that would fail only during episodes.

        Raises:
            ConfigurationError: A value has the wrong type, is out of range, or is unknown.
        """
        object.__setattr__(self, "seed", checked_seed(self.seed))
        check_fields(self, "the configuration")
        if (seed := self.sampling.get("seed")) is not None:
            seed = checked_seed(seed, "sampling: seed")
            object.__setattr__(self, "sampling", {**self.sampling, "seed": seed})
        _check_ranges(self)
        self.sampling_over(Sampling())
        self.role_plan()
        history_policy(self.history)

    @classmethod
    def for_trainer(
        cls, given: "RolloutConfig | Mapping[str, Any] | None", *, tail: str
    ) -> "RolloutConfig":
        """Return the settings of a trainer's adapter.

        Args:
            given: The configuration, or a mapping for `from_mapping`.
            tail: The trainer's equivalent of `tail`, for the message.

        Raises:
            ConfigurationError: As for `from_mapping`; or `tail` is set, which only envkit's own
                runs support.
        """
        config = given if isinstance(given, RolloutConfig) else cls.from_mapping(given)
        if config.tail != Tail():
            raise ConfigurationError(
                f"the trainer decides when a batch is complete, so envkit's tail has no effect "
                f"here; remove it, and use {tail}"
            )
        return config

    def of_worker(self) -> "RolloutConfig":
        """Return the settings of a worker's player, whose episodes the main process counts."""
        return replace(
            self,
            workers=0,
            player=None,
            player_options={},
            breaker=BreakerSettings(episodes=None),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as JSON data that `from_mapping` reads."""
        return {**asdict(self), "on_fault": self.on_fault.value}

    def role_plan(self) -> RolePlan:
        """Return the differences between the roles of environments with several agents.

        Raises:
            ConfigurationError: `adjust_rewards` does not name a function.
        """
        if self.adjust_rewards is None:
            return RolePlan()
        return RolePlan(adjust_rewards=load_adjust(self.adjust_rewards))

    def play_agent(self) -> PlayAgent | None:
        """Return what plays the episodes with the agent; None plays the rollout loop.

        Raises:
            ConfigurationError: The setting names no agent.
        """
        if self.agent is None:
            return None
        return load_plugin(AGENTS, None, kind="player of agents")(self.agent)

    @property
    def codec_history(self) -> Literal["keep", "rerender"]:
        """How the codec handles templates that rewrite earlier replies."""
        return "rerender" if self.history == "rerender" else "keep"

    def branching_setting(self, codec: ChatCodec) -> Literal["agent", "history"] | None:
        """Return the setting by which an episode may become several sequences, and so several rows.

        This does not cover an environment's own history policy.
        """
        if self.agent is not None:
            return "agent"
        is_rewritten = codec.history == "rerender" and codec.rewrites_history
        return "history" if is_rewritten or history_policy(self.history) is not None else None

    def request(self) -> EpisodeRequest | None:
        """Return the defaults for dataset rows; None if rows name their own environment."""
        if self.env_id is None:
            return None
        return EpisodeRequest(env_id=self.env_id, env_kwargs=self.env_kwargs)

    def row_request(self, column: object) -> EpisodeRequest:
        """Return what a row of a trainer's dataset asks for.

        Args:
            column: The row's request, as for `EpisodeRequest.from_column`; None if it has none.

        Raises:
            ConfigurationError: The request cannot be read, or the row has none and `draw_tasks` is
                not set.
        """
        request = EpisodeRequest.from_column(column, default=self.request())
        if column is None and not self.draw_tasks:
            raise ConfigurationError(
                f"a dataset is configured, and no episode of {request.env_id} reads it: a row "
                f"needs a column {ENVKIT_COLUMN!r} with its task, or its seed, got none. Write the "
                "rows with `envkit export`, map their columns with task_fields where the adapter "
                "has it, or set draw_tasks: true to let the environment draw its own tasks"
            )
        return request

    def sampling_over(self, trainer: Sampling) -> Sampling:
        """Return the trainer's sampling with this configuration's overrides.

        Raises:
            ConfigurationError: A key is unknown or a value is invalid.
        """
        check_keys(Sampling, self.sampling, "sampling")
        check_types(Sampling, self.sampling, "sampling")
        for name, is_allowed, rule in _SAMPLING_RANGES:
            value = self.sampling.get(name)
            if value is not None and not is_allowed(value):
                raise ConfigurationError(f"sampling: {name} must be {rule}, got {value!r}")
        values = {
            key: tuple(value) if key in _SAMPLING_LISTS else value
            for key, value in self.sampling.items()
        }
        return replace(trainer, **values)


_SAMPLING_LISTS: Final = ("stop", "stop_ids", "banned_ids")
_SAMPLING_RANGES: Final[tuple[tuple[str, Callable[[float], bool], str], ...]] = (
    ("temperature", lambda value: value >= 0, "at least 0"),
    ("top_p", lambda value: 0 < value <= 1, "above 0 and at most 1"),
    ("top_k", lambda value: value >= 1, "at least 1, or null for every token"),
    ("max_new_tokens", lambda value: value >= 1, "at least 1"),
)


def _check_ranges(config: RolloutConfig) -> None:
    if config.isolation != "none" and config.isolation not in (known := plugins(ISOLATION)):
        raise UnknownNameError.suggest("isolation", config.isolation, ["none", *known])
    at_least(1, worker_memory_mb=config.worker_memory_mb)
    if config.workers < 0 or (config.player_options and not config.workers):
        raise ConfigurationError(
            "workers must be the number of workers, 0 for none, and at least 1 if there are "
            f"player_options, got workers={config.workers} and {dict(config.player_options)}"
        )
    if not 0 <= config.sanity_share <= 1:
        raise ConfigurationError(f"sanity_share must be 0 to 1, got {config.sanity_share}")


_WITH_PATHS: Final = (
    "env_kwargs",
    "engine",
    "agent",
    "history",
    "adjust_rewards",
    "player_options",
)
"""Settings whose own texts may be paths. Deeper texts belong to tasks, tools and templates."""


def read_settings(path: Path) -> dict[str, Any]:
    """Return the mapping of a JSON or YAML file.

    Raises:
        ConfigurationError: It cannot be read or does not contain a mapping.
    """
    path = Path(expanded(str(path)))
    return dict(section(read_data(path, "the configuration"), str(path)))


def with_overrides(settings: Mapping[str, Any], pairs: Iterable[str]) -> dict[str, Any]:
    """Return the settings with `path.to.key=value` overrides; values are JSON or plain text.

    Raises:
        ConfigurationError: A pair has no "=", its value starts like a JSON object or list but is
            not one, or its path leads through a value that is not a mapping.
    """
    changed: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    for pair in pairs:
        path, separator, text = pair.partition("=")
        *parents, name = path.split(".")
        if not separator or not name:
            raise ConfigurationError(
                f"--set takes KEY=VALUE, such as limits.max_images=4, got {pair!r}"
            )
        place = changed
        for parent in parents:
            inner: object = place.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigurationError(f"--set {pair!r}: {parent!r} is not a section")
            place = cast("dict[str, Any]", inner)
        try:
            place[name] = json.loads(text)
        except ValueError as error:
            if text.lstrip().startswith(("{", "[")):
                raise ConfigurationError(
                    f"--set {pair!r}: the value is not valid JSON ({error}); quote its keys and "
                    'texts, such as \'history={"keep_last_images": {"keep": 3}}\''
                ) from error
            place[name] = text
    return expanded_paths(changed)


def expanded_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with `envkit.files.expanded` paths in the sections that name files."""
    found = dict(settings)
    for name in _WITH_PATHS:
        given: object = found.get(name)
        if isinstance(given, Mapping):
            entries = cast("Mapping[str, Any]", given).items()
            found[name] = {key: _expanded(value) for key, value in entries}
        else:
            found |= {name: _expanded(given)} if name in found else {}
    return found


def _expanded(value: Any) -> Any:  # noqa: ANN401  # any setting
    if isinstance(value, list):
        return [_expanded(one) for one in cast("list[Any]", value)]
    return expanded(value) if isinstance(value, str) else value
