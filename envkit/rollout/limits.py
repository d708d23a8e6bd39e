"""Where an episode ends if the environment does not end it.

Order of the checks, before every reply: abort, episode timeout, turns, response tokens, context
tokens. An observation is checked before it is appended, so none is ever cut in the middle, and the
ledger never ends with one.
"""

from dataclasses import dataclass, fields

from envkit.errors import ConfigurationError
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
    """Tokens after the prompt: replies and observations, images expanded. The prompt is free."""
    max_context_tokens: int | None = None
    """Prompt and everything after it; the model's or the server's context length."""
    max_images: int | None = None
    """Images in the context, the prompt's included."""
    episode_timeout_s: float | None = None
    """Wall-clock seconds from the first reset."""

    def __post_init__(self) -> None:
        """Refuse bounds that leave no episode.

        Raises:
            ConfigurationError: A bound that is not positive (`max_images` may be 0).
        """
        for entry in fields(self):
            value = getattr(self, entry.name)
            floor = 0 if entry.name == "max_images" else 1e-9
            if value is not None and value < floor:
                raise ConfigurationError(
                    f"{entry.name} must be positive or None for unlimited, got {value!r}"
                )


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
    context_tokens: int,
) -> Room:
    """Return the room for the next reply; `tokens` below 1 ends the episode for `reason`.

    Args:
        limits: The bounds.
        requested: `Sampling.max_new_tokens`.
        already: Tokens of this reply that an earlier, aborted call has sampled.
        response_tokens: Tokens after the prompt so far.
        context_tokens: Length of the context so far, images expanded.
    """
    candidates = [Room(tokens=requested - already, reason=None)]
    for bound, used, reason in (
        (limits.max_tokens_per_turn, already, StopReason.TURN_TOKENS),
        (limits.max_response_tokens, response_tokens, StopReason.RESPONSE_TOKENS),
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
