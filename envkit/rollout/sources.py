"""Where the environments of a rollout come from: their sources, and the pool that lends them."""

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
            UnknownNameError: No environment of this id is registered in this process.
            ConfigurationError: It does not take the arguments.
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
    """Return what builds an environment.

    Args:
        env: A registered id, or a function.
        arguments: Keyword arguments of a registered environment.

    Raises:
        ConfigurationError: Arguments for a function, which has its own.
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
            "env_kwargs belong to a registered environment's id; put them into the function instead"
        )
    return FunctionSource(getattr(env, "__name__", "env"), env)


def isolated(
    factory: EnvFactory, *, memory_mb: int | None = None, start_timeout_s: float | None = 120.0
) -> "IsolatedSource":
    """Return a factory that builds the same environment in its own worker process.

    A worker that exits, crashes, hangs, runs out of memory or starts too many processes is lost
    alone, with everything it started: the caller gets an `EnvFault`.

    Args:
        factory: An `EnvSource`, or anything that can be pickled, such as a function of a module.
        memory_mb: MiB of address space that the worker, and each process that it starts, may take
            beyond what it holds before the environment is built; None is unlimited. Do not set it
            for browsers, which reserve far more than they use.
        start_timeout_s: Deadline of starting and building an environment; None waits forever.

    Raises:
        ConfigurationError: The factory cannot be pickled, or a number is not positive.
    """
    for name, value in (("memory_mb", memory_mb), ("start_timeout_s", start_timeout_s)):
        if value is not None and value <= 0:
            raise ConfigurationError(f"{name} must be positive or None, got {value}")
    from envkit.isolation import IsolatedSource  # watches forks of this process; rarely needed

    options: dict[str, Any] = {"memory_mb": memory_mb, "start_timeout_s": start_timeout_s}
    if isinstance(factory, EnvSource):
        return IsolatedSource(env_id=factory.env_id, arguments=factory.arguments, **options)
    data, modules = _pickled(factory)
    return IsolatedSource(pickled=data, modules=modules, **options)


def _pickled(factory: EnvFactory) -> tuple[bytes, tuple[str, ...]]:
    """Return a factory as bytes, and the modules that reading them imports."""
    try:
        data = pickle.dumps(factory)
    except Exception as error:  # pickle raises whatever the object's own code does
        raise ConfigurationError(
            "an environment that runs in a worker process needs a factory that can be pickled, "
            f"such as a function of a module or an EnvSource, got {factory!r:.120}: {error}"
        ) from error
    modules = {
        name for _, name, _ in pickletools.genops(data) if isinstance(name, str)
    } & sys.modules.keys()
    if "__main__" in modules:
        raise ConfigurationError(
            "an environment that runs in a worker process needs a factory of a module that the "
            f"worker can import, got {factory!r:.120} of the main script; move it into a module"
        )
    return data, tuple(sorted(modules))


class EnvPool:
    """Lends environments and obeys their `max_sessions`."""

    def __init__(self, factory: EnvFactory, pool: WorkerPool, *, timeout_s: float | None) -> None:
        """Make an empty pool.

        Args:
            factory: Builds an environment.
            pool: Threads for blocking calls.
            timeout_s: Seconds that building one may take; None waits forever.
        """
        self._factory, self._pool, self._timeout_s = factory, pool, timeout_s
        self._idle: list[EnvHost] = []
        self._first = asyncio.Lock()
        self._sessions: asyncio.Semaphore | None = None
        self._is_known = False
        self._most: int | None = None
        self._is_closed = False

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[EnvHost]:
        """Lend a host, waiting while as many are in use as the environment allows.

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
        """Build the first environment and return its `max_sessions`; None is unlimited, or unknown.

        Raises:
            ConfigurationError: The environment cannot be built with its arguments.
        """
        if self._is_known:
            return self._most
        async with self._first:
            if self._is_known:
                return self._most
            host = EnvHost(self._pool, factory=self._factory)
            self._idle.append(host)
            try:
                await host.ensure(timeout_s=self._timeout_s)
            except EnvFault:
                return None  # its episode builds it again, under the retry budget
            self._most = host.capabilities.max_sessions
            self._sessions = None if self._most is None else asyncio.Semaphore(self._most)
            self._is_known = True
            return self._most

    async def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(host.close() for host in idle))


def canonical_json(data: object) -> str:
    """Return JSON data as text that is equal for equal data.

    Raises:
        ConfigurationError: It is not JSON data.
    """
    try:
        return json.dumps(data, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"arguments and tasks of a request must be JSON data: {error}"
        ) from error
