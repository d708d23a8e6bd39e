"""Play an environment's episode with an agent that drives itself."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from envkit.env import Step
from envkit.errors import (
    ContractError,
    EngineFault,
    EnvFault,
    EpisodeStateError,
    Fault,
    FaultKind,
    describe,
    raise_missing,
    shown,
)
from envkit.grading import UNGRADED, UngradedError, asettle
from envkit.messages import Message, message
from envkit.reply import Reply
from envkit.rollout import recovery
from envkit.rollout.boundary import ResetOutcome, StepOutcome, is_own_cancellation
from envkit.rollout.host import EnvHost, StepDeadlineError
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.success import IS_SUCCESS, OWN_REWARD, finite, own_reward
from envkit.threads.pool import WorkerPool
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit_gateway import command
from envkit_gateway.agents import AgentResult, AgentSettings, AgentTask, call_agent
from envkit_gateway.control import Control
from envkit_gateway.credit import Credit, is_finite
from envkit_gateway.recording import AgentEnd, trajectory_of
from envkit_gateway.server import Gateway
from envkit_gateway.session import Session, SessionLimits
from envkit_gateway.text_session import TextSession
from envkit_gateway.trace import Trace

T = TypeVar("T")

_STOP_S: Final = 5.0
"""Seconds that a cancelled function has to end."""


class AgentPlayer:
    """Plays the episodes of a `Player` with an agent; they share one gateway."""

    def __init__(self, setting: object) -> None:
        """Take an agent.

        Args:
            setting: As for `AgentSettings.read`.

        Raises:
            ConfigurationError: As for `AgentSettings.read`.
        """
        self._settings = AgentSettings.read(setting)
        self._gateway: Gateway | None = None
        self._closing = asyncio.Event()
        self._server: asyncio.Task[None] | None = None
        self._users = 0
        self._starting = asyncio.Lock()

    async def __call__(
        self,
        setup: Setup,
        spec: EpisodeSpec,
        host: EnvHost,
        interrupt: Interrupt,
    ) -> tuple[Trajectory, ...]:
        """Play an episode; the arguments are those of `play_any`."""
        async with self._lent() as gateway:

            async def play(env: recovery.RecoveringEnv) -> Trajectory:
                episode = _Episode(self._settings, setup, spec, host.pool, env, gateway)
                found = await episode.play()
                if episode.breaks_env and host.can_rebuild:
                    host.mark_broken()
                return found

            try:
                return (await recovery.play_with_restarts(setup, spec, host, interrupt, play),)
            finally:
                await recovery.end_session(setup.engine, spec.episode_id)

    @asynccontextmanager
    async def _lent(self) -> AsyncGenerator[Gateway]:
        """Yield the gateway, which runs while any episode uses it."""
        self._users += 1
        try:
            async with self._starting:
                if self._gateway is None:
                    await self._start()
            assert self._gateway is not None
            yield self._gateway
        finally:
            self._users -= 1
            if not self._users:
                self._closing.set()
                if self._server is not None:
                    server, self._server, self._gateway = self._server, None, None
                    await server

    async def _start(self) -> None:
        self._closing = closing = asyncio.Event()
        ready: asyncio.Future[Gateway] = asyncio.get_running_loop().create_future()

        async def serve() -> None:  # a context is entered and left in one task
            host, port = self._settings.listens_on()
            url = None if self._settings.url is None else self._settings.url.rstrip("/")
            async with Gateway().running(host=host, port=port, url=url) as gateway:
                ready.set_result(gateway)
                await closing.wait()

        self._server = asyncio.create_task(serve())
        # The server may fail to start, and then `ready` is never set.
        await asyncio.wait([self._server, ready], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self._server  # raises why it could not start
        self._gateway = ready.result()


class _Episode:
    """One attempt at an episode."""

    def __init__(
        self,
        settings: AgentSettings,
        setup: Setup,
        spec: EpisodeSpec,
        pool: WorkerPool,
        env: recovery.RecoveringEnv,
        gateway: Gateway,
    ) -> None:
        self._settings, self._setup, self._spec = settings, setup, spec
        self._pool, self._gateway = pool, gateway
        self._env, self._interrupt, self._restarts = env, env.interrupt, env.restarts
        self._record = EpisodeRecord()
        self._record.started = env.started
        self._last: Step | None = None
        self._earned: list[Credit] = []  # of the environment's steps
        self._given: list[Credit] = []  # of the agent
        self._env_fault: Fault | None = None
        self._agent_error: BaseException | None = None
        self._lost: recovery.EpisodeLostError | None = None
        self._is_over = False
        self._stepping = asyncio.Lock()
        self.breaks_env = False
        """Whether the next episode needs a fresh environment."""

    async def play(self) -> Trajectory:
        """Play to the end; a failure of the agent or the environment ends only this episode.

        Raises:
            EpisodeLostError: The environment's state cannot be rebuilt; start over.
            ConfigurationError: The engine rejects a setting.
        """
        record = self._record
        try:
            reset = await self._env.reset()
            record.task, record.reset_info = dict(reset.task), reset.info
            record.initial_observation_hash = reset.hash
            record.reward_threshold = reset.reward_threshold
            if self._spec.group_start is not None:
                self._spec.group_start.compare(reset.hash)
                self._spec.group_start.expected = reset.hash
        except EnvFault as fault:
            raise_missing(fault)
            place = FaultPlace.RESET if self._env.was_built else FaultPlace.BUILD
            record.faulted(place, fault)
            self.breaks_env = True
            name = self._setup.engine.name
            return record.trajectory(
                StopReason.ENV_FAULT, self._spec, env_restarts=self._restarts, engine=name
            )
        trace = self._trace()
        limits = SessionLimits(max_sequences=self._settings.max_sequences)
        session = (TextSession if self._setup.codec is None else Session)(
            self._setup,
            self._spec,
            self._pool,
            self._interrupt,
            env=self._env.env,
            limits=limits,
            trace=trace,
        )
        has_folder = self._settings.function is None  # a function needs none
        made = command.agent_folder(self._pool) if has_folder else nullcontext(Path())
        async with made as folder:
            task = self._task(session, reset)
            control: Control | None = None
            if self._settings.steps or self._settings.rewards:
                control = Control(task, partial(self._step, session), self._settings)
            async with self._gateway.serving(session, control):
                outcome = await self._outcome(session, task, control, folder)
            if self._settings.grade is not None and outcome.reward is not None:
                outcome = await self._graded(outcome, task, folder)
        if trace is not None:
            trace.add({"ended": outcome.stop_reason.value, "reward": outcome.total})
            await trace.flush()
        if self._lost is not None:  # the agent may have caught it
            raise self._lost
        if session.error is not None:
            raise session.error
        if outcome.fault is not None and outcome.fault.where is FaultPlace.STEP:
            self.breaks_env = True
        # Hundreds of sequences are compared for quotes, which takes seconds.
        return await self._pool.computing.run(
            lambda: trajectory_of(
                session,
                outcome,
                record,
                train=self._settings.train,
                env_restarts=self._restarts,
            )
        )

    def _trace(self) -> Trace | None:
        if self._settings.traces is None:
            return None
        spec = self._spec
        trace = Trace(Path(self._settings.traces), spec.episode_id, self._pool)
        about = {"env_id": spec.env_id, "seed": spec.seed, "env_restarts": self._restarts}
        trace.add({"started": time.time(), "episode_id": spec.episode_id, **about})
        return trace

    async def _outcome(
        self, session: Session, task: AgentTask, control: Control | None, folder: Path
    ) -> AgentEnd:
        running = asyncio.ensure_future(self._run(task, control, folder))
        try:
            result, is_late = await self._awaited(running)
            # Nobody knows whether the step took effect, so its reward cannot be known.
            if result is None and self._stepping.locked():
                self._env_fault = EnvFault(
                    "a deadline passed while the environment took a step", kind=FaultKind.TIMEOUT
                )
            if result is None and control is not None:
                await control.close()
        finally:
            await self._stop(running)
        # Closing the session cancels what it samples.
        was_sampling = session.is_sampling
        await session.close()
        if result is not None and result.answer is not None and self._is_running:
            await self._answer(session, result.answer)
        async with self._stepping:  # the environment belongs to the next episode from here on
            self._is_over = True
        for error in filter(None, (self._agent_error, self._env_fault)):
            raise_missing(error)
        failure = self._failure(session)
        if failure is not None:
            return failure
        if result is None:
            return self._cut(session, is_late=is_late, was_sampling=was_sampling)
        return self._concluded(session, result)

    async def _stop(self, running: "asyncio.Future[AgentResult]") -> None:
        """Kill a command; cancel a function, and stop waiting for it if it does not return."""
        running.cancel()
        # Nobody awaits one that is left behind, so its error is read here.
        running.add_done_callback(lambda one: one.cancelled() or one.exception())
        # A command is killed and always ends; a function may ignore its cancellation.
        await asyncio.wait([running], timeout=_STOP_S if self._settings.function else None)

    @property
    def _is_running(self) -> bool:
        """Whether the environment takes another reply."""
        if self._is_over or self._env_fault is not None or self._lost is not None:
            return False
        return self._last is None or not (self._last.terminated or self._last.truncated)

    def _task(self, session: Session, reset: ResetOutcome) -> AgentTask:
        messages: list[Message] = []
        if reset.system_prompt is not None:
            messages.append(message("system", reset.system_prompt))
        messages.append(reset.message)
        return AgentTask(
            task=reset.task,
            messages=tuple(messages),
            tools=reset.tools,
            url=self._gateway.url,
            api_key=session.key,
            _step=partial(self._step, session),
            _reward=partial(self._give, session),
        )

    async def _run(self, task: AgentTask, control: Control | None, folder: Path) -> AgentResult:
        function = self._settings.load()
        try:
            if function is not None:
                return await call_agent(function, task, self._pool)
            key = "" if control is None else control.key
            return await command.run_command(self._settings, task, folder, self._pool, key=key)
        except BaseException as error:  # an agent may be anybody's code
            if is_own_cancellation(error):
                raise
            self._agent_error = error
            if isinstance(error, Fault):
                self._env_fault = self._env_fault or error
            return AgentResult(error=describe(error))

    async def _graded(self, outcome: AgentEnd, task: AgentTask, folder: Path) -> AgentEnd:
        """Return the outcome with the reward of the command that grades."""
        output: dict[str, Any] = {}

        async def grade() -> float:
            found = await self._grade(task, folder)
            output.update(found.info)
            return found.reward

        async def untouched() -> None:
            async with command.untouched_folder(self._pool, task) as fresh:
                await self._grade(task, fresh)

        grader = f"agent.grade {self._settings.grade} {self._settings.timeout_s}"
        try:
            settled = await asettle(grade, untouched=untouched, grader=grader, task=task.task)
        except EnvFault as fault:
            if self._interrupt.reason is StopReason.ABORTED:
                return AgentEnd(stop_reason=StopReason.ABORTED)
            return AgentEnd.after(FaultRecord.of(FaultPlace.REWARDS, fault))
        info = {**_without_verdict(outcome.info or {}), "grade_output": output, **settled.info()}
        return _rewarded(replace(outcome, info=info), settled.score, self._given)

    async def _grade(self, task: AgentTask, folder: Path) -> command.Grade:
        """Run the command that grades in a folder.

        Raises:
            UngradedError: It failed, or took longer than it may.
            EnvFault: The episode ended before it.
        """
        grading = command.grade_command(self._settings, task.task, folder, self._pool)
        running = asyncio.ensure_future(grading)
        try:
            grade, is_late = await self._awaited(running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        if grade is not None:
            return grade
        if is_late:
            seconds = self._settings.timeout_s
            raise UngradedError(f"agent.grade did not end within agent.timeout_s, {seconds:g} s")
        raise EnvFault(
            "a deadline passed before agent.grade had ended",
            kind=FaultKind.TIMEOUT,
            retryable=False,
        )

    async def _awaited(self, running: "asyncio.Future[T]") -> tuple[T | None, bool]:
        """Wait for a command or function, its deadline or the interrupt.

        Returns:
            Its result, or None; and whether the deadline ended it.
        """
        stopped = asyncio.ensure_future(self._interrupt.fired())
        try:
            done, _ = await asyncio.wait(
                [running, stopped],
                timeout=self._settings.timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            stopped.cancel()
        if running in done:
            return running.result(), False
        return None, not done

    async def _step(self, session: Session, text: str) -> StepOutcome:
        turn = session.latest
        async with self._stepping:  # an environment takes one reply at a time
            if not self._is_running:
                raise EpisodeStateError("the environment has ended the episode")
            try:
                outcome = await self._env.step(Reply(text=text))
            except recovery.EpisodeLostError as lost:
                self._lost = lost
                raise
            except Fault as fault:
                self._env_fault = self._env_fault or fault
                raise
            self._last = step = outcome.step
            own = own_reward(step.info, step.reward)
            self._earned.append(Credit(turn=turn, reward=step.reward, own=own))
            return outcome

    def _give(self, session: Session, value: object) -> None:
        """Add a reward of the agent's to the latest call."""
        reward = finite(int(value) if isinstance(value, bool) else value)
        if reward is None:
            raise EnvFault(
                f"a reward must be a finite number, got {shown(value)}",
                kind=FaultKind.PERMANENT,
                retryable=False,
            )
        if self._is_over:
            raise EpisodeStateError("the episode is over: reward it before the agent ends")
        if session.latest is None:
            raise EpisodeStateError("there is no reply to reward yet: ask the model first")
        self._given.append(Credit(turn=session.latest, reward=reward, own=0.0))

    async def _answer(self, session: Session, text: str) -> None:
        try:
            await self._step(session, text)
        except (Fault, recovery.EpisodeLostError):
            return  # `_step` keeps it

    def _failure(self, session: Session) -> AgentEnd | None:
        """Return how infrastructure or an abort ended the episode; None if it did not."""
        fault = self._env_fault
        if fault is None and session.fault is None:
            return None
        if self._interrupt.reason is StopReason.ABORTED:  # which cut a call
            return AgentEnd(stop_reason=StopReason.ABORTED)
        if isinstance(fault, StepDeadlineError):
            result = AgentResult(error=f"the last step took too long: {fault}")
            return self._scored(result, StopReason.STEP_TIMEOUT)
        if fault is not None:
            return AgentEnd.after(FaultRecord.of(FaultPlace.STEP, fault))
        assert session.fault is not None
        return AgentEnd.after(session.fault)

    def _cut(self, session: Session, *, is_late: bool, was_sampling: bool) -> AgentEnd:
        """Return how an episode ended whose agent did not."""
        reason = self._interrupt.reason
        if reason is StopReason.ABORTED:
            return AgentEnd(stop_reason=StopReason.ABORTED)
        # The agent could not have gone on, so the policy must not pay for the time.
        if was_sampling or not session.turns:
            what = f"agent.timeout_s, {self._settings.timeout_s:g} s," if is_late else "a deadline"
            fault = EngineFault(
                f"{what} passed while the engine sampled"
                if was_sampling
                else f"{what} passed before the agent had a reply from the model",
                kind=FaultKind.TIMEOUT,
                retryable=False,
            )
            return AgentEnd.after(FaultRecord.of(FaultPlace.GENERATE, fault))
        ended = StopReason.STEP_TIMEOUT if is_late else reason or StopReason.EPISODE_TIMEOUT
        return self._scored(AgentResult(error="the agent was stopped"), ended)

    def _concluded(self, session: Session, result: AgentResult) -> AgentEnd:
        """Return the outcome of an episode whose agent ended normally."""
        if not any(turn.reply is not None for turn in session.turns):
            why = f": {result.error}" if result.error else ""
            missing = EnvFault(
                f"the agent ended without a reply from the model{why}. Point its client at "
                "AgentTask.base_url (OpenAI) or AgentTask.url (Anthropic) with AgentTask.api_key",
                kind=FaultKind.PERMANENT,
            )
            return AgentEnd.after(FaultRecord.of(FaultPlace.STEP, missing))
        ended = StopReason.TERMINATED
        if session.stop_reason is not None:
            ended = session.stop_reason
        elif result.error is not None and session.refusal is not None:
            # The agent failed because of the gateway, for which the policy must not pay.
            return AgentEnd(stop_reason=StopReason.LEDGER_FAULT, fault=session.refusal)
        elif result.error is not None or (self._last is not None and self._last.truncated):
            ended = StopReason.ENV_TRUNCATED
        return self._scored(result, ended)

    def _scored(self, result: AgentResult, ended: StopReason) -> AgentEnd:
        reward, earlier = 0.0, [*self._given, *self._earned]
        info = dict(self._last.info) if self._last is not None else {}
        if result.reward is not None:
            # The agent's reward takes the place of the environment's, whose steps then count
            # nothing.
            reward, earlier, info = result.reward, self._given, _without_verdict(info)
        if result.error is not None:
            info["agent_error"] = result.error
        if result.info:
            info["agent_output"] = dict(result.info)
        if result.ungraded is not None:
            reward, earlier, info = 0.0, self._given, {**info, UNGRADED: result.ungraded}
        return _rewarded(AgentEnd(stop_reason=ended, info=info), reward, earlier)


def _rewarded(outcome: AgentEnd, final: float, earlier: Sequence[Credit]) -> AgentEnd:
    """Return an outcome with its rewards; a fault if they are not finite, or not together."""
    if is_finite(final, earlier):
        return replace(outcome, reward=final, earlier=tuple(earlier))
    rewards = [*(one.reward for one in earlier), final]
    error = ContractError(f"an agent's rewards must be finite, and their sum, got {shown(rewards)}")
    return AgentEnd.after(FaultRecord.of(FaultPlace.REWARDS, error))


def _without_verdict(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return info without the environment's verdict, which another reward replaces."""
    return {
        key: value for key, value in info.items() if key not in (IS_SUCCESS, OWN_REWARD, UNGRADED)
    }
