"""Why an episode ended, and where its infrastructure failed if it did."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from envkit.errors import Fault, FaultKind, describe, message_of, traceback_of
from envkit.secrets import hidden

MAX_TEXT: Final = 16_384
"""Characters kept from the start of a fault's message and from the end of its traceback."""


class StopReason(StrEnum):
    """Why an episode ended. Each trajectory has exactly one."""

    TERMINATED = "terminated"
    """The environment reported that the task is over."""
    ENV_TRUNCATED = "env_truncated"
    """The environment's own turn limit was reached."""
    MAX_TURNS = "max_turns"
    """`Limits.max_turns` was reached before the environment ended the episode."""
    TURN_TOKENS = "turn_tokens"
    """A reply used up `Limits.max_tokens_per_turn` without a stop token."""
    RESPONSE_TOKENS = "response_tokens"
    """The budget of tokens after the prompt, observations included, is used up."""
    SAMPLED_TOKENS = "sampled_tokens"
    """The budget of sampled tokens, over all sequences of the episode, is used up."""
    CONTEXT_TOKENS = "context_tokens"
    """The next prompt or observation would not fit in the context."""
    MAX_IMAGES = "max_images"
    """The next observation would exceed `Limits.max_images`."""
    MAX_SEQUENCES = "max_sequences"
    """An agent's `max_sequences` was reached: it rewrote its history too often."""
    EPISODE_TIMEOUT = "episode_timeout"
    """`Limits.episode_timeout_s` has passed."""
    STEP_TIMEOUT = "step_timeout"
    """The environment's step missed its deadline, and the environment attributes that to the
    reply (`Capabilities.on_step_timeout`)."""
    ABORTED = "aborted"
    """The rollout was stopped; the partial trajectory is valid and can be resumed."""
    ENV_FAULT = "env_fault"
    """The environment failed and no retry recovered it."""
    ENGINE_FAULT = "engine_fault"
    """The engine failed and no retry recovered it."""
    LEDGER_FAULT = "ledger_fault"
    """The token record would not have been exact."""

    @property
    def is_fault(self) -> bool:
        """Whether infrastructure, not the policy, ended the episode."""
        return self in _FAULTS

    @property
    def is_truncation(self) -> bool:
        """Whether a limit ended the episode before its task was over."""
        return self in (
            StopReason.ENV_TRUNCATED,
            StopReason.MAX_TURNS,
            StopReason.TURN_TOKENS,
            StopReason.RESPONSE_TOKENS,
            StopReason.SAMPLED_TOKENS,
            StopReason.CONTEXT_TOKENS,
            StopReason.MAX_IMAGES,
            StopReason.MAX_SEQUENCES,
            StopReason.EPISODE_TIMEOUT,
            StopReason.STEP_TIMEOUT,
        )


_FAULTS: Final = (StopReason.ENV_FAULT, StopReason.ENGINE_FAULT, StopReason.LEDGER_FAULT)


class FaultPlace(StrEnum):
    """What an episode was doing when its infrastructure failed."""

    BUILD = "build"
    """Building the environment."""
    RESET = "reset"
    STEP = "step"
    SNAPSHOT = "snapshot"
    """Saving or restoring the environment's state."""
    GENERATE = "generate"
    """Waiting for the engine's reply."""
    LEDGER = "ledger"
    """Appending to the token record."""
    HISTORY = "history"
    """Applying the history policy."""
    REWARDS = "rewards"
    """Computing rewards after the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A failure that ended an episode."""

    where: FaultPlace
    kind: FaultKind
    message: str
    traceback: str | None = None
    """None if the fault was not an exception in this process."""

    @classmethod
    def of(cls, where: FaultPlace, error: BaseException) -> Self:
        """Describe any exception without secrets, even a huge one or one whose `__str__` raises.

        Args:
            where: What the episode was doing.
            error: A `Fault` keeps its kind; any other exception is permanent.
        """
        message = message_of(error)
        if not isinstance(error, Fault) or not message.strip():
            message = describe(error)
        return cls(
            where=where,
            kind=error.kind if isinstance(error, Fault) else FaultKind.PERMANENT,
            message=hidden(message[: 2 * MAX_TEXT])[:MAX_TEXT],
            traceback=hidden(traceback_of(error)[-2 * MAX_TEXT :])[-MAX_TEXT:],
        )
