"""Environments with history policies of their own, importable by a worker process."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fakes.branching import Screens
from fakes.virtual_time import skip_from_thread

from envkit.agents import MultiAgentEnv
from envkit.env import Capabilities, Turn
from envkit.messages import Message, message
from envkit.rollout import HistoryView, Question
from envkit.tasks import Task


def last_two(view: HistoryView) -> Sequence[Message] | None:
    """Keep the task, the last reply and its answer."""
    return [*view.opening, *view.messages[-2:]] if len(view.messages) > 4 else None


def never(view: HistoryView) -> None:
    """Take longer than a step may."""
    skip_from_thread(HangingRole.loop, 120)


def leave(view: HistoryView) -> None:
    """End the process."""
    raise SystemExit(3)


def ask_once(view: HistoryView, rewritten: str | None = None) -> Question | None:
    """Ask after the second reply; the answer, or another text, replaces the history."""
    if view.turn != 2:
        return None

    def rewrite(answer: str) -> Sequence[Message]:
        return [*view.opening, message("user", rewritten or answer)]

    return Question(text="What next?", max_tokens=7, rewrite=rewrite)


def ask_and_overflow(view: HistoryView) -> Question | None:
    """Ask too, and then remember more than fits."""
    return ask_once(view, "long " * 400)


class Own(Screens):
    """Has a function for a policy."""

    history_policy: ClassVar = f"{__name__}:last_two"


class PerTask(Screens):
    """Sets its policy at the reset."""

    def on_reset(self, task: Task) -> Turn:
        self.history_policy = {"keep_last_turns": {"keep": 1, "drop_at": 2}}  # type: ignore[misc]
        return super().on_reset(task)


class Raising(Screens):
    """Has a policy that cannot be read."""

    @property
    def history_policy(self) -> Any:  # type: ignore[override]
        raise SystemExit(5)


class Untyped(Screens):
    """Has a number for a policy."""

    history_policy: ClassVar[Any] = 5


class Pair(MultiAgentEnv):
    """Two roles that speak in turn; each may have its own policy."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)
    roles = ("first", "second")
    policies_by_role: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(max_turns=7)

    def history_policy_of(self, role: str) -> str | Mapping[str, Any] | None:
        return self.policies_by_role.get(role, super().history_policy_of(role))

    def on_reset(self, task: Task) -> Mapping[str, Turn]:
        return {role: Turn(f"You are {role}.") for role in self.roles}

    def on_replies(self, replies: Mapping[str, str | None]) -> Mapping[str, Turn]:
        return {role: Turn("Go on.", reward=1.0) for role in self.roles}


class SharedPolicy(Pair):
    """Both roles have the environment's policy."""

    history_policy: ClassVar = {"keep_last_turns": {"keep": 1, "drop_at": 2}}


class OwnPolicies(SharedPolicy):
    """The second role has another policy than the first."""

    policies_by_role: ClassVar[Mapping[str, Any]] = {"second": f"{__name__}:last_two"}


class HangingRole(Pair):
    """The policy of one role does not come back in time."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    policies_by_role: ClassVar[Mapping[str, Any]] = {"second": f"{__name__}:never"}


class LeavingRole(Pair):
    """The policy of one role exits."""

    policies_by_role: ClassVar[Mapping[str, Any]] = {"first": f"{__name__}:leave"}


class UntypedRole(Pair):
    """The policy of one role is a number."""

    policies_by_role: ClassVar[Mapping[str, Any]] = {"first": 5}


class UnreadableRole(Pair):
    """The policies cannot be read."""

    def history_policy_of(self, role: str) -> str | Mapping[str, Any] | None:
        raise SystemExit(5)
