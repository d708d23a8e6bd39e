"""Bounds of an episode: limits that end it, and retry budgets.

Limits are checked before every reply in this order: abort, episode timeout, turns, response tokens,
sampled tokens, context tokens. An observation is checked before it is appended, so no observation
is cut in the middle, and the ledger never ends with one.
"""

import random
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from envkit.errors import ConfigurationError
from envkit.ranges import at_least, positive
from envkit.rollout.setting_types import check_fields
from envkit.trajectory.stop import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one episode. None is unlimited."""

    max_turns: int | None = None
    """Maximum replies. The environment's own `max_turns` also applies; the smaller one ends the
    episode."""
    max_tokens_per_turn: int | None = None
    """Maximum sampled tokens of one reply. A reply that reaches it without a stop token ends the
    episode (TURN_TOKENS). `Sampling.max_new_tokens`, in contrast, only cuts the reply: the
    environment gets the text so far, and the codec adds the closing token with mask 0."""
    max_response_tokens: int | None = None
    """Maximum tokens of replies and observations, images expanded. Prompts do not count, not even
    those of a rewritten history."""
    max_sampled_tokens: int | None = None
    """Maximum sampled tokens of the episode, summed over all of its sequences."""
    max_context_tokens: int | None = None
    """Maximum tokens of one sequence, prompt included: the model's or server's limit."""
    max_images: int | None = None
    """Maximum images in the context, including the prompt's."""
    episode_timeout_s: float | None = None
    """Maximum wall-clock seconds from the first reset."""

    def __post_init__(self) -> None:
        """Reject bounds that allow no episode.

        Raises:
            ConfigurationError: A bound has the wrong type or is not positive (`max_images` may be
                0).
        """
        check_fields(self, "limits")
        bounds = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        at_least(0, max_images=bounds.pop("max_images"))
        positive(**bounds)

    def tightest(self, *others: "Limits") -> "Limits":
        """Return the tighter bound of each kind, such as when a trainer has its own limits."""
        bounds: dict[str, Any] = {}
        for entry in fields(self):
            given = [getattr(limits, entry.name) for limits in (self, *others)]
            bounds[entry.name] = min((one for one in given if one is not None), default=None)
        return Limits(**bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential delays with jitter, in seconds."""

    initial_s: float = 0.2
    factor: float = 2.0
    maximum_s: float = 10.0
    jitter: float = 0.2
    """Random share of the delay, so that failed calls are not all retried at once."""

    def __post_init__(self) -> None:
        """Reject invalid delays.

        Raises:
            ConfigurationError: A value has the wrong type, a time or factor is negative, or the
                jitter is above 1.
        """
        check_fields(self, "retries.backoff")
        at_least(0, **asdict(self))
        if self.jitter > 1:
            raise ConfigurationError(f"jitter must be at most 1, got {self.jitter!r}")

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Return the seconds to wait after failed attempt number `attempt`, counted from 0."""
        base = min(self.maximum_s, self.initial_s * self.factor**attempt)
        return base * (1.0 - self.jitter * rng.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """What may be retried, and how long a call may take.

    A failed step is recovered according to the environment's capabilities: from the snapshot taken
    before it, else by reset and replay of the recorded replies with every observation compared,
    else by a restart of the episode in a fresh environment. Otherwise it is a fault. Except after a
    restart, the model's reply is kept and never resampled.
    """

    max_env_retries_per_turn: int = 2
    max_env_retries_per_episode: int = 6
    max_engine_retries_per_turn: int = 2
    """Retries of `generate` after failures of one request, not of an unavailable engine."""
    engine_unavailable_s: float | None = 600.0
    """Seconds that a turn waits for an engine that is unreachable or rejects all requests. One
    episode at a time tries it; the others wait. None waits forever, 0 not at all."""
    max_episode_restarts: int = 1
    """Restarts in a fresh environment with a new ledger, if a step cannot be recovered."""
    resample_on_parse_error: int = 0
    """Replies per turn that may be discarded and resampled because they did not parse. Needs an
    environment with snapshot or replay. 0 keeps them as turns, so the policy learns from them."""
    step_timeout_s: float | None = 120.0
    """Timeout of one `step`; None waits forever."""
    reset_timeout_s: float | None = 300.0
    """Timeout of one `reset`, including building the environment; None waits forever."""
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        """Reject negative budgets.

        Raises:
            ConfigurationError: A value has the wrong type, a count is negative, or a timeout is not
                positive.
        """
        check_fields(self, "retries")
        positive(step_timeout_s=self.step_timeout_s, reset_timeout_s=self.reset_timeout_s)
        counts = asdict(self)
        del counts["backoff"]  # has checked itself
        at_least(0, **counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyBudget:
    """The token limit of the next reply, and why the episode ends if the reply reaches it."""

    tokens: int
    reason: StopReason | None
    """Why the episode ends if the reply uses all tokens; None if it continues."""


def reply_budget(
    limits: Limits,
    *,
    requested: int,
    already: int,
    response_tokens: int,
    sampled_tokens: int,
    context_tokens: int,
) -> ReplyBudget:
    """Return the room for the next reply; `tokens` below 1 ends the episode with `reason`.

    Args:
        limits: The bounds.
        requested: `Sampling.max_new_tokens`.
        already: Tokens of this reply sampled by an earlier, aborted call.
        response_tokens: Tokens after the prompt so far.
        sampled_tokens: Sampled tokens among them.
        context_tokens: Length of the context so far, images expanded.
    """
    candidates = [ReplyBudget(tokens=requested - already, reason=None)]
    for bound, used, reason in (
        (limits.max_tokens_per_turn, already, StopReason.TURN_TOKENS),
        (limits.max_response_tokens, response_tokens, StopReason.RESPONSE_TOKENS),
        (limits.max_sampled_tokens, sampled_tokens, StopReason.SAMPLED_TOKENS),
        (limits.max_context_tokens, context_tokens, StopReason.CONTEXT_TOKENS),
    ):
        if bound is not None:
            candidates.append(ReplyBudget(tokens=bound - used, reason=reason))
    # On a tie the limit wins over the sampling parameter, because the episode ends either way.
    return min(candidates, key=lambda room: (room.tokens, room.reason is None))


def observation_stop(
    limits: Limits, *, response_tokens: int, context_tokens: int, images: int
) -> StopReason | None:
    """Return why an observation must not be appended, or None.

    Args:
        limits: The bounds.
        response_tokens: Tokens after the prompt, including the observation.
        context_tokens: Length of the context, including the observation.
        images: Images in the context, including the observation's.
    """
    if limits.max_response_tokens is not None and response_tokens >= limits.max_response_tokens:
        return StopReason.RESPONSE_TOKENS
    if limits.max_context_tokens is not None and context_tokens >= limits.max_context_tokens:
        return StopReason.CONTEXT_TOKENS
    if limits.max_images is not None and images > limits.max_images:
        return StopReason.MAX_IMAGES
    return None
