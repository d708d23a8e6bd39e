"""Sources that build a rollout's environments, and the pool that lends them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from envkit.errors import ConfigurationError, EnvFault
from envkit.plugins import load_plugin
from envkit.registration import make
from envkit.rollout.host import AnyEnv, EnvFactory, EnvHost
from envkit.rollout.sessions import Sessions
from envkit.threads.pool import WorkerPool

ISOLATION: Final = "envkit.isolation"
"""Entry-point group of ways to run environments apart from the process of the run."""
_CLOSED_AT_ONCE: Final = 16
"""Environments closed before the event loop runs again; thousands would block it."""


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


def isolate(
    factory: EnvFactory, kind: str, *, memory_mb: int | None, start_timeout_s: float | None
) -> EnvFactory:
    """Return a factory that builds environments in worker processes.

    Args:
        factory: Builds an environment.
        kind: An entry point of the group `envkit.isolation`, which is called with the factory and
            the other arguments.
        memory_mb: MiB per process.
        start_timeout_s: Deadline for starting.

    Raises:
        ConfigurationError: The factory cannot be pickled, or a number is not positive.
    """
    make_isolated = load_plugin(ISOLATION, kind, kind="isolation")
    return make_isolated(factory, memory_mb=memory_mb, start_timeout_s=start_timeout_s)


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
        self._sessions = Sessions(self._idle)
        self._is_known = False
        self._is_closed = False

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[EnvHost]:
        """Lend a host; wait while all sessions that environment and machine allow are in use.

        Raises:
            ConfigurationError: The environment cannot be built with its arguments.
        """
        await self.max_sessions()
        await self._sessions.enter()
        host = self._idle.pop() if self._idle else self._host()
        try:
            yield host
        finally:
            try:
                if self._is_closed or self._sessions.is_short:
                    await host.close()  # an idle environment would take room from the next
            finally:
                if not self._is_closed:
                    self._idle.append(host)
                if host.has_place:
                    self._sessions.leave()
                host.has_place = True

    async def max_sessions(self) -> int | None:
        """Build the first environment and return its `max_sessions`; None is unlimited or unknown.

        Raises:
            ConfigurationError: The environment cannot be built with its arguments.
        """
        if self._is_known:
            return self._sessions.declared
        async with self._first:
            if self._is_known:
                return self._sessions.declared
            host = self._host()
            self._idle.append(host)
            try:
                await host.ensure(timeout_s=self._timeout_s)
            except EnvFault:
                return None  # the episode retries the build, within the retry budget
            self._sessions.declared = host.capabilities.max_sessions
            self._is_known = True
            return self._sessions.declared

    async def close(self) -> None:
        """Close idle hosts now and lent ones when they are returned."""
        self._is_closed = True
        idle = [*self._idle]
        self._idle.clear()
        closing: list[asyncio.Task[None]] = []
        try:
            for number, host in enumerate(idle, 1):
                closing.append(asyncio.create_task(host.close()))
                if number % _CLOSED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:  # a cancelled one closes the rest at once
            closing += [asyncio.create_task(host.close()) for host in idle[len(closing) :]]
            await asyncio.gather(*closing)

    def _host(self) -> EnvHost:
        return EnvHost(self._pool, factory=self._factory, sessions=self._sessions)


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
