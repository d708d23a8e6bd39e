"""A run's envkit settings: the section `envkit` in SkyRL's configuration."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, cast

from envkit.errors import ConfigurationError
from envkit.plugins import foreign
from envkit.ranges import at_least, positive
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import LogprobKind
from envkit.rollout.setting_types import check_types
from envkit.trajectory.projection import RewardPlacement
from envkit_training.settings import check_discount


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyRLOptions:
    """Settings of this adapter. `from_mapping` reads them together with those of a rollout."""

    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    merge: bool = False
    """Step-wise rows whose prompts extend each other exactly are joined before SkyRL sees them,
    images included; its own `merge_stepwise_output` takes text only."""
    turn_discount: float | None = None
    """Compares each turn's discounted return with the same turn in its group; this is the discount
    per turn, 0 to 1. None compares whole episodes."""
    reward_placement: Literal["last", "turns"] = "last"
    """ "turns" puts each turn's reward on its reply's last token, for SkyRL's token-level
    estimators (gae, reinforce++). Whole trajectories only; `turn_discount` takes any rows."""
    task_fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a task's keys to the fields of the dataset row that fill them, such as
    "extra_info.question", "prompt.text" (of the last message) or "prompt.images"."""
    images: bool | None = None
    """Whether rows have tensors of images; None asks the model. False is for text environments on
    a vision-language model, whose forward in SkyRL fails on empty tensors."""
    max_resumes: int = 8
    """Maximum resumes of an episode that the server aborted; then it is a fault."""
    imports: tuple[str, ...] = ()
    """Modules that register environments; they are imported in the trainer's process and in
    workers."""
    timeout_s: float | None = 3600.0
    """As for `SkyRLEngine`; `engine.timeout_s` in the mapping."""
    logprob_kind: Literal["sampled", "raw"] | None = None
    """Kind of log-probabilities of a server that SkyRL did not start; `engine.logprob_kind` in the
    mapping. None reads it from SkyRL's configuration."""

    def __post_init__(self) -> None:
        """Reject invalid numbers.

        Raises:
            ConfigurationError: A number out of its range.
        """
        at_least(0, max_resumes=self.max_resumes)
        positive(timeout_s=self.timeout_s)
        check_discount(self.turn_discount)

    @property
    def placement(self) -> RewardPlacement:
        """Where rewards are placed in a row."""
        in_turns = self.turn_discount is not None or self.reward_placement == "turns"
        return RewardPlacement.TURNS if in_turns else RewardPlacement.LAST

    @property
    def server_logprobs(self) -> LogprobKind | None:
        """The run's setting for the server's log-probabilities."""
        return None if self.logprob_kind is None else LogprobKind(self.logprob_kind)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> "SkyRLOptions":
        """Read settings.

        Args:
            mapping: Keys of this class except `timeout_s` and `logprob_kind`, which belong to the
                mapping `engine`, and the keys of `envkit.rollout.RolloutConfig`. None gives the
                defaults.

        Raises:
            ConfigurationError: An unknown key (with a suggestion), or an invalid value.
        """
        data = dict(mapping or {})
        own: dict[str, Any] = {key: data.pop(key) for key in _OWN & data.keys()}
        engine: object = data.pop("engine", None) or {}
        if not isinstance(engine, Mapping) or set(cast("dict[str, Any]", engine)) - _ENGINE:
            raise ConfigurationError(
                f"envkit.engine must be a mapping of {sorted(_ENGINE)}, got {engine!r:.80}"
            )
        own |= cast("dict[str, Any]", engine)
        if isinstance(own.get("imports"), str):
            own["imports"] = (own["imports"],)
        check_types(cls, own, "envkit")
        tail = "trainer.fully_async.max_staleness_steps with the fully asynchronous trainer"
        return cls(rollout=RolloutConfig.for_trainer(data, tail=tail), **own)


def import_all(names: Iterable[str]) -> None:
    """Import the modules of `SkyRLOptions.imports` in this process.

    Raises:
        ConfigurationError: One cannot be imported.
    """
    for name in names:
        with foreign(f"envkit.imports: {name!r} fails to import", ConfigurationError):
            importlib.import_module(name)


_ENGINE: Final = {"timeout_s", "logprob_kind"}
_OWN: Final = {entry.name for entry in fields(SkyRLOptions)} - {"rollout"} - _ENGINE
