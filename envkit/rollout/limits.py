"""Bounds of an episode: limits that end it, and budgets for retries.

Order of the checks, before every reply: abort, episode timeout, turns, response tokens, sampled
tokens, context tokens. An observation is checked before it is appended, so none is ever cut in the
middle, and the ledger never ends with one.
"""

import random
from dataclasses import dataclass, field, fields
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.setting_types import check_fields
from envkit.trajectory.stop import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one episode. None is unlimited."""

    max_turns: int | None = None
    """Replies. An environment also has its own `max_turns`; the smaller one ends the episode."""
    max_tokens_per_turn: int | None = None
    """Sampled tokens of one reply; a reply that reaches it without a stop token ends the episode
    (TURN_TOKENS). `Sampling.max_new_tokens`, in contrast, only cuts the reply: the environment
    sees what there is, and the codec writes the missing closing token with mask 0."""
    max_response_tokens: int | None = None
    """Replies and observations, images expanded. Prompts are free, those of a rewritten history
    included."""
    max_sampled_tokens: int | None = None
    """Sampled tokens of the whole episode, over every sequence that its history was split into."""
    max_context_tokens: int | None = None
    """Prompt and what follows in one sequence; the model's or the server's context length."""
    max_images: int | None = None
    """Images in the context, the prompt's included."""
    episode_timeout_s: float | None = None
    """Wall-clock seconds from the first reset."""

    def __post_init__(self) -> None:
        """Refuse bounds that leave no episode.

        Raises:
            ConfigurationError: A bound of another type, or not positive (`max_images` may be 0).
        """
        check_fields(self, "limits")
        for entry in fields(self):
            value = getattr(self, entry.name)
            floor = 0 if entry.name == "max_images" else 1e-9
            if value is not None and not value >= floor:
                raise ConfigurationError(
                    f"{entry.name} must be positive or None for unlimited, got {value!r}"
                )

    def tightest(self, *others: "Limits") -> "Limits":
        """Return the tighter bound of each kind, as where a trainer has limits of its own."""
        bounds: dict[str, Any] = {}
        for entry in fields(self):
            given = [getattr(limits, entry.name) for limits in (self, *others)]
            bounds[entry.name] = min((one for one in given if one is not None), default=None)
        return Limits(**bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential waiting with jitter. Times are seconds."""

    initial_s: float = 0.2
    factor: float = 2.0
    maximum_s: float = 10.0
    jitter: float = 0.2
    """Share of the delay that is drawn at random, so that failed calls do not return together."""

    def __post_init__(self) -> None:
        """Refuse waiting times that are none.

        Raises:
            ConfigurationError: A value of another type, a negative time or factor, or a jitter
                above 1.
        """
        check_fields(self, "retries.backoff")
        for name in ("initial_s", "factor", "maximum_s", "jitter"):
            value = getattr(self, name)
            if not value >= 0:
                raise ConfigurationError(f"{name} must be 0 or more, got {value!r}")
        if self.jitter > 1:
            raise ConfigurationError(f"jitter must be at most 1, got {self.jitter!r}")

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
    """Of `generate`, for failures of one request. An engine that is away is waited for instead."""
    engine_away_s: float | None = 600.0
    """How long a turn waits for an engine that is away (unreachable, or it refuses all requests).
    One episode at a time tries it; the others wait. None waits for ever, 0 not at all."""
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
            ConfigurationError: A value of another type, a negative count, or a timeout that is not
                positive.
        """
        check_fields(self, "retries")
        for name in (
            "max_env_retries_per_turn",
            "max_env_retries_per_episode",
            "max_engine_retries_per_turn",
            "max_episode_restarts",
            "resample_on_parse_error",
        ):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.engine_away_s is not None and not self.engine_away_s >= 0:
            raise ConfigurationError(
                f"engine_away_s must be 0 or more, or None, got {self.engine_away_s!r}"
            )
        for name in ("step_timeout_s", "reset_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} must be positive or None, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many tokens the next reply may have, and what a reply of that length would mean."""

    tokens: int
    reason: StopReason | None
    """Why the episode ends when the reply uses it all up; None lets the episode go on."""


def room_for_reply(
    limits: Limits,
    *,
    requested: int,
    already: int,
    response_tokens: int,
    sampled_tokens: int,
    context_tokens: int,
) -> Room:
    """Return the room for the next reply; `tokens` below 1 ends the episode for `reason`.

    Args:
        limits: The bounds.
        requested: `Sampling.max_new_tokens`.
        already: Tokens of this reply that an earlier, aborted call has sampled.
        response_tokens: Tokens after the prompt so far.
        sampled_tokens: Those of them that the model sampled.
        context_tokens: Length of the context so far, images expanded.
    """
    candidates = [Room(tokens=requested - already, reason=None)]
    for bound, used, reason in (
        (limits.max_tokens_per_turn, already, StopReason.TURN_TOKENS),
        (limits.max_response_tokens, response_tokens, StopReason.RESPONSE_TOKENS),
        (limits.max_sampled_tokens, sampled_tokens, StopReason.SAMPLED_TOKENS),
        (limits.max_context_tokens, context_tokens, StopReason.CONTEXT_TOKENS),
    ):
        if bound is not None:
            candidates.append(Room(tokens=bound - used, reason=reason))
    # On a tie the limit wins over the sampling parameter: the episode is over either way.
    return min(candidates, key=lambda room: (room.tokens, room.reason is None))


def observation_stop(
    limits: Limits, *, response_tokens: int, context_tokens: int, images: int
) -> StopReason | None:
    """Return why an observation must not be appended, or None.

    Args:
        limits: The bounds.
        response_tokens: What it would be with the observation.
        context_tokens: What it would be with the observation.
        images: How many the context would have.
    """
    if limits.max_response_tokens is not None and response_tokens >= limits.max_response_tokens:
        return StopReason.RESPONSE_TOKENS
    if limits.max_context_tokens is not None and context_tokens >= limits.max_context_tokens:
        return StopReason.CONTEXT_TOKENS
    if limits.max_images is not None and images > limits.max_images:
        return StopReason.MAX_IMAGES
    return None
