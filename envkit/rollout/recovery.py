"""Recovers an episode's environment from faults, within a retry budget.

A failed step is never simply repeated, since it may have taken effect. First the state is restored,
depending on the environment's capabilities:

1. `snapshot`: restore the snapshot taken before the step;
2. `replay_safe`: reset with the same seed and task, replay the recorded replies, and compare every
   outcome with the recorded one;
3. otherwise the episode cannot continue from this state: `EpisodeLostError` makes
   `play_with_restarts` start over with a new environment.

After a timeout or a crash, steps 1 and 2 use a new environment.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from envkit.env import Capabilities, Env, Observation, StepKey
from envkit.errors import EnvFault, FaultKind
from envkit.messages import Message
from envkit.reply import Reply
from envkit.rollout.boundary import ResetOutcome, StepOutcome, is_own_cancellation
from envkit.rollout.engine import Engine
from envkit.rollout.host import EnvHost, StepDeadlineError
from envkit.rollout.interrupt import CallCutError, Interrupt
from envkit.rollout.limits import RetryBudget
from envkit.rollout.setup import EpisodeSpec, Setup

T = TypeVar("T")


class EpisodeLostError(Exception):
    """The state of an episode cannot be rebuilt, but the episode may start over."""


class CutFault(EnvFault):
    """The end of the episode interrupted a call to its environment."""


class RecoveringEnv:
    """Plays one attempt at an episode on a host and recovers from its faults."""

    def __init__(
        self,
        host: EnvHost,
        budget: RetryBudget,
        spec: EpisodeSpec,
        interrupt: Interrupt | None = None,
        *,
        life: str | None = None,
        lost: "RecoveringEnv | None" = None,
        can_restart: bool = False,
    ) -> None:
        """Prepare an attempt.

        Args:
            host: Holds the environment.
            budget: Deadlines and retries.
            spec: The episode.
            interrupt: Cuts calls short when the episode has to stop; None never does.
            life: Identifies the attempts of this process in every `StepKey`; None uses the
                episode's id.
            lost: The attempt before, whose state was lost; None for the first one.
            can_restart: Whether a lost episode raises `EpisodeLostError` instead of its fault.
        """
        self._host, self._budget, self._spec, self._can_restart = host, budget, spec, can_restart
        self.interrupt = interrupt or Interrupt()
        """The episode's own, which fires at its deadline and with the caller's interrupt."""
        self._life = life or spec.episode_id
        self._rng = random.Random(self._life)  # jitter of waiting times
        self.restarts = 0 if lost is None else lost.restarts + 1
        self.started = time.perf_counter() if lost is None else lost.started
        """`time.perf_counter()` at the start of the first attempt."""
        self._replies: list[Reply] = []
        self._hashes: list[str] = []
        self._reset_hash = ""
        self._before: bytes | None = None
        self._capabilities = Capabilities()
        self._replayed_after = "an earlier run"
        """Why replies are replayed. Lack of memory may also make a replay differ."""
        self.spent = 0 if lost is None else lost.spent
        """Retries in the whole episode so far, including those before a restart."""
        self.attempt = 0 if lost is None else lost.attempt + 1
        """`StepKey.attempt` of the next step. Restoring a state increases it, since the steps after
        that state are played again."""
        self.is_taking_over = False
        """Whether the attempt continues an earlier trajectory."""
        self.retries: Counter[str] = Counter()
        """Retries in the current turn, by `FaultKind`."""

    @property
    def env(self) -> Env:
        """The current environment; a recovery may replace it."""
        return self._host.env

    @property
    def was_built(self) -> bool:
        """Whether an environment was ever built."""
        return self._host.was_built

    async def reset(self) -> ResetOutcome:
        """Start the episode; retry a failed reset, on a new environment if necessary.

        Raises:
            EnvFault: The budget is spent, or the fault is not retryable.
            ConfigurationError: The environment cannot be built with its arguments.
        """
        while True:
            try:
                reset = await self._fresh_reset()
            except EnvFault as fault:
                await self._pay(fault)
            else:
                self._reset_hash = reset.hash
                # A reset may have got them from a server.
                self._capabilities = self._host.capabilities
                return reset

    async def step(self, reply: Reply) -> StepOutcome:
        """Play one reply; it survives every recovery.

        Raises:
            EnvFault: The budget is spent, or the fault is not retryable.
            EpisodeLostError: The fault is retryable but the state cannot be rebuilt.
        """
        self.retries.clear()
        await self._take_snapshot()
        if self._spec.snapshots is not None and self._before is not None:
            self._spec.snapshots[len(self._replies)] = self._before
        outcome = await self._step_with_recovery(reply)
        self._replies.append(reply)
        self._hashes.append(outcome.hash)
        return outcome

    async def shorten(self, observation: Observation, tokens: int) -> Message | None:
        """Return the message of a shorter observation, after all wrappers, or None.

        Raises:
            EnvFault: The environment failed.
        """
        return await self._cut(
            self._host.shorten(observation, tokens, timeout_s=self._budget.step_timeout_s)
        )

    async def rewind(self) -> bool:
        """Restore the state before the last step; return False if the environment cannot.

        Raises:
            EnvFault: The retry budget is spent.
            EpisodeLostError: The state cannot be rebuilt.
        """
        if self._before is None and not self._capabilities.replay_safe:
            return False
        self._replies.pop()
        self._hashes.pop()
        try:
            await self._restore_state()
        except EnvFault as fault:
            await self._recover(fault)
        return True

    async def take_over(
        self, replies: list[Reply], hashes: list[str], snapshot: bytes | None, start: str
    ) -> None:
        """Bring a reset environment to the state after recorded replies, within the budget.

        Args:
            replies: The model's replies, in order.
            hashes: `step_hash` of each reply's outcome.
            snapshot: State after the last reply; None replays the replies instead.
            start: Hash of the recorded first observation.

        Raises:
            EpisodeLostError: The environment supports neither, so the episode starts over.
            EnvFault: The start or the replay differed, no restart is allowed, or the budget is
                spent.
        """
        self.is_taking_over = True
        is_same = start == self._reset_hash
        can_resume = snapshot is not None or self._capabilities.replay_safe
        if not can_resume and (replies or not is_same):
            name = type(self.env).__name__
            why = (
                f"the trajectory has no snapshot of {name}, which could not be saved at the abort, "
                f"and {name} is not replay_safe, so the episode cannot be resumed"
                if self._capabilities.snapshot
                else f"{name} has no snapshot and is not replay_safe, so its episodes cannot be "
                "resumed; declare one of the two capabilities"
            )
            # Aborted episodes are the long ones: to fault them would be a selection bias.
            if self._can_restart:
                raise EpisodeLostError(why)
            raise EnvFault(why, retryable=False)
        if not is_same:
            raise EnvFault(
                "the environment started from a different observation than the trajectory to "
                "resume",
                kind=FaultKind.PERMANENT,
            )
        self.retries.clear()
        self._replies, self._hashes, self._before = list(replies), list(hashes), snapshot
        try:
            await self._rebuild()
        except EnvFault as fault:
            await self._recover(fault)

    async def snapshot(self) -> bytes | None:
        """Return the environment's state, or None if it has no snapshots.

        Raises:
            EnvFault: The environment failed.
        """
        # A broken environment cannot answer. Its episode ends without a snapshot.
        if not (self._host.is_usable and self._capabilities.snapshot):
            return None
        return await self._cut(self._host.snapshot(timeout_s=self._budget.step_timeout_s))

    async def _take_snapshot(self) -> None:
        """Save the state before a step if a retry may need it."""
        budget = self._budget
        self._before = None  # the last turn's snapshot is no longer needed
        is_kept = self._spec.snapshots is not None
        while is_kept or budget.resample_on_parse_error or budget.max_env_retries_per_turn:
            try:
                self._before = await self.snapshot()
            except EnvFault as fault:
                await self._recover(fault)
            else:
                return

    async def _restore(self, data: bytes) -> None:
        await self._cut(self._host.restore(data, timeout_s=self._budget.step_timeout_s))

    async def _fresh_reset(self) -> ResetOutcome:
        timeout = self._budget.reset_timeout_s
        await self._cut(self._host.ensure(timeout_s=timeout))
        return await self._cut(
            self._host.reset(seed=self._spec.seed, task=self._spec.task, timeout_s=timeout)
        )

    async def _play(self, reply: Reply, turn: int) -> StepOutcome:
        key = StepKey(self._life, turn, self.attempt)
        return await self._cut(
            self._host.step(reply, key=key, timeout_s=self._budget.step_timeout_s)
        )

    async def _cut(self, call: Awaitable[T]) -> T:
        """Await a call to the host, but no longer than the episode may last."""
        try:
            return await self.interrupt.cut(call)
        except CallCutError as error:
            # The call that was cut may hang forever, and the episode's end must not wait for it.
            self._host.forget_cleanups()
            raise CutFault(
                f"the end of the episode ({error}) interrupted a call to its environment",
                kind=FaultKind.TIMEOUT,
                retryable=False,
            ) from error

    async def _step_with_recovery(self, reply: Reply) -> StepOutcome:
        while True:
            try:
                return await self._play(reply, len(self._replies))
            except EnvFault as fault:
                await self._recover(fault)

    async def _recover(self, fault: EnvFault) -> None:
        """Charge the fault to the budget and restore the state; repeat if restoring fails."""
        while True:
            await self._pay(fault)
            self._replayed_after = str(fault)
            if self._before is None and not self._capabilities.replay_safe:
                if self._can_restart:
                    raise EpisodeLostError(str(fault)) from fault
                raise fault
            try:
                await self._restore_state()
            except EnvFault as another:
                fault = another
            else:
                return

    async def _restore_state(self) -> None:
        """Restore the state after the recorded replies, with a reset first if needed."""
        # The steps that follow are played again. A backend that knows their keys would answer with
        # the result of the rejected or lost step.
        self.attempt += 1
        if self._before is None or not self._host.is_usable:
            reset = await self._fresh_reset()
            if reset.hash != self._reset_hash:
                raise EnvFault(
                    "a reset with the same seed and task gave a different observation, which an "
                    "environment that declares replay_safe or snapshot must not do. It was reset "
                    f"after: {self._replayed_after}",
                    kind=FaultKind.PERMANENT,
                )
        await self._rebuild()

    async def _rebuild(self) -> None:
        """Bring a reset environment to the state after the recorded replies."""
        if self._before is None:
            await self._replay()
        else:
            await self._restore(self._before)

    async def _replay(self) -> None:
        for turn, (reply, expected) in enumerate(zip(self._replies, self._hashes, strict=True)):
            try:
                outcome = await self._play(reply, turn)
            except StepDeadlineError as late:  # the recorded step met its deadline
                raise EnvFault(f"replaying turn {turn}: {late}", kind=FaultKind.TIMEOUT) from late
            if outcome.hash != expected:
                raise EnvFault(
                    f"replaying the recorded replies gave a different outcome at turn {turn}, "
                    "which an environment that declares replay_safe must not do. It was replayed "
                    f"after: {self._replayed_after}",
                    kind=FaultKind.PERMANENT,
                )

    async def _pay(self, fault: EnvFault) -> None:
        """Count the fault against the budget and wait, or raise it."""
        budget = self._budget
        turn_spent = self.retries.total()
        if not fault.retryable or self.interrupt.reason is not None:
            raise fault
        # The machine had no room for one more environment, which is nobody's fault: the episode
        # waits for others at no cost.
        if await self._wait(self._host.make_room(fault), fault):
            return
        if (
            turn_spent >= budget.max_env_retries_per_turn
            or self.spent >= budget.max_env_retries_per_episode
        ):
            raise fault
        self.retries[fault.kind.value] += 1
        self.spent += 1
        pause = asyncio.sleep(budget.backoff.delay(turn_spent, self._rng))
        await self._wait(pause, fault)

    async def _wait(self, call: Awaitable[T], fault: EnvFault) -> T:
        """Await a pause after a fault; the end of the episode raises the fault."""
        try:
            return await self.interrupt.cut(call)
        except CallCutError:
            raise fault from None


async def play_with_restarts(
    setup: Setup,
    spec: EpisodeSpec,
    host: EnvHost,
    interrupt: Interrupt,
    play: Callable[[RecoveringEnv], Awaitable[T]],
    *,
    life: str | None = None,
) -> T:
    """Play an episode, and start over with a new environment whenever its state is lost.

    Args:
        setup: Limits and budgets.
        spec: The episode.
        host: Holds its environment.
        interrupt: The caller's interrupt.
        play: Plays one attempt.
        life: As for `RecoveringEnv`.
    """
    own = interrupt.child(timeout_s=setup.limits.episode_timeout_s)
    lost: RecoveringEnv | None = None
    left = setup.retries.max_episode_restarts
    try:
        while True:
            can_restart = left > 0 and host.can_rebuild
            env = RecoveringEnv(
                host, setup.retries, spec, own, life=life, lost=lost, can_restart=can_restart
            )
            try:
                return await play(env)
            except EpisodeLostError:
                host.mark_broken()
                await end_session(setup.engine, spec.episode_id)
                lost, left = env, left - 1
    finally:
        await interrupt.discard(own)


async def end_session(engine: Engine, session_id: str) -> None:
    """End an episode's session in the engine; a failure does not affect the finished record."""
    try:
        await engine.end_session(session_id)
    except BaseException as error:  # foreign code may raise anything
        if is_own_cancellation(error):
            raise
