"""The shared episode of several roles: who speaks, who waits, and how it ends for all of them.

The table calls the shared environment, one call at a time and never while a role that was addressed
can still reply. Every role that is addressed for the first time gets a seat, which the rollout loop
plays as an ordinary environment. A round is complete when each addressed role has replied or left;
every seat's play ends by a reply, a limit, a fault or a cancellation, so no round waits for ever.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from envkit.agents.env import MultiAgentEnv, Round
from envkit.agents.seat import Delivery, Seat
from envkit.errors import EnvFault, FaultKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import FaultRecord, Trajectory
from envkit.turns import Reset, Step, Turn

SeatPlay = Callable[[Seat], Coroutine[None, None, Trajectory]]
"""Plays a seat to its end with the rollout loop."""


class World(Protocol):
    """The shared environment behind its deadlines and its retries."""

    @property
    def game(self) -> MultiAgentEnv:
        """The environment as it is now; a recovery may replace it."""
        ...

    async def reset(self) -> Reset:
        """Start the episode."""
        ...

    async def step(self, text: str) -> Step:
        """Play a joint reply."""
        ...


class StopSignal(Protocol):
    """What ends the running replies of all roles; `envkit.rollout.Interrupt` is one."""

    reason: StopReason | None

    def fire(self, reason: StopReason = ...) -> None:
        """Ask every running episode to stop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a whole episode ended early: for every role, whatever it had reached itself."""

    stop_reason: StopReason
    fault: FaultRecord | None
    """None for an abort."""


class Table:
    """Plays one shared episode."""

    def __init__(self, world: World, play: SeatPlay, interrupt: StopSignal) -> None:
        self._world, self._play, self._interrupt = world, play, interrupt
        self._tasks: dict[str, asyncio.Task[Trajectory]] = {}
        self._waiting: dict[str, asyncio.Future[Delivery]] = {}
        self._pending: set[str] = set()
        self._replies: dict[str, str | None] = {}
        self._complete = asyncio.Event()
        self._error: BaseException | None = None
        self._truncated = False
        self._closed = False
        self.trajectories: dict[str, Trajectory] = {}
        """By role, filled as the roles end."""
        self.late: dict[str, float] = {}
        """Rewards for replies that their loop has recorded already, by role."""
        self.verdict: Verdict | None = None
        """None while, and where, nothing ended the episode early."""

    async def run(self, first: Reset) -> None:
        """Play from the reset to the end of every role.

        Args:
            first: What the world's `reset` returned.

        Raises:
            ContractError: The environment broke its contract.
            Exception: What else the world or a role's play raised that is no `EnvFault`.
        """
        try:
            await self._rounds(Round.of(first.observation, first.info))
        except EnvFault as fault:
            self._judge_fault("the shared environment", "step", fault)
        except BaseException:
            await self._clear()
            raise
        await self._finish()

    async def _rounds(self, this: Round) -> None:
        while True:
            self._deliver(this)
            if this.is_over:
                return
            await self._complete.wait()
            if self._is_stopped():
                return
            step = await self._world.step(json.dumps(self._replies))
            this = Round.of(
                step.observation,
                step.info,
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
            )
            if self._is_stopped():
                return

    def _is_stopped(self) -> bool:
        if self._interrupt.reason is StopReason.ABORTED and self.verdict is None:
            self.verdict = Verdict(stop_reason=StopReason.ABORTED, fault=None)
        return self.verdict is not None or self._error is not None

    def _deliver(self, this: Round) -> None:
        """Hand out the turns; start the seats of roles that are addressed for the first time."""
        self._truncated = this.truncated
        speakers = {role for role, turn in this.turns.items() if not turn.done}
        self._pending = set() if this.is_over else speakers
        self._replies = dict.fromkeys(self._pending)
        self._complete.clear()
        for role, turn in this.turns.items():
            self._tell(role, turn, this)
        for role, reward in this.late.items():
            self._owe(role, reward)
        self._check_complete()

    def _tell(self, role: str, turn: Turn, this: Round) -> None:
        future = self._waiting.pop(role, None)
        if future is not None and not future.done():
            future.set_result(Delivery(turn=turn, is_truncated=this.truncated))
        elif role in self._tasks:  # it has left; what it earned comes too late for its loop
            self._owe(role, turn.reward)
            self._pending.discard(role)
        elif not (this.is_over or turn.done):
            self._seat(role, turn)

    def _owe(self, role: str, reward: float) -> None:
        if reward:
            self.late[role] = self.late.get(role, 0.0) + reward

    def _seat(self, role: str, turn: Turn) -> None:
        if self._interrupt.reason is not None:  # too late to begin
            self._pending.discard(role)
            return
        seat = Seat(
            role, turn, game=lambda: self._world.game, exchange=partial(self._exchange, role)
        )
        task = asyncio.create_task(self._play(seat), name=f"role {role}")
        self._tasks[role] = task
        task.add_done_callback(partial(self._left, role))

    async def _exchange(self, role: str, reply: str) -> Delivery:
        if self._closed:
            return self._farewell()
        future = self._waiting[role] = asyncio.get_running_loop().create_future()
        self._take(role, reply)
        return await future

    def _take(self, role: str, reply: str | None) -> None:
        if role in self._pending:
            self._pending.remove(role)
            self._replies[role] = reply
            self._check_complete()

    def _check_complete(self) -> None:
        if not self._pending:
            self._complete.set()

    def _left(self, role: str, task: asyncio.Task[Trajectory]) -> None:
        """Take note of a role whose play is over, for whatever reason."""
        if task.cancelled():
            self._stop(asyncio.CancelledError(f"the play of role {role!r} was cancelled"))
            return
        error = task.exception()
        if error is not None:
            self._stop(error)
            return
        trajectory = self.trajectories[role] = task.result()
        if trajectory.is_faulted:
            self._judge_role(role, trajectory)
        elif trajectory.stop_reason is StopReason.ABORTED:
            self.verdict = self.verdict or Verdict(stop_reason=StopReason.ABORTED, fault=None)
            self._stop()
        else:
            self._take(role, None)

    def _judge_role(self, role: str, trajectory: Trajectory) -> None:
        fault = trajectory.fault or FaultRecord(where="step", kind="permanent", message="")
        found = FaultRecord(
            where=fault.where, kind=fault.kind, message=f"role {role!r} failed: {fault.message}"
        )
        if self.verdict is None or self.verdict.fault is None:
            self.verdict = Verdict(stop_reason=trajectory.stop_reason, fault=found)
        self._stop()

    def _judge_fault(self, who: str, where: str, fault: EnvFault) -> None:
        record = FaultRecord(
            where=where, kind=FaultKind(fault.kind).value, message=f"{who} failed: {fault}"
        )
        self.verdict = Verdict(stop_reason=StopReason.ENV_FAULT, fault=record)
        self._stop()

    def _stop(self, error: BaseException | None = None) -> None:
        """End the episode for everybody: running replies are aborted, waiting roles let go."""
        self._error = self._error or error
        self._interrupt.fire(StopReason.ABORTED)
        self._complete.set()

    async def _finish(self) -> None:
        """Let every waiting role go and wait for the plays to end."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(self._farewell())
        try:
            if self._tasks:
                await asyncio.wait(self._tasks.values())
        except asyncio.CancelledError:
            await self._clear()
            raise
        await asyncio.sleep(0)  # the callbacks of tasks that ended just now
        if self._error is not None:
            raise self._error

    def _farewell(self) -> Delivery:
        return Delivery(turn=Turn("", done=not self._truncated), is_truncated=self._truncated)

    async def _clear(self) -> None:
        """Cancel every play and wait until nothing of the episode runs."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
