"""An episode's environment under a retry budget: the recovery ladder.

A failed step is never simply called again, since it may have happened. What the environment
declares decides how its state is put back first:

1. `snapshot`: restore the snapshot taken before the step;
2. `replay_safe`: reset with the same seed and task, replay the recorded replies, and compare every
   outcome with the recorded one;
3. otherwise the episode cannot go on with this state: `EpisodeLostError` asks the caller to start
   it anew with a fresh environment.

After a time-out or a crash, steps 1 and 2 happen on a fresh environment.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from envkit.env import Capabilities, Env, Observation, Reset, Step, StepKey
from envkit.errors import EnvFault, FaultKind
from envkit.messages import Message
from envkit.rollout.host import EnvHost
from envkit.rollout.outcome import observation_hash, step_hash
from envkit.rollout.retries import RetryBudget
from envkit.tasks import Task


class EpisodeLostError(Exception):
    """The state of an episode cannot be rebuilt. Carries the fault that lost it."""

    def __init__(self, fault: EnvFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class RecoveringEnv:
    """Plays one episode on a host and recovers from its faults."""

    def __init__(
        self,
        host: EnvHost,
        budget: RetryBudget,
        *,
        episode_id: str,
        seed: int | None,
        task: Task | None,
        spent: int = 0,
    ) -> None:
        self._host, self._budget = host, budget
        self._episode_id, self._seed, self._task = episode_id, seed, task
        self._rng = random.Random(episode_id)  # jitter of waiting times
        self._replies: list[str] = []
        self._hashes: list[str] = []
        self._reset_hash = ""
        self._before: bytes | None = None
        self._capabilities = Capabilities()
        self.spent = spent
        """Retries of the whole episode so far, restarts included."""
        self.retries: Counter[str] = Counter()
        """Retries of the current turn, by `FaultKind`."""

    @property
    def last_hash(self) -> str:
        """`step_hash` of the last completed step."""
        return self._hashes[-1]

    @property
    def env(self) -> Env:
        """The environment as it is now; a recovery may replace it."""
        return self._host.env

    def format_observation(self, observation: Observation) -> Message:
        """Return the chat message to append, wrappers included."""
        return self._host.format_observation(observation)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return a shorter form of an observation, wrappers included, or None."""
        return self._host.shorten(observation, tokens)

    async def reset(self) -> Reset:
        """Start the episode; a failed reset is tried again, on a fresh environment if need be.

        Raises:
            EnvFault: The budget is spent, or the fault is not retryable.
        """
        self.retries.clear()
        while True:
            try:
                reset = await self._fresh_reset()
            except EnvFault as fault:
                await self._pay(fault)
            else:
                self._reset_hash = observation_hash(reset.observation)
                self._capabilities = self.env.capabilities
                return reset

    async def step(self, text: str) -> Step:
        """Play one reply; the reply is kept through every recovery.

        Raises:
            EnvFault: The budget is spent, or the fault is not retryable.
            EpisodeLostError: The fault is retryable but the state cannot be rebuilt.
        """
        self.retries.clear()
        self._before = await self._snapshot()
        step = await self._step_with_recovery(text)
        self._replies.append(text)
        self._hashes.append(step_hash(step))
        return step

    async def rewind(self) -> bool:
        """Put the state back to before the last step. False when the environment cannot.

        Raises:
            EnvFault: The budget was spent on it.
            EpisodeLostError: It failed half-way.
        """
        if self._before is None and not self._capabilities.replay_safe:
            return False
        self._replies.pop()
        self._hashes.pop()
        try:
            await self._put_back()
        except EnvFault as fault:
            await self._recover(fault)
        return True

    async def take_over(
        self, replies: list[str], hashes: list[str], snapshot: bytes | None
    ) -> None:
        """Bring a reset environment to the state behind some recorded replies.

        Args:
            replies: What the model said, in order.
            hashes: `step_hash` of what the environment answered to each.
            snapshot: State behind the last of them; None replays the replies instead.

        Raises:
            EnvFault: The replay took another course, or the environment declares neither.
        """
        if snapshot is not None:
            await self._host.restore(snapshot, timeout_s=self._budget.step_timeout_s)
        elif self._capabilities.replay_safe or not replies:
            await self._replay(replies, hashes)
        else:
            raise EnvFault(
                f"{type(self.env).__name__} has no snapshot and is not replay_safe, so an episode "
                "cannot be resumed in it; declare one of the two capabilities",
                retryable=False,
            )
        self._replies, self._hashes = list(replies), list(hashes)

    async def snapshot(self) -> bytes | None:
        """Return the environment's state, or None where it has no snapshot."""
        if not (self._host.is_usable and self._capabilities.snapshot):
            return None
        return await self._host.snapshot(timeout_s=self._budget.step_timeout_s)

    async def _snapshot(self) -> bytes | None:
        budget = self._budget
        wanted = budget.resample_on_parse_error or budget.max_env_retries_per_turn
        return await self.snapshot() if wanted else None

    async def _fresh_reset(self) -> Reset:
        timeout = self._budget.reset_timeout_s
        await self._host.ensure(timeout_s=timeout)
        return await self._host.reset(seed=self._seed, task=self._task, timeout_s=timeout)

    async def _step_with_recovery(self, text: str) -> Step:
        while True:
            key = StepKey(self._episode_id, len(self._replies), self.spent)
            try:
                return await self._host.step(text, key=key, timeout_s=self._budget.step_timeout_s)
            except EnvFault as fault:
                await self._recover(fault)

    async def _recover(self, fault: EnvFault) -> None:
        """Pay for the fault and put the state back, however often that fails itself."""
        while True:
            await self._pay(fault)
            if self._before is None and not self._capabilities.replay_safe:
                raise EpisodeLostError(fault)
            try:
                await self._put_back()
            except EnvFault as another:
                fault = another
            else:
                return

    async def _put_back(self) -> None:
        """Bring the environment to the state behind the recorded replies."""
        if self._before is None or not self._host.is_usable:
            reset = await self._fresh_reset()
            if observation_hash(reset.observation) != self._reset_hash:
                raise EnvFault(
                    "a reset with the same seed and task started from another observation; "
                    "an environment that declares replay_safe or snapshot must not",
                    kind=FaultKind.PERMANENT,
                )
        if self._before is None:
            await self._replay(self._replies, self._hashes)
        else:
            await self._host.restore(self._before, timeout_s=self._budget.step_timeout_s)

    async def _replay(self, replies: Sequence[str], hashes: Sequence[str]) -> None:
        for turn, (text, expected) in enumerate(zip(replies, hashes, strict=True)):
            key = StepKey(self._episode_id, turn, self.spent)
            step = await self._host.step(text, key=key, timeout_s=self._budget.step_timeout_s)
            if step_hash(step) != expected:
                raise EnvFault(
                    f"replaying the recorded replies gave another outcome at turn {turn}; "
                    "an environment that declares replay_safe must not",
                    kind=FaultKind.PERMANENT,
                )

    async def _pay(self, fault: EnvFault) -> None:
        """Count the fault against the budget and wait, or raise it."""
        budget = self._budget
        turn_spent = self.retries.total()
        if (
            not fault.retryable
            or turn_spent >= budget.max_env_retries_per_turn
            or self.spent >= budget.max_env_retries_per_episode
        ):
            raise fault
        self.retries[fault.kind.value] += 1
        self.spent += 1
        await asyncio.sleep(budget.backoff.delay(turn_spent, self._rng))
