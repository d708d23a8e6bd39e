"""An episode that a person plays: one call per reply, off the event loop, with undo.

It calls the environment through the rollout's own recovery, so faults are retried and replays are
compared outcome by outcome. It creates no tokens: an engine plays through `envkit.rollout` (see
`branching.py`).
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from envkit.agents import MultiAgentEnv
from envkit.env import Env, Policy, PolicyContext
from envkit.errors import ConfigurationError, EnvFault, EpisodeStateError
from envkit.messages import Message, images_of, message, text_of
from envkit.registration import make, spec
from envkit.reply import Reply
from envkit.rollout.host import AnyEnv, EnvFactory, EnvHost
from envkit.rollout.limits import RetryBudget
from envkit.rollout.recovery import RecoveringEnv
from envkit.rollout.setup import EpisodeSpec
from envkit.seeds import checked_seed, derive_seed
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.trajectory.trajectory import Trajectory, TurnRecord
from envkit.turns import Step

T = TypeVar("T")


@runtime_checkable
class Clickable(Protocol):
    """An environment that can write the reply for a click."""

    def write_click(self, x: int, y: int) -> str:
        """Return the reply that clicks at a pixel of the last screenshot.

        Args:
            x: Pixels from the left.
            y: Pixels from the top.
        """
        ...


def factory_for(
    env: str | AnyEnv | EnvFactory,
    **kwargs: Any,  # noqa: ANN401  # whatever the constructor takes
) -> AnyEnv | EnvFactory:
    """Return what a game plays: the environment or function itself, or a function that makes an id.

    Raises:
        UnknownNameError: No environment has that id.
        ConfigurationError: Keyword arguments with something that is not an id.
    """
    if isinstance(env, str):
        spec(env)
        return lambda: make(env, **kwargs)
    if kwargs:
        raise ConfigurationError(
            f"keyword arguments go with an environment's id, got {sorted(kwargs)} beside "
            f"{type(env).__name__}"
        )
    return env


class Game:
    """One environment and its conversation. Use it on the event loop that created it.

    Calls are serialised: a second one waits for the first.
    """

    def __init__(
        self, env: AnyEnv | EnvFactory, *, seed: int | None = None, task: Task | None = None
    ) -> None:
        """Prepare an episode; `start` begins it.

        Args:
            env: An environment, which the caller closes, or a function that builds one.
            seed: Seed of the environment; None draws one.
            task: Plays this task; None draws one with the seed.
        """
        self.seed = checked_seed(secrets.randbits(31) if seed is None else seed)
        self.messages: list[Message] = []
        self.turns: list[TurnRecord] = []
        """One per reply, in order; those played here have no tokens and no times."""
        self.is_over = False
        self._task = task
        self._pool = WorkerPool()
        self._host = (
            EnvHost(self._pool, factory=env) if callable(env) else EnvHost(self._pool, env=env)
        )
        self._running = self._recovering()
        self._snapshots: list[bytes | None] = []
        self._first = ""
        self._oracle: Policy | None = None
        self.takes_clicks = False
        """Whether `click` can write a reply."""
        self.max_turns = 0
        """Maximum replies of the episode; 0 before the start."""
        self._turn_lock = asyncio.Lock()

    @property
    def env(self) -> Env:
        """The environment itself, without wrappers. Only after `start`."""
        return self._host.env

    @property
    def turn(self) -> int:
        """Replies so far."""
        return len(self.turns)

    @property
    def reward(self) -> float:
        """Sum of the rewards so far."""
        return sum(turn.reward or 0.0 for turn in self.turns)

    @property
    def replies(self) -> tuple[str, ...]:
        """The replies so far."""
        return tuple(turn.response_text for turn in self.turns)

    @property
    def has_oracle(self) -> bool:
        """Whether `oracle` can write the next reply."""
        return self._oracle is not None

    async def start(self) -> None:
        """Start the episode, or restart it.

        Raises:
            EnvFault: The environment failed, and its retries are exhausted.
            ConfigurationError: It has several agents.
        """
        async with self._turn_lock:
            await self._reset()

    async def reply(self, text: str) -> Step:
        """Play one reply and return the environment's answer.

        Raises:
            EpisodeStateError: The episode is over or has not started.
            EnvFault: The environment failed and cannot continue; `start` starts again.
        """
        async with self._turn_lock:
            if self.is_over or not self.messages:
                raise EpisodeStateError("the episode is over or never began: start it again")
            snapshot = await self._running.snapshot()
            played = await self._running.step(Reply(text=text))
            step, entry = played.step, played.message
            self._snapshots.append(snapshot)
            self.messages.append(message("assistant", text))
            if text_of(entry) or images_of([entry]):
                self.messages.append(entry)
            self.turns.append(
                TurnRecord(
                    turn=self.turn,
                    prompt_tokens=0,
                    response_text=text,
                    parse_error=step.info.get("parse_error"),
                    tool_call=step.info.get("tool_call"),
                    observation_hash=played.hash,
                    env_retries=dict(self._running.retries),
                    reward=step.reward,
                    info=step.info,
                )
            )
            self.is_over = step.terminated or step.truncated
            return step

    async def rewind(self, turn: int) -> None:
        """Go back to before a reply, by its snapshot or by a compared replay.

        Args:
            turn: Index of the first reply to undo.

        Raises:
            ConfigurationError: There is no such reply.
            EnvFault: The environment has neither snapshot nor replay, or the replay differed.
        """
        async with self._turn_lock:
            if not 0 <= turn < self.turn:
                raise ConfigurationError(
                    f"turn must be one of the {self.turn} replies so far, got {turn}"
                )
            kept, turns = before_reply(self.messages, turn), self.turns[:turn]
            snapshots = self._snapshots[: turn + 1]
            await self._bring_back(self._first, turns, snapshots.pop())
            self.messages, self.turns, self._snapshots = kept, turns, snapshots

    async def follow(self, trajectory: Trajectory, turn: int) -> None:
        """Replay a recorded episode up to before one of its replies.

        Args:
            trajectory: A trajectory of the same environment, made with the same arguments.
            turn: Index of the first reply that is not replayed.

        Raises:
            EnvFault: The replay differed from the record, or is not supported.
        """
        async with self._turn_lock:
            turns = list(trajectory.turns[:turn])
            await self._bring_back(trajectory.initial_observation_hash, turns, None)
            self.messages = before_reply(trajectory.messages, turn)
            self.turns, self._snapshots = turns, [None] * turn

    def oracle(self) -> str:
        """Return the oracle's next reply.

        Raises:
            ConfigurationError: It has no oracle.
        """
        if self._oracle is None:
            raise ConfigurationError("this environment has no oracle policy")
        return self._oracle(
            PolicyContext(
                env=self.env,
                task=dict(self.env.task),
                turn=self.turn,
                messages=self.messages,
                seed=derive_seed(self.seed, 0),
            )
        )

    def click(self, x: int, y: int) -> str:
        """Return the reply that clicks at a pixel of the last screenshot.

        Raises:
            ConfigurationError: The environment takes no clicks.
        """
        env: object = self.env if self.takes_clicks else None
        if not isinstance(env, Clickable):
            raise ConfigurationError("this environment takes no clicks")
        return env.write_click(x, y)

    async def close(self) -> None:
        """Close the environment, if it was built here; safe to call twice."""
        async with self._turn_lock:
            self.is_over, self._oracle, self.takes_clicks = True, None, False
            await self._host.close()
            self._pool.close()

    async def _reset(self) -> None:
        self.messages, self.turns, self._snapshots = [], [], []
        self.is_over, self._oracle = False, None
        self._running = self._recovering()
        reset = await self._running.reset()
        env = self.env
        if isinstance(env, MultiAgentEnv):
            raise ConfigurationError(
                f"{type(env).__name__} has several agents, and one person is one policy: "
                "play it with Player.play"
            )
        self._first = reset.hash
        self.max_turns, self.takes_clicks = env.max_turns, isinstance(env, Clickable)
        try:
            self._oracle = env.oracle()
        except ConfigurationError:
            self._oracle = None
        prompt = reset.system_prompt
        system = [] if prompt is None else [message("system", prompt)]
        self.messages = [*system, reset.message]

    def _recovering(self) -> RecoveringEnv:
        spec = EpisodeSpec(seed=self.seed, task=self._task)
        return RecoveringEnv(self._host, RetryBudget(), spec)

    async def _bring_back(
        self, first: str | None, turns: list[TurnRecord], snapshot: bytes | None
    ) -> None:
        """Reset, and go to the state after some turns; if that fails, the episode is over."""
        await self._reset()
        self.is_over = True
        if first != self._first:
            raise EnvFault(
                "the environment started from a different observation than the recorded one; build "
                "it with the arguments of the recorded episode",
                retryable=False,
            )
        replies = [turn.reply for turn in turns]
        hashes = [turn.observation_hash or "" for turn in turns]
        await self._running.take_over(replies, hashes, snapshot, first or "")
        self.is_over = False


def before_reply(messages: Sequence[Message], turn: int) -> list[Message]:
    """Return the messages before reply number `turn`."""
    replies = 0
    for index, entry in enumerate(messages):
        if entry["role"] == "assistant":
            if replies == turn:
                return list(messages[:index])
            replies += 1
    return list(messages)
