"""Calls an environment for the rollout: off the event loop, with deadlines and checks.

`recovery.py` retries and recovers, `loop.py` handles tokens.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import gymnasium

from envkit.async_env import AsyncEnv
from envkit.env import Capabilities, Env, Observation, StepKey
from envkit.errors import ConfigurationError, ContractError, EnvFault, FaultKind
from envkit.messages import Message
from envkit.reply import Reply
from envkit.rollout.boundary import (
    ResetOutcome,
    StepOutcome,
    as_env_fault,
    checked_capabilities,
    formatted,
    guarded,
    hook,
    is_own_cancellation,
    reset_outcome,
    step_outcome,
    warmed,
)
from envkit.rollout.sessions import Sessions, shortage_in
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.threads.workers import DeadlineError, Worker

T = TypeVar("T")

AnyEnv = gymnasium.Env[Observation, str]
"""An `envkit.Env`, possibly inside Gymnasium wrappers."""
EnvFactory = Callable[[], AnyEnv]
_CLOSE_TIMEOUT_S: Final = 10.0
_CANCEL_TIMEOUT_S: Final = 1.0
"""Seconds that a cancelled call may take to return; a hung one is left to its daemon thread."""


class StepDeadlineError(EnvFault):
    """A step exceeded `step_timeout_s` in an environment that attributes this to the reply."""


def factory_of(env: AnyEnv) -> EnvFactory | None:
    """Return a function that builds another environment like this one, or None without a spec."""
    spec = env.spec
    if spec is None:
        return None
    return lambda: cast(AnyEnv, gymnasium.make(spec, disable_env_checker=True))


class EnvHost:
    """One environment and the thread or loop that it runs on.

    Calls must not overlap; a trajectory never makes two at once. Any failure of a call raises an
    `EnvFault`.
    """

    def __init__(
        self,
        pool: WorkerPool,
        *,
        env: AnyEnv | None = None,
        factory: EnvFactory | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.pool = pool
        self._sessions = sessions
        self.has_place = True
        """Whether it holds a place among the sessions of its pool."""
        self._outer = env
        self._inner: Env | None = None
        self._owned = env is None
        self._factory = factory if factory is not None or env is None else factory_of(env)
        self._worker: Worker | None = None
        self._broken = False
        self._known: Capabilities | None = None
        self.was_built = env is not None
        """Whether this host ever had an environment."""
        self._cleanups = set[asyncio.Future[None]]()
        """Clean-ups after cancelled calls; `close` waits for them."""

    @property
    def env(self) -> Env:
        """The environment itself, without wrappers. Call `ensure` first."""
        if self._inner is None:
            outer = self._outer_env
            self._inner = guarded(lambda: cast(Env, outer.unwrapped), "unwrapped")()
        return self._inner

    @property
    def capabilities(self) -> Capabilities:
        """The environment's declared capabilities. Call `ensure` first."""
        if self._known is None:
            self._known = guarded(lambda: checked_capabilities(self.env), "capabilities")()
        return self._known

    @property
    def is_usable(self) -> bool:
        """Whether the environment can take a call; False after a timeout or a crash."""
        return self._outer is not None and not self._broken

    @property
    def can_rebuild(self) -> bool:
        """Whether a fresh environment can be built."""
        return self._factory is not None

    async def ensure(self, *, timeout_s: float | None) -> None:
        """Build an environment if there is none or it broke.

        Raises:
            EnvFault: It could not be built, or not in time.
            ConfigurationError: The arguments are wrong, or the result is not an `envkit.Env`.
        """
        if self.is_usable:
            return
        if self._factory is None:
            raise EnvFault(
                "the environment broke and there is no way to build a fresh one; "
                "pass play() a function that builds it, or an environment made by envkit.make",
                kind=FaultKind.CRASHED,
                retryable=False,
            )
        await self._discard()
        async with self.pool.starting.turn():
            worker = self._new_worker("building the environment")
            env, capabilities = await self._build(self._factory, worker, timeout_s)
        self._take(env)
        self._owned, self._broken, self._known = True, False, capabilities
        self.was_built = True
        # Other environments may be bound to the thread that built them.
        if capabilities.thread_safe or self._awaits:
            worker.stop()
        else:
            self._worker = worker

    async def reset(
        self, *, seed: int | None, task: Task | None, timeout_s: float | None
    ) -> ResetOutcome:
        """Start an episode.

        Raises:
            EnvFault: The environment failed, broke its contract, or did not answer in time.
        """
        options = None if task is None else {"task": task}
        env, outer = self.env, self._outer_env

        def call() -> Any:  # noqa: ANN401  # checked by `reset_outcome`
            if self._awaits:
                return cast(AsyncEnv, env).areset(seed=seed, options=options)
            return outer.reset(seed=seed, options=options)

        def finish(value: Any) -> tuple[Env, Capabilities, ResetOutcome]:  # noqa: ANN401  # foreign
            inner = cast(Env, outer.unwrapped)  # a wrapper may have replaced the inner one
            capabilities = checked_capabilities(inner)  # a reset may get them from a server
            return inner, capabilities, reset_outcome(warmed(value), inner, outer)

        self._inner, self._known, outcome = await self._call(
            call, finish, timeout_s, "reset", may_await=True
        )
        return outcome

    async def step(self, reply: Reply, *, key: StepKey, timeout_s: float | None) -> StepOutcome:
        """Play one reply.

        Raises:
            StepDeadlineError: It did not answer in time and attributes that to the reply.
            EnvFault: The environment failed, broke its contract, or did not answer in time.
        """
        env, outer = self.env, self._outer_env

        def call() -> Any:  # noqa: ANN401  # checked by `step_outcome`
            env.step_key = key
            env.announce(reply)
            text = reply.text
            return cast(AsyncEnv, env).astep(text) if self._awaits else outer.step(text)

        def finish(value: Any) -> StepOutcome:  # noqa: ANN401  # foreign data
            return step_outcome(warmed(value), env, outer)

        try:
            return await self._call(call, finish, timeout_s, "step", may_await=True)
        except EnvFault as fault:
            is_late = isinstance(fault.__cause__, DeadlineError)
            if is_late and self.capabilities.on_step_timeout == "truncate":
                raise StepDeadlineError(str(fault), kind=FaultKind.TIMEOUT, retryable=False) from (
                    fault.__cause__
                )
            raise

    async def snapshot(self, *, timeout_s: float | None) -> bytes:
        """Return the environment's state.

        Raises:
            EnvFault: The environment failed or did not return bytes.
        """
        return await self._call(self.env.snapshot, _checked_snapshot, timeout_s, "snapshot")

    async def restore(self, data: bytes, *, timeout_s: float | None) -> None:
        """Restore a state.

        Raises:
            EnvFault: The environment failed.
        """
        env = self.env
        await self._call(lambda: env.restore(data), lambda value: value, timeout_s, "restore")

    async def shorten(
        self, observation: Observation, tokens: int, *, timeout_s: float | None
    ) -> Message | None:
        """Return the message of a shorter observation, or None if there is none.

        Raises:
            EnvFault: The environment failed, or broke its contract.
        """
        env, outer = self.env, self._outer_env

        def finish(shorter: Any) -> Message | None:  # noqa: ANN401  # foreign data
            return None if shorter is None else formatted(shorter, env, outer)

        return await self._call(
            lambda: hook(env, outer, "shorten")(observation, tokens), finish, timeout_s, "shorten"
        )

    async def make_room(self, fault: EnvFault) -> bool:
        """Discard the environment and wait for another one to end, if the machine is too full.

        Args:
            fault: What failed.

        Returns:
            Whether it waited. If not, the fault is not for lack of room, or no other environment
            uses it.
        """
        shortage = shortage_in(fault)
        if shortage is None:
            return False
        self.pool.trim()
        sessions = self._sessions
        if sessions is None or not await sessions.step_aside(shortage):
            return False
        self.has_place = False
        self.mark_broken()
        await self._discard()
        # It has waited before, so it is the next one.
        await sessions.enter(is_first=True)
        self.has_place = True
        return True

    def mark_broken(self) -> None:
        """Mark the environment as broken, so that it is not called again."""
        self._broken = True

    def forget_cleanups(self) -> None:
        """Do not make `close` wait for calls that a deadline cut, which may hang forever."""
        self._cleanups.clear()

    async def close(self) -> None:
        """Close the environment if this host built it, and stop its thread.

        A cancelled call may still run on its thread and closes the environment when it returns.
        This waits for it too, so that a cancelled rollout leaves no environment open.
        """
        await self._discard()
        if self._cleanups:
            await asyncio.wait(self._cleanups, timeout=_CANCEL_TIMEOUT_S)

    @property
    def _awaits(self) -> bool:
        """Return whether to await calls; wrappers only have an `AsyncEnv`'s synchronous methods."""
        return self._outer is self.env and isinstance(self.env, AsyncEnv)

    @property
    def _outer_env(self) -> AnyEnv:
        if self._outer is None:
            raise ContractError("the environment is not built yet: await ensure() first")
        return self._outer

    async def _build(
        self, factory: EnvFactory, worker: Worker, timeout_s: float | None
    ) -> tuple[AnyEnv, Capabilities]:
        built = list[AnyEnv]()
        where = "building the environment"

        def build() -> tuple[AnyEnv, Capabilities] | ConfigurationError:
            try:
                built.append(factory())
            except ConfigurationError as error:  # a wrong argument ends the whole run
                return error
            return _checked_env(built[0])

        def close_late() -> None:
            for env in built:
                env.close()

        try:
            found = await worker.call(guarded(build, where), timeout_s=timeout_s)
        except asyncio.CancelledError:
            # The factory goes on in its thread and may still return an environment.
            self._keep_cleanup(worker.abandon(guarded(close_late, where)))
            raise
        except DeadlineError as error:
            worker.abandon(guarded(close_late, where))
            raise as_env_fault(TimeoutError(str(error)), where) from error
        except EnvFault:
            worker.stop()
            raise
        # `guarded` would have made it a fault of this episode alone.
        if isinstance(found, ConfigurationError):
            worker.stop()
            raise found
        return found

    async def _discard(self) -> None:
        outer, inner, worker = self._outer, self._inner, self._worker
        if outer is None or not self._owned:
            # The caller's environment stays open; a broken one is not used again.
            self._take(None if self._broken else outer)
            self._end_worker()
            return
        self._take(None)
        self._worker = None
        close = _closing(outer)
        try:
            if outer is inner and isinstance(inner, AsyncEnv):
                await self._await(inner.aclose, lambda value: value, _CLOSE_TIMEOUT_S, "close")
            elif worker is not None:
                await worker.call(close, timeout_s=_CLOSE_TIMEOUT_S)
            else:
                await self.pool.run(close, timeout_s=_CLOSE_TIMEOUT_S)
        except (EnvFault, DeadlineError):
            return  # a discarded environment may fail to close
        finally:
            if worker is not None:
                worker.stop()

    def _new_worker(self, where: str) -> Worker:
        return guarded(lambda: Worker(self.pool.mailbox), where)()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _take(self, outer: AnyEnv | None) -> None:
        self._outer, self._inner = outer, None

    async def _call(
        self,
        function: Callable[[], Any],
        finish: Callable[[Any], T],
        timeout_s: float | None,
        where: str,
        *,
        may_await: bool = False,
    ) -> T:
        """Call a method and check its result, on a thread.

        Args:
            function: The call.
            finish: Checks the result.
            timeout_s: Maximum seconds; None waits forever.
            where: Name of the method.
            may_await: Whether `function` uses the asynchronous form of an `AsyncEnv`.
        """
        name = f"{type(self.env).__name__}.{where}"
        if may_await and self._awaits:
            return await self._await(function, finish, timeout_s, name)
        # Also what checks the result runs on the thread: hashing images takes milliseconds.
        call = guarded(lambda: finish(function()), name)
        capabilities = self.capabilities
        try:
            if capabilities.thread_safe:
                pool = self.pool.computing if capabilities.compute_bound else self.pool
                return await pool.run(call, timeout_s=timeout_s)
            if self._worker is None:
                self._worker = self._new_worker(name)
            return await self._worker.call(call, timeout_s=timeout_s)
        except asyncio.CancelledError:
            late = self._abandon()
            if late is not None:
                self._keep_cleanup(late)
            raise
        except DeadlineError as error:
            self._abandon()
            raise _late(name, error) from error
        except EnvFault as fault:
            self._note(fault)
            raise

    async def _await(
        self,
        function: Callable[[], Awaitable[Any]],
        finish: Callable[[Any], T],
        timeout_s: float | None,
        name: str,
    ) -> T:
        """Await a method on the event loop, in its own task."""
        loop = asyncio.get_running_loop()
        # A future instead of the task itself: the task of a hook that swallows its cancellation
        # never ends, and one that raises SystemExit ends the event loop's run.
        outcome: asyncio.Future[Any] = loop.create_future()
        task = asyncio.create_task(_report(function, name, outcome))
        timer = None
        if timeout_s is not None:
            timer = loop.call_later(timeout_s, _expire, outcome, timeout_s)
        try:
            return await self._finished(await outcome, finish, name)
        except asyncio.CancelledError:
            task.cancel()
            self._broken = True
            # The hook may close connections. One that ignores its cancellation is left behind.
            await asyncio.wait((task,), timeout=_CANCEL_TIMEOUT_S)
            raise
        except DeadlineError as error:
            task.cancel()
            self._broken = True
            raise _late(name, error) from error
        except EnvFault as fault:
            self._note(fault)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def _finished(self, value: Any, finish: Callable[[Any], T], name: str) -> T:  # noqa: ANN401  # foreign data
        if _shows_images(value):
            await self.pool.computing.run(guarded(lambda: warmed(value), name))
        return guarded(lambda: finish(value), name)()

    def _note(self, fault: EnvFault) -> None:
        self._broken = self._broken or fault.kind in (FaultKind.TIMEOUT, FaultKind.CRASHED)

    def _abandon(self) -> asyncio.Future[None] | None:
        """Abandon a hung call; its thread closes an environment built here when the call returns.

        Returns:
            A future that is done after closing; None if the environment was not built here or has
            no thread.
        """
        self._broken = True
        outer, worker, self._worker = self._outer, self._worker, None
        if outer is None or worker is None:
            return None
        self._take(None)
        if self._owned:
            return worker.abandon(_closing(outer))
        worker.stop()
        return None

    def _keep_cleanup(self, late: asyncio.Future[None]) -> None:
        self._cleanups.add(late)
        late.add_done_callback(self._cleanups.discard)


def _closing(env: AnyEnv) -> Callable[[], None]:
    def close() -> None:
        env.close()

    return guarded(close, "close")


async def _report(
    function: Callable[[], Awaitable[Any]], name: str, outcome: asyncio.Future[Any]
) -> None:
    """Await foreign code and report its outcome, if the caller still waits for it."""
    # The caller waits for a future: the end of a task comes an iteration of the loop later.
    try:
        value = await function()
    except BaseException as error:  # foreign code may raise anything
        if outcome.done():  # most likely we cancelled it
            if is_own_cancellation(error):
                raise
            return
        fault = as_env_fault(error, name)
        outcome.set_exception(fault)
    else:
        if not outcome.done():
            outcome.set_result(value)


def _expire(outcome: asyncio.Future[Any], timeout_s: float) -> None:
    if not outcome.done():
        outcome.set_exception(DeadlineError(timeout_s))


def _checked_env(env: AnyEnv) -> tuple[AnyEnv, Capabilities] | ConfigurationError:
    inner: Any = getattr(env, "unwrapped", env)
    if not isinstance(inner, Env):
        return ConfigurationError(f"a rollout needs an envkit.Env, got {type(inner).__name__}")
    return env, checked_capabilities(inner)


def _late(name: str, error: DeadlineError) -> EnvFault:
    fault = EnvFault(f"{name} failed: {error}", kind=FaultKind.TIMEOUT)
    fault.__cause__ = error
    return fault


def _shows_images(value: Any) -> bool:  # noqa: ANN401  # foreign data
    try:
        return bool(value[0]["images"])
    except (TypeError, KeyError, IndexError):
        return False


def _checked_snapshot(value: Any) -> bytes:  # noqa: ANN401  # foreign data
    if not isinstance(value, bytes):
        raise ContractError(f"snapshot must return bytes, got {type(value).__name__}")
    return value
