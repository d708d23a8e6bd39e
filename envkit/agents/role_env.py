"""One role of a joint episode, as an environment that the rollout loop plays."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from envkit.agents.env import MultiAgentEnv
from envkit.async_env import AsyncEnv
from envkit.messages import Message
from envkit.tasks import Task
from envkit.turns import Observation, Step, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a role gets for its reply."""

    turn: Turn
    is_truncated: bool = False
    """Whether the joint episode was cut at its last round."""


class RoleEnv(AsyncEnv):
    """Plays one role: submits each reply and waits for what the role reads next.

    The wait lasts as long as the siblings take, so a rollout plays a role without deadlines; the
    caller of the joint environment keeps those.
    """

    def __init__(
        self,
        role: str,
        first: Turn,
        *,
        joint_env: Callable[[], MultiAgentEnv],
        exchange: Callable[[str], Awaitable[Delivery]],
    ) -> None:
        """Take the role.

        Args:
            role: Whose it is.
            first: What the role reads first.
            joint_env: Returns the joint environment as it is now; a recovery may replace it.
            exchange: Submits a reply and waits for the answer.
        """
        super().__init__(max_turns=joint_env().max_turns)
        self.role = role
        self.system_prompt = joint_env().system_prompt_of(role)
        self.tools = joint_env().tools_of(role)
        self._first, self._joint_env, self._exchange = first, joint_env, exchange

    @property
    def joint_env(self) -> MultiAgentEnv:
        """The joint environment. Never call its `reset` or `step`."""
        return self._joint_env()

    async def on_areset(self, task: Task) -> Turn:
        """Return what the role reads first."""
        return self._first

    async def astep(self, action: str) -> Step:
        """Submit the reply and wait for what the role reads next, or for its end.

        Raises:
            EpisodeStateError: The role has stopped speaking.
        """
        self._require_running(action)
        delivery = await self._exchange(action)
        step = self._advance(action, delivery.turn)
        if delivery.is_truncated and not step.terminated:
            self._running = False
            return step._replace(truncated=True)
        return step

    def format_observation(self, observation: Observation) -> Message:
        """Return the chat message, as the joint environment makes it."""
        return self.joint_env.format_observation(observation)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return a shorter form, as the joint environment makes it, or None."""
        return self.joint_env.shorten(observation, tokens)
