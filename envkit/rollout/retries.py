"""How often and how patiently failures are retried."""

import random
from dataclasses import dataclass, field

from envkit.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential waiting with jitter. Times are seconds."""

    initial_s: float = 0.2
    factor: float = 2.0
    maximum_s: float = 10.0
    jitter: float = 0.2
    """Share of the delay that is drawn at random, so that failed calls do not return together."""

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Return how long to wait after failed attempt number `attempt`, from 0."""
        base = min(self.maximum_s, self.initial_s * self.factor**attempt)
        return base * (1.0 - self.jitter * rng.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """What may be retried, and for how long a call may take.

    A failed step is recovered by what the environment declares: the snapshot taken before it, else
    reset and replay of the recorded replies with every observation compared, else a restart of the
    whole episode with a fresh environment, else a fault. The model's reply is kept, never
    re-sampled, except by a restart.
    """

    max_env_retries_per_turn: int = 2
    max_env_retries_per_episode: int = 6
    max_engine_retries_per_turn: int = 2
    """Of `generate`, on top of what an engine retries by itself."""
    max_episode_restarts: int = 1
    """With a fresh environment and a new ledger, where a step could not be recovered."""
    resample_on_parse_error: int = 0
    """Replies of one turn that may be thrown away and sampled again because they did not parse;
    needs an environment with snapshot or replay. 0 keeps them as turns, which is what a policy
    should learn from."""
    step_timeout_s: float | None = 120.0
    """Of one `step`; None waits for ever."""
    reset_timeout_s: float | None = 300.0
    """Of one `reset`, including building the environment; None waits for ever."""
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        """Refuse negative budgets.

        Raises:
            ConfigurationError: A negative count, or a timeout that is not positive.
        """
        for name in (
            "max_env_retries_per_turn",
            "max_env_retries_per_episode",
            "max_engine_retries_per_turn",
            "max_episode_restarts",
            "resample_on_parse_error",
        ):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must be 0 or more, got {getattr(self, name)}")
        for name in ("step_timeout_s", "reset_timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name} must be positive or None, got {value}")
