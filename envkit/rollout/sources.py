"""Sources that build a rollout's environments, and the pool that lends them."""

import asyncio
import json
import pickle
import pickletools
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from envkit.errors import ConfigurationError, EnvFault
from envkit.registration import make
from envkit.rollout.host import AnyEnv, EnvFactory, EnvHost
from envkit.threads.pool import WorkerPool

if TYPE_CHECKING:
    from envkit.isolation import IsolatedSource


@dataclass(frozen=True, slots=True)
class EnvSource:
    """Builds a registered environment; equal sources build equal environments."""

    env_id: str
    arguments: str = "{}"
    """Keyword arguments of the environment as canonical JSON."""

    def __call__(self) -> AnyEnv:
        """Return a new environment.

        Raises:
            UnknownNameError: No environment with this id is registered in this process.
            ConfigurationError: The environment does not accept the arguments.
        """
        return make(self.env_id, **json.loads(self.arguments))


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSource:
    """A function whose environments a player keeps for later episodes."""

    env_id: str
    build: EnvFactory

    def __call__(self) -> AnyEnv:
        """Return a new environment."""
        return self.build()


Source = EnvSource | FunctionSource


def source_of(env: str | EnvFactory, arguments: Mapping[str, Any]) -> Source:
    """Return the source of an environment.

    Args:
        env: A registered id, or a function.
        arguments: Keyword arguments of a registered environment.

    Raises:
        ConfigurationError: A function was given with arguments.
    """
    if isinstance(env, FunctionSource):
        return env
    if isinstance(env, str):
        try:
            return EnvSource(env, canonical_json(dict(arguments)))
        except ConfigurationError:  # objects that JSON cannot hold
            return FunctionSource(env, partial(make, env, **dict(arguments)))
    if arguments:
        raise ConfigurationError(
            "env_kwargs need a registered environment's id, got a function; set them in the "
            "function instead"
        )
    return FunctionSource(getattr(env, "__name__", "env"), env)


def isolated(
    factory: EnvFactory, *, memory_mb: int | None = None, start_timeout_s: float | None = 120.0
) -> "IsolatedSource":
    """Return a factory that builds the same environment in its own worker process.

    A worker that exits, crashes, hangs, runs out of memory or starts too many processes takes down
    only itself and the processes that it started: the caller gets an `EnvFault`.

    Args:
        factory: An `EnvSource`, or anything picklable, such as a module-level function.
        memory_mb: MiB of address space that the worker, and each process that it starts, may use
            on top of what the worker uses before it builds the environment; None is unlimited. Do
            not set it for browsers, which reserve far more than they use.
        start_timeout_s: Deadline for starting the worker and building the environment; None waits
            forever.

    Raises:
        ConfigurationError: The factory cannot be pickled, or a number is not positive.
    """
    for name, value in (("memory_mb", memory_mb), ("start_timeout_s", start_timeout_s)):
        if value is not None and value <= 0:
            raise ConfigurationError(f"{name} must be positive or None, got {value}")
    from envkit.isolation import IsolatedSource  # rarely needed, and it hooks into forks

    options: dict[str, Any] = {"memory_mb": memory_mb, "start_timeout_s": start_timeout_s}
    if isinstance(factory, EnvSource):
        return IsolatedSource(env_id=factory.env_id, arguments=factory.arguments, **options)
    data, modules = _pickled(factory)
    return IsolatedSource(pickled=data, modules=modules, **options)


def _pickled(factory: EnvFactory) -> tuple[bytes, tuple[str, ...]]:
    """Return the pickled factory and the modules that unpickling it imports."""
    try:
        data = pickle.dumps(factory)
    except Exception as error:  # the object's own code can raise anything
        raise ConfigurationError(
            "an environment in a worker process needs a picklable factory, such as a module-level "
            f"function or an EnvSource, got {factory!r:.120}: {error}"
        ) from error
    modules = {
        name for _, name, _ in pickletools.genops(data) if isinstance(name, str)
    } & sys.modules.keys()
    if "__main__" in modules:
        raise ConfigurationError(
            "an environment in a worker process needs a factory from a module that the worker can "
            f"import, got {factory!r:.120} from the main script; move it into a module"
        )
    return data, tuple(sorted(modules))


class EnvPool:
    """Lends environments, at most `max_sessions` at a time."""

    def __init__(self, factory: EnvFactory, pool: WorkerPool, *, timeout_s: float | None) -> None:
        """Create an empty pool.

        Args:
            factory: Builds an environment.
            pool: Threads for blocking calls.
            timeout_s: Deadline for building an environment, in seconds; None waits forever.
        """
        self._factory, self._pool, self._timeout_s = factory, pool, timeout_s
        self._idle: list[EnvHost] = []
        self._first = asyncio.Lock()
        self._sessions: asyncio.Semaphore | None = None
        self._is_known = False
        self._max_sessions: int | None = None
        self._is_closed = False

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[EnvHost]:
        """Lend a host; wait while all sessions that the environment allows are in use.

        Raises:
            ConfigurationError: The environment cannot be built with its arguments.
        """
        await self.max_sessions()
        if self._sessions is not None:
            await self._sessions.acquire()
        host = self._idle.pop() if self._idle else EnvHost(self._pool, factory=self._factory)
        try:
            yield host
        finally:
            if self._is_closed:
                await host.close()
            else:
                self._idle.append(host)
            if self._sessions is not None:
                self._sessions.release()

    async def max_sessions(self) -> int | None:
        """Build the first environment and return its `max_sessions`; None is unlimited or unknown.

        Raises:
            ConfigurationError: The environment cannot be built with its arguments.
        """
        if self._is_known:
            return self._max_sessions
        async with self._first:
            if self._is_known:
                return self._max_sessions
            host = EnvHost(self._pool, factory=self._factory)
            self._idle.append(host)
            try:
                await host.ensure(timeout_s=self._timeout_s)
            except EnvFault:
                return None  # the episode retries the build, within the retry budget
            most = self._max_sessions = host.capabilities.max_sessions
            self._sessions = None if most is None else asyncio.Semaphore(most)
            self._is_known = True
            return most

    async def close(self) -> None:
        """Close idle hosts now and lent ones when they are returned."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(host.close() for host in idle))


def canonical_json(data: object) -> str:
    """Return canonical JSON text: equal data gives equal text.

    Raises:
        ConfigurationError: The data is not JSON data.
    """
    try:
        return json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"arguments and tasks of a request must be JSON data: {error}"
        ) from error
