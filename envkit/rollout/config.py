"""A rollout's settings as a mapping, for trainers that take YAML or command-line overrides."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, cast

from envkit.agents import load_adjust
from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling
from envkit.rollout.limits import Limits
from envkit.rollout.request import EpisodeRequest
from envkit.rollout.retries import Backoff, RetryBudget
from envkit.rollout.setup import RolePlan

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """Which environment, and how episodes are played. Every key is optional."""

    env_id: str | None = None
    """None where every dataset row names its own."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limits: Limits = field(default_factory=Limits)
    retries: RetryBudget = field(default_factory=RetryBudget)
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Sampling` that win over the trainer's own settings."""
    history: Literal["keep", "rerender"] = "keep"
    """As for `ChatCodec`."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables of the chat template, such as `enable_thinking`."""
    engine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the adapter's engine."""
    adjust_rewards: str | None = None
    """Of environments with several agents: "team_mean", "team_last" or the place of a function,
    `module:function`; None keeps the environment's rewards."""
    seed: int = 0
    """Of the run; every group's seed is derived from it."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> "RolloutConfig":
        """Read settings.

        Args:
            mapping: Keys are the fields of this class; `limits`, `retries` and `retries.backoff`
                are mappings in turn. None gives the defaults.

        Raises:
            ConfigurationError: An unknown key (the nearest one is named), or a value that does not
                fit.
        """
        data = dict(mapping or {})
        nested: dict[str, Any] = {}
        if "limits" in data:
            nested["limits"] = _build(Limits, data["limits"], "limits")
        if "retries" in data:
            nested["retries"] = _retries(data["retries"])
        for name in ("env_kwargs", "sampling", "template_kwargs", "engine"):
            if name in data:
                nested[name] = _section(data[name], name)
        if data.get("history", "keep") not in ("keep", "rerender"):
            raise ConfigurationError(
                f"history must be 'keep' or 'rerender', got {data['history']!r}"
            )
        config = _build(cls, {**data, **nested}, "the configuration")
        config.sampling_over(Sampling())
        config.role_plan()
        return config

    def role_plan(self) -> RolePlan:
        """Return what differs between the roles of environments with several agents.

        Raises:
            ConfigurationError: `adjust_rewards` names no function.
        """
        place: Any = self.adjust_rewards  # YAML may hold anything
        if place is None:
            return RolePlan()
        if not isinstance(place, str):
            raise ConfigurationError(f"adjust_rewards must be a name, got {place!r:.80}")
        return RolePlan(adjust_rewards=load_adjust(place))

    def request(self) -> EpisodeRequest | None:
        """Return what a dataset row inherits; None where rows name their own environment."""
        if self.env_id is None:
            return None
        return EpisodeRequest(env_id=self.env_id, env_kwargs=self.env_kwargs)

    def sampling_over(self, trainer: Sampling) -> Sampling:
        """Return the trainer's sampling with this configuration's own values.

        Raises:
            ConfigurationError: An unknown key.
        """
        _check_keys(Sampling, self.sampling, "sampling")
        values = {
            key: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
            for key, value in self.sampling.items()
        }
        return replace(trainer, **values)


def _retries(value: object) -> RetryBudget:
    data = dict(_section(value, "retries"))
    if "backoff" in data:
        data["backoff"] = _build(Backoff, data["backoff"], "retries.backoff")
    return _build(RetryBudget, data, "retries")


def _section(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{name!r} must be a mapping of names to values, got {type(value).__name__}"
        )
    return cast("Mapping[str, Any]", value)


def _build(cls: type[T], value: object, where: str) -> T:
    data = _section(value, where)
    _check_keys(cls, data, where)
    try:
        return cls(**data)
    except TypeError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _check_keys(cls: type, data: Mapping[str, Any], where: str) -> None:
    known = [entry.name for entry in fields(cls)]
    for key in data:
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ConfigurationError(f"{where} has no key {key!r}{hint} Known: {known}")
