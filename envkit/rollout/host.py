"""Calls an environment for the rollout: off the event loop, under deadlines, validated.

What it does not know: retries and recovery (`recovery.py`) and tokens (`loop.py`).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import gymnasium

from envkit.async_env import AsyncEnv
from envkit.env import Env, Observation, Reset, Step, StepKey
from envkit.errors import ContractError, EnvFault, EnvkitError, FaultKind
from envkit.images import Image
from envkit.messages import Message
from envkit.rollout.outcome import checked_reset, checked_step
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.threads.workers import DeadlineError, Worker

T = TypeVar("T")

AnyEnv = gymnasium.Env[Observation, str]
"""An `envkit.Env`, possibly inside Gymnasium wrappers."""
EnvFactory = Callable[[], AnyEnv]
_CLOSE_TIMEOUT_S: Final = 10.0


def factory_of(env: AnyEnv) -> EnvFactory | None:
    """Return how to build another environment like this one, or None if it has no spec."""
    spec = env.spec
    if spec is None:
        return None
    return lambda: cast(AnyEnv, gymnasium.make(spec, disable_env_checker=True))


class EnvHost:
    """One environment and the thread or loop that it runs on.

    Not safe for two calls at once; a trajectory never makes two.
    """

    def __init__(
        self, pool: WorkerPool, *, env: AnyEnv | None = None, factory: EnvFactory | None = None
    ) -> None:
        self._pool = pool
        self._outer = env
        self._owned = env is None
        self._factory = factory if factory is not None or env is None else factory_of(env)
        self._worker: Worker | None = None
        self._broken = False
        self._leaving = set[asyncio.Future[None]]()
        """Clean-ups behind calls that were cancelled; `close` waits for them."""

    @property
    def env(self) -> Env:
        """The environment itself, without wrappers. Only after `ensure`."""
        return cast(Env, self._outer_env.unwrapped)

    @property
    def _awaits(self) -> bool:
        """Whether calls are awaited; wrappers know only the synchronous form of an `AsyncEnv`."""
        return self._outer is self.env and isinstance(self.env, AsyncEnv)

    def format_observation(self, observation: Observation) -> Message:
        """Return the chat message to append, as the outermost wrapper that defines it makes it."""
        return self._hook("format_observation")(observation)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        """Return a shorter form, as the outermost wrapper that defines it makes it, or None."""
        return self._hook("shorten")(observation, tokens)

    def _hook(self, name: str) -> Any:  # noqa: ANN401  # the environment's method or a wrapper's
        env = self.env
        return getattr(env, name) if self._outer is env else self._outer_env.get_wrapper_attr(name)

    @property
    def _outer_env(self) -> AnyEnv:
        if self._outer is None:
            raise ContractError("the environment is not built yet: await ensure() first")
        return self._outer

    @property
    def is_usable(self) -> bool:
        """Whether the environment can take a call; False after a time-out or a crash."""
        return self._outer is not None and not self._broken

    @property
    def can_rebuild(self) -> bool:
        """Whether a fresh environment can be had."""
        return self._factory is not None

    async def ensure(self, *, timeout_s: float | None) -> None:
        """Have a usable environment: build one where there is none, or where it broke.

        Raises:
            EnvFault: It could not be built, or not in time.
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
        async with self._pool.starting.turn():
            worker = Worker(self._pool.mailbox)
            env = await self._build(self._factory, worker, timeout_s)
        if not isinstance(env.unwrapped, Env):
            worker.stop()
            raise ContractError(
                f"a rollout needs an envkit.Env, got {type(env.unwrapped).__name__}"
            )
        self._outer, self._owned, self._broken = env, True, False
        if self.env.capabilities.thread_safe or self._awaits:
            worker.stop()
        else:
            self._worker = worker

    async def _build(self, factory: EnvFactory, worker: Worker, timeout_s: float | None) -> AnyEnv:
        built = list[AnyEnv]()

        def build() -> AnyEnv:
            built.append(factory())
            return built[0]

        def close_late() -> None:
            for env in built:
                env.close()

        try:
            return await worker.call(build, timeout_s=timeout_s)
        except asyncio.CancelledError:
            self._outlast(worker.abandon(close_late))
            raise
        except DeadlineError as error:
            worker.abandon(close_late)
            raise _as_fault(error, "building the environment") from error
        except Exception as error:
            worker.stop()
            raise _as_fault(error, "building the environment") from error

    async def reset(self, *, seed: int | None, task: Task | None, timeout_s: float | None) -> Reset:
        """Start an episode.

        Raises:
            EnvFault: The environment failed, or did not answer in time.
            ContractError: It returned something that is no reset.
        """
        options = None if task is None else {"task": task}
        env, outer = self.env, self._outer
        if self._awaits and isinstance(env, AsyncEnv):
            value: Any = await self._await(
                env.areset(seed=seed, options=options), timeout_s, "reset"
            )
        else:
            value = await self._call(
                lambda: _warmed(cast(AnyEnv, outer).reset(seed=seed, options=options)),
                timeout_s,
                "reset",
            )
        reset = checked_reset(value, type(env).__name__)
        if self._awaits and reset.observation["images"]:
            await self._pool.computing.run(lambda: _warmed(reset))
        return reset

    async def step(self, text: str, *, key: StepKey, timeout_s: float | None) -> Step:
        """Play one reply.

        Raises:
            EnvFault: The environment failed, or did not answer in time.
            ContractError: It returned something that is no step.
        """
        env, outer = self.env, self._outer
        env.step_key = key
        if self._awaits and isinstance(env, AsyncEnv):
            value: Any = await self._await(env.astep(text), timeout_s, "step")
        else:
            value = await self._call(
                lambda: _warmed(cast(AnyEnv, outer).step(text)), timeout_s, "step"
            )
        step = checked_step(value, type(env).__name__)
        if self._awaits and step.observation["images"]:
            await self._pool.computing.run(lambda: _warmed(step))
        return step

    async def snapshot(self, *, timeout_s: float | None) -> bytes:
        """Return the environment's state."""
        return await self._call(self.env.snapshot, timeout_s, "snapshot")

    async def restore(self, data: bytes, *, timeout_s: float | None) -> None:
        """Put a state back."""
        env = self.env
        await self._call(lambda: env.restore(data), timeout_s, "restore")

    def mark_broken(self) -> None:
        """Say that the environment must not be called again."""
        self._broken = True

    async def close(self) -> None:
        """Close the environment if it was built here, and end its thread.

        A call that was cancelled may still run on its thread, and closes the environment when it
        returns: wait for that too, so that a cancelled rollout leaves none open behind it.
        """
        await self._discard()
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_CLOSE_TIMEOUT_S)

    async def _discard(self) -> None:
        outer, worker = self._outer, self._worker
        if outer is None or not self._owned:
            self._outer = None if self._broken else outer
            self._end_worker()
            return
        self._outer, self._worker = None, None
        env = cast(Env, outer.unwrapped)
        try:
            if outer is env and isinstance(env, AsyncEnv):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await env.aclose()
            elif worker is not None:
                await worker.call(outer.close, timeout_s=_CLOSE_TIMEOUT_S)
            else:
                await self._pool.run(outer.close, timeout_s=_CLOSE_TIMEOUT_S)
        except Exception:  # noqa: BLE001  # what is thrown away may fail to close
            return
        finally:
            if worker is not None:
                worker.stop()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    async def _call(self, function: Callable[[], T], timeout_s: float | None, where: str) -> T:
        env = self.env
        try:
            if env.capabilities.thread_safe:
                pool = self._pool.computing if env.capabilities.compute_bound else self._pool
                return await pool.run(function, timeout_s=timeout_s)
            if self._worker is None:
                self._worker = Worker(self._pool.mailbox)
            return await self._worker.call(function, timeout_s=timeout_s)
        except asyncio.CancelledError:
            late = self._abandon()
            if late is not None:
                self._outlast(late)
            raise
        except DeadlineError as error:
            self._abandon()
            raise _as_fault(error, f"{type(env).__name__}.{where}") from error
        except Exception as error:
            fault = _as_fault(error, f"{type(env).__name__}.{where}")
            self._broken = self._broken or fault.kind in (FaultKind.TIMEOUT, FaultKind.CRASHED)
            raise fault from error

    def _abandon(self) -> asyncio.Future[None] | None:
        """Give up on a call that hangs; its thread closes what was built here if it returns.

        Returns:
            Done once it was closed there; None where it was not built here, or has no thread.
        """
        self._broken = True
        outer, worker, self._worker = self._outer, self._worker, None
        if outer is None or worker is None:
            return None
        self._outer = None
        if self._owned:
            return worker.abandon(outer.close)
        worker.stop()
        return None

    def _outlast(self, late: asyncio.Future[None]) -> None:
        self._leaving.add(late)
        late.add_done_callback(self._leaving.discard)

    async def _await(self, call: Any, timeout_s: float | None, where: str) -> Any:  # noqa: ANN401  # validated by the caller
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except asyncio.CancelledError:
            self._broken = True
            raise
        except Exception as error:
            fault = _as_fault(error, f"{type(self.env).__name__}.{where}")
            self._broken = self._broken or fault.kind in (FaultKind.TIMEOUT, FaultKind.CRASHED)
            raise fault from error


def _warmed(answer: T) -> T:
    """Decode, hash and encode new images on this thread, so that the event loop never does.

    The record and HTTP engines want PNG.
    """
    foreign: Any = answer
    try:
        images: Any = foreign[0]["images"]
    except (TypeError, KeyError, IndexError):
        return answer  # `checked_reset` and `checked_step` say what is wrong with it
    for image in images:
        if isinstance(image, Image):
            _ = image.sha256, image.png_bytes()
    return answer


def _as_fault(error: Exception, where: str) -> EnvFault:
    """Wrap a foreign exception once, at this boundary; contract errors pass through."""
    if isinstance(error, EnvFault):
        return error
    if isinstance(error, EnvkitError):
        raise error
    message = f"{where} failed: {type(error).__name__}: {error}"
    if isinstance(error, (TimeoutError, DeadlineError)):
        return EnvFault(message, kind=FaultKind.TIMEOUT)
    if isinstance(error, OSError):
        return EnvFault(message, kind=FaultKind.TRANSIENT)
    return EnvFault(message, kind=FaultKind.PERMANENT)
