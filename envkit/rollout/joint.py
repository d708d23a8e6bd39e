"""The joint episode of several roles: who speaks, who waits, and how it ends for all of them.

It makes one call to the joint environment at a time, and only after every addressed role has
replied or left. A role that is addressed for the first time gets a `RoleEnv`, which the rollout
loop plays as an ordinary environment. Every role's play ends by a reply, a limit, a fault or a
cancellation, so no round waits forever.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from envkit.agents.env import MultiAgentEnv, Round
from envkit.agents.role_env import Delivery, RoleEnv
from envkit.errors import EnvFault, raise_missing
from envkit.reply import Reply
from envkit.rollout.recovery import RecoveringEnv
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit.turns import Observation, Turn

PlayRole = Callable[[RoleEnv], Coroutine[None, None, Trajectory]]
"""Plays a role to its end with the rollout loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointEnd:
    """Why the whole episode ended early; it overrides the state of every role."""

    stop_reason: StopReason
    fault: FaultRecord | None
    """None for an abort."""


class JointEpisode:
    """Plays one joint episode."""

    def __init__(self, joint: RecoveringEnv, play: PlayRole) -> None:
        self._joint, self._play, self._interrupt = joint, play, joint.interrupt
        self._tasks: dict[str, asyncio.Task[Trajectory]] = {}
        self._waiting: dict[str, asyncio.Future[Delivery]] = {}
        self._pending: set[str] = set()
        self._replies: dict[str, Reply | None] = {}
        self._complete = asyncio.Event()
        self._error: BaseException | None = None
        self._truncated = False
        self._closed = False
        self.trajectories: dict[str, Trajectory] = {}
        """By role, filled in as the roles end."""
        self.late: dict[str, float] = {}
        """Rewards by role for replies that their loop has already recorded."""
        self.verdict: JointEnd | None = None
        """None unless something ended the episode early."""

    @property
    def env(self) -> MultiAgentEnv:
        """The current joint environment."""
        return cast(MultiAgentEnv, self._joint.env)

    async def run(self, observation: Observation, info: Mapping[str, Any]) -> None:
        """Play from the reset to the end of every role.

        Args:
            observation: What the environment's `reset` returned.
            info: What the environment's `reset` returned.

        Raises:
            Exception: What the environment or a role's play raised, except an `EnvFault`.
        """
        try:
            try:
                await self._rounds(Round.of(observation, info))
            except EnvFault as fault:
                raise_missing(fault)
                self._judge_fault(fault)
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
            step = (await self._joint.step(self._joint_reply())).step
            this = Round.of(
                step.observation,
                step.info,
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
            )
            if self._is_stopped():
                return

    def _joint_reply(self) -> Reply:
        said = {role: one and one.to_wire() for role, one in self._replies.items()}
        return Reply(text=json.dumps(said))

    def _is_stopped(self) -> bool:
        if self._interrupt.reason is StopReason.ABORTED and self.verdict is None:
            self.verdict = JointEnd(stop_reason=StopReason.ABORTED, fault=None)
        return self.verdict is not None or self._error is not None

    def _deliver(self, this: Round) -> None:
        """Deliver turns to the addressed roles; start the new ones."""
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
        elif role in self._tasks:  # it has left, and its loop can no longer take the reward
            self._owe(role, turn.reward)
            self._pending.discard(role)
        elif not (this.is_over or turn.done):
            self._start(role, turn)

    def _owe(self, role: str, reward: float) -> None:
        if reward:
            self.late[role] = self.late.get(role, 0.0) + reward

    def _start(self, role: str, turn: Turn) -> None:
        if self._interrupt.reason is not None:  # too late to start
            self._pending.discard(role)
            return
        env = RoleEnv(
            role, turn, joint_env=lambda: self.env, exchange=partial(self._exchange, role)
        )
        task = asyncio.create_task(self._play(env), name=f"role {role}")
        self._tasks[role] = task
        task.add_done_callback(partial(self._left, role))

    async def _exchange(self, role: str, reply: Reply) -> Delivery:
        if self._closed:
            return self._last_delivery()
        future = self._waiting[role] = asyncio.get_running_loop().create_future()
        self._take(role, reply)
        return await future

    def _take(self, role: str, reply: Reply | None) -> None:
        if role in self._pending:
            self._pending.remove(role)
            self._replies[role] = reply
            self._check_complete()

    def _check_complete(self) -> None:
        if not self._pending:
            self._complete.set()

    def _left(self, role: str, task: asyncio.Task[Trajectory]) -> None:
        """Record that a role's play is over, for any reason."""
        if task.cancelled():
            self._stop(asyncio.CancelledError(f"playing role {role!r} was cancelled"))
            return
        error = task.exception()
        if error is not None:
            self._stop(error)
            return
        trajectory = self.trajectories[role] = task.result()
        if trajectory.is_faulted:
            self._judge_role(role, trajectory)
        elif trajectory.stop_reason is StopReason.ABORTED:
            self.verdict = self.verdict or JointEnd(stop_reason=StopReason.ABORTED, fault=None)
            self._stop()
        else:
            self._take(role, None)

    def _judge_role(self, role: str, trajectory: Trajectory) -> None:
        fault = trajectory.fault
        found = None
        if fault is not None:
            found = replace(fault, message=f"role {role!r} failed: {fault.message}")
        if self.verdict is None or self.verdict.fault is None:
            self.verdict = JointEnd(stop_reason=trajectory.stop_reason, fault=found)
        self._stop()

    def _judge_fault(self, fault: EnvFault) -> None:
        record = FaultRecord.of(FaultPlace.STEP, fault)
        record = replace(record, message=f"the joint environment failed: {record.message}")
        self.verdict = JointEnd(stop_reason=StopReason.ENV_FAULT, fault=record)
        self._stop()

    def _stop(self, error: BaseException | None = None) -> None:
        """End the episode for all roles: abort running replies and release waiting roles."""
        self._error = self._error or error
        self._interrupt.fire(StopReason.ABORTED)
        self._complete.set()

    async def _finish(self) -> None:
        """Release every waiting role and wait for the plays to end."""
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(self._last_delivery())
        try:
            if self._tasks:
                await asyncio.wait(self._tasks.values())
        except asyncio.CancelledError:
            await self._clear()
            raise
        await asyncio.sleep(0)  # let the callbacks of tasks that just ended run
        if self._error is not None:
            raise self._error

    def _last_delivery(self) -> Delivery:
        return Delivery(turn=Turn("", done=not self._truncated), is_truncated=self._truncated)

    async def _clear(self) -> None:
        """Cancel every play and wait until nothing in the episode is running."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
