"""Why an episode ended."""

from enum import StrEnum


class StopReason(StrEnum):
    """Why an episode ended. Exactly one for each trajectory."""

    TERMINATED = "terminated"
    """The environment said that the task is over."""
    ENV_TRUNCATED = "env_truncated"
    """The environment's own turn limit was reached."""
    MAX_TURNS = "max_turns"
    """`Limits.max_turns` was reached before the environment ended the episode."""
    TURN_TOKENS = "turn_tokens"
    """A reply used up `Limits.max_tokens_per_turn` without a stop token."""
    RESPONSE_TOKENS = "response_tokens"
    """The budget of tokens after the prompt, observations included, is used up."""
    CONTEXT_TOKENS = "context_tokens"
    """The next prompt or observation would not fit in the context."""
    MAX_IMAGES = "max_images"
    """The next observation would exceed `Limits.max_images`."""
    EPISODE_TIMEOUT = "episode_timeout"
    """`Limits.episode_timeout_s` has passed."""
    ABORTED = "aborted"
    """Somebody stopped the rollout; the trajectory is valid as far as it goes, and resumable."""
    ENV_FAULT = "env_fault"
    """The environment failed and no retry recovered it."""
    ENGINE_FAULT = "engine_fault"
    """The engine failed and no retry recovered it."""
    LEDGER_FAULT = "ledger_fault"
    """The token record would not have been exact."""

    @property
    def is_fault(self) -> bool:
        """Whether infrastructure, not the policy, ended the episode."""
        return self in (StopReason.ENV_FAULT, StopReason.ENGINE_FAULT, StopReason.LEDGER_FAULT)

    @property
    def is_truncation(self) -> bool:
        """Whether a limit ended the episode, as opposed to its task being over."""
        return self in (
            StopReason.ENV_TRUNCATED,
            StopReason.MAX_TURNS,
            StopReason.TURN_TOKENS,
            StopReason.RESPONSE_TOKENS,
            StopReason.CONTEXT_TOKENS,
            StopReason.MAX_IMAGES,
            StopReason.EPISODE_TIMEOUT,
        )
