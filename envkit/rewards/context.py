"""What a reward is computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envkit.messages import Message
from envkit.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """A finished episode, or the part of it that is scored."""

    task: Task
    answer: str
    """The final answer, without calls and thinking. Empty if the episode ended without one."""
    messages: Sequence[Message] = ()
    """The conversation so far, the last reply included."""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else the environment counted; its documentation names the keys."""
