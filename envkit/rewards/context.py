"""The inputs of a reward function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envkit.messages import Message
from envkit.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """A finished episode, or the scored part of it."""

    task: Task
    answer: str
    """The final answer without calls and thinking; empty if the episode ended without one."""
    messages: Sequence[Message] = ()
    """The conversation so far, including the last reply."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other values from the environment, whose documentation lists the keys."""
