"""One role of a joint episode, as an environment that the rollout loop plays."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from envkit.agents.env import MultiAgentEnv
from envkit.async_env import AsyncEnv
from envkit.env import Policy, PolicyContext
from envkit.errors import ConfigurationError
from envkit.messages import Message
from envkit.reply import Reply
from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit.turns import Observation, Step, Turn

RolePolicy = Callable[[MultiAgentEnv, str, PolicyContext], str]
"""Writes a role's reply from the shared environment, the role and the role's own context. The
environment does not change while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The step result of one role."""

    turn: Turn
    is_truncated: bool = False
    """Whether the joint episode was cut at its last round."""


class RoleEnv(AsyncEnv):
    """Plays one role: submits each reply and waits for the role's next observation.

    The wait depends on the other roles, so a rollout plays a role without deadlines. The caller of
    the joint environment enforces those.
    """

    def __init__(
        self,
        role: str,
        first: Turn,
        *,
        joint_env: Callable[[], MultiAgentEnv],
        exchange: Callable[[Reply], Awaitable[Delivery]],
    ) -> None:
        """Take the role.

        Args:
            role: The role to play.
            first: The role's first observation.
            joint_env: Returns the current joint environment; a recovery may replace it.
            exchange: Submits a reply and waits for the answer.
        """
        super().__init__(max_turns=joint_env().max_turns)
        self.role = role
        self.system_prompt = joint_env().system_prompt_of(role)
        self.tools = joint_env().tools_of(role)
        self.default_threshold = joint_env().reward_threshold
        self._first, self._joint_env, self._exchange = first, joint_env, exchange

    @property
    def joint_env(self) -> MultiAgentEnv:
        """The joint environment. Never call its `reset` or `step`."""
        return self._joint_env()

    @property
    def history_policy(self) -> str | Mapping[str, Any] | None:  # type: ignore[override]  # differs by role
        """The role's history policy, as the joint environment sets it."""
        return self.joint_env.history_policy_of(self.role)

    async def on_areset(self, task: Task) -> Turn:
        """Return the role's first observation."""
        return self._first

    async def astep(self, action: str) -> Step:
        """Submit the reply and wait for the role's next observation or its end.

        Raises:
            EpisodeStateError: The role has stopped speaking.
        """
        delivery = await self._exchange(self._hear(action))
        step = self._advance(action, delivery.turn)
        if delivery.is_truncated and not step.terminated:
            self._running = False
            return step._replace(truncated=True)
        return step

    def format_observation(self, observation: Observation) -> Message:
        """Return the chat message built by the joint environment."""
        return self.joint_env.format_observation(observation)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return a shorter form built by the joint environment, or None."""
        return self.joint_env.shorten(observation, tokens)


def by_role(write: RolePolicy) -> Policy:
    """Return a policy that plays every role, one at a time or all in a joint reply.

    Each role's context has its own seed and that role's messages.
    """

    def reply(context: PolicyContext) -> str:
        env: Any = context.env.unwrapped
        if isinstance(env, RoleEnv):
            return _write(env.joint_env, env.role, context)
        if not isinstance(env, MultiAgentEnv):
            raise ConfigurationError(
                f"this policy plays environments with several agents, got {type(env).__name__}"
            )
        return json.dumps({role: _joint_part(env, role, context) for role in env.addressed})

    def _write(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
        return write(env, role, replace(context, seed=derive_seed(context.seed, role)))

    def _joint_part(env: MultiAgentEnv, role: str, context: PolicyContext) -> str:
        messages = env.conversations[role]
        spoken = sum(entry["role"] == "assistant" for entry in messages)
        return _write(env, role, replace(context, turn=spoken, messages=messages))

    return reply
