"""What a run says about envkit: the mapping `envkit` beside SkyRL's own configuration."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, cast

from envkit.errors import ConfigurationError
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import LogprobKind
from envkit.trajectory.projection import RewardPlacement


class GeneratorKind(StrEnum):
    """Which loop plays the environments."""

    ENVKIT = "envkit"
    """envkit's own, behind SkyRL's generator interface."""
    SKYRL = "skyrl"
    """SkyRL's own, with the environments as `SkyRLEnv`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyRLOptions:
    """Settings of this adapter. `from_mapping` reads them together with those of a rollout."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    merge: bool = False
    """Step-wise rows whose prompts extend each other exactly are joined before SkyRL sees them,
    pictures included; its own `merge_stepwise_output` takes text only."""
    reward_placement: RewardPlacement = RewardPlacement.LAST
    """TURNS puts each turn's reward on its reply's last token; whole trajectories only, since
    SkyRL's step-wise advantages read the last row alone."""
    pictures: bool | None = None
    """Whether rows have tensors of pictures; None asks the model. False is for text environments
    on a vision-language model, whose forward in SkyRL fails on empty tensors."""
    max_resumes: int = 8
    """How often an episode that the server aborted is gone on with; then it is masked."""
    generator: GeneratorKind = GeneratorKind.ENVKIT
    imports: tuple[str, ...] = ()
    """Modules that register environments; they are imported in the trainer's process."""
    timeout_s: float | None = 3600.0
    """As for `SkyRLEngine`; `engine.timeout_s` in the mapping."""
    logprob_kind: LogprobKind | None = None
    """Of a server that SkyRL did not start; `engine.logprob_kind` in the mapping. None reads it
    from SkyRL's configuration."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
            ConfigurationError: A negative count, or a timeout that is not positive.
        """
        if self.max_resumes < 0:
            raise ConfigurationError(f"max_resumes must be 0 or more, got {self.max_resumes}")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ConfigurationError(
                f"engine.timeout_s must be positive or null, got {self.timeout_s}"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> "SkyRLOptions":
        """Read settings.

        Args:
            mapping: Keys of this class but `timeout_s` and `logprob_kind`, which stand in the
                mapping `engine`, and the keys of `envkit.rollout.RolloutConfig`. None gives the
                defaults.

        Raises:
            ConfigurationError: An unknown key (the nearest one is named), or a value that does not
                fit.
        """
        data = dict(mapping or {})
        own: dict[str, Any] = {key: data.pop(key) for key in _OWN_KEYS if key in data}
        own |= _engine_options(data.get("engine"))
        for key, kind in _ENUMS.items():
            if own.get(key) is not None:
                own[key] = _member(kind, own[key], key)
        if "imports" in own:
            own["imports"] = _names(own["imports"])
        for key in ("merge", "pictures"):
            if not isinstance(own.get(key, False), bool | None):
                raise ConfigurationError(f"{key} must be true or false, got {own[key]!r}")
        return cls(rollout=RolloutConfig.from_mapping(data), **own)


_OWN_KEYS: Final = (
    "merge",
    "reward_placement",
    "pictures",
    "max_resumes",
    "generator",
    "imports",
)
_ENGINE_KEYS: Final = ("timeout_s", "logprob_kind")
_ENUMS: Final[Mapping[str, type[StrEnum]]] = {
    "reward_placement": RewardPlacement,
    "generator": GeneratorKind,
    "logprob_kind": LogprobKind,
}


def _engine_options(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"engine must be a mapping, got {value!r:.80}")
    options = dict(cast("Mapping[str, Any]", value))
    for key in options:
        if key not in _ENGINE_KEYS:
            nearest = difflib.get_close_matches(key, _ENGINE_KEYS, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ConfigurationError(f"engine has no key {key!r}{hint} Known: {_ENGINE_KEYS}")
    return options


def _member(kind: type[StrEnum], value: object, key: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError as error:
        choices = [entry.value for entry in kind]
        raise ConfigurationError(f"{key} must be one of {choices}, got {value!r}") from error


def _names(value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) for name in cast("list[object]", names)
    ):
        raise ConfigurationError(f"imports must be a list of module names, got {value!r:.80}")
    return tuple(cast("list[str]", names))
