"""One role's place in a shared episode, as an environment that the rollout loop plays."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

from envkit.agents.env import MultiAgentEnv
from envkit.async_env import AsyncEnv
from envkit.env import Capabilities
from envkit.messages import Message
from envkit.tasks import Task
from envkit.turns import Observation, Step, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a role gets for its reply."""

    turn: Turn
    is_truncated: bool = False
    """Whether the shared episode was cut at its last round."""


class Seat(AsyncEnv):
    """Plays one role: hands each reply in and waits for what the role reads next.

    The wait lasts as long as the siblings take, so a rollout plays a seat without deadlines; those
    of the shared environment are kept by whoever calls it.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(async_native=True)

    def __init__(
        self,
        role: str,
        first: Turn,
        *,
        game: Callable[[], MultiAgentEnv],
        exchange: Callable[[str], Awaitable[Delivery]],
    ) -> None:
        """Take the seat.

        Args:
            role: Whose it is.
            first: What the role reads first.
            game: Returns the shared environment as it is now; a recovery may replace it.
            exchange: Hands a reply in and waits for the answer.
        """
        super().__init__(max_turns=game().max_turns)
        self.role = role
        self.system_prompt = game().system_prompt_of(role)
        self.tools = game().tools_of(role)
        self._first, self._game, self._exchange = first, game, exchange

    @property
    def game(self) -> MultiAgentEnv:
        """The shared environment. Never call its `reset` or `step`."""
        return self._game()

    async def on_areset(self, task: Task) -> Turn:
        """Return what the role reads first."""
        return self._first

    async def astep(self, action: str) -> Step:
        """Hand the reply in and wait for what the role reads next, or for its end.

        Raises:
            EpisodeStateError: The role has stopped speaking.
        """
        self._require_running()
        delivery = await self._exchange(action)
        step = self._advance(action, delivery.turn)
        if delivery.is_truncated and not step.terminated:
            self._running = False
            return step._replace(truncated=True)
        return step

    def format_observation(self, observation: Observation) -> Message:
        """Return the chat message, as the shared environment makes it."""
        return self.game.format_observation(observation)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return a shorter form, as the shared environment makes it, or None."""
        return self.game.shorten(observation, tokens)
