"""Turn a function that builds an environment into one that builds it in a worker process."""

import json
import os
import pickle
import pickletools
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnasium

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.ranges import positive
from envkit.registration import registry
from envkit.rollout.host import EnvFactory
from envkit.rollout.sources import EnvSource
from envkit_isolation.frames import Frame, FrameError
from envkit_isolation.process import WorkerProcess
from envkit_isolation.proxy import IsolatedEnv, IsolatedMultiAgentEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedSource:
    """Builds environments in worker processes; equal sources build equal environments."""

    env_id: str | None = None
    """Id of a registered environment; None for a pickled factory."""
    arguments: str = "{}"
    """Keyword arguments of a registered environment as JSON."""
    pickled: bytes = b""
    modules: tuple[str, ...] = ()
    """What a pickled factory imports."""
    memory_mb: int | None = None
    """MiB of address space that the worker and each of its child processes may use on top of what
    the worker uses before building the environment; None means no limit."""
    start_timeout_s: float | None = 120.0
    """Timeout of starting and building, in seconds; None waits forever."""

    @property
    def key(self) -> str:
        """What the supervisor imports, as JSON; workers with the same value share a supervisor."""
        return json.dumps({"env_id": self.env_id, "modules": self.modules})

    def __call__(self) -> IsolatedEnv:
        """Start a worker and return a proxy of its environment.

        Raises:
            EnvFault: The process died or was not ready in time, or the environment failed to start.
            EnvkitError: Any other error of the environment's constructor.
        """
        hello = Frame(
            {
                "call": "hello",
                "env_id": self.env_id,
                "arguments": self.arguments,
                "memory_mb": self.memory_mb,
                "registered": _registered_for(self.env_id, frozenset(gymnasium.registry)),
                "environ": dict(os.environ),
                "path": sys.path,
                "directory": os.getcwd(),
            },
            self.pickled,
        )
        worker = WorkerProcess(self.key, hello, timeout_s=self.start_timeout_s)
        kind = IsolatedMultiAgentEnv if worker.hello.data.get("agents") is True else IsolatedEnv
        try:
            return kind(worker, rebuild=self)
        except (FrameError, TypeError, ValueError, KeyError) as error:
            fault = worker.broken(error)
            worker.close()
            raise fault from error


@lru_cache(maxsize=64)
def _registered_for(env_id: str | None, known_ids: frozenset[str]) -> list[dict[str, Any]]:
    """Return the run-time registrations of this process, which a worker must repeat.

    Args:
        env_id: The requested environment, if it is registered.
        known_ids: Part of the cache key, so new environments are noticed. Reading the installed
            packages takes longer than starting a worker.

    Raises:
        ConfigurationError: The environment cannot be imported in another process.
        UnknownNameError: The environment is not registered.
    """
    known = registry()
    wanted = (env_id or "").removeprefix("envkit/")
    named = {name for name in known if wanted in (name, name.rpartition("-v")[0])}  # any version
    if env_id is not None and "/" not in wanted and not named:
        raise UnknownNameError.suggest("environment", env_id, known)
    found: list[dict[str, Any]] = []
    for entry in known.values():
        if entry.distribution is not None:
            continue
        place = entry.entry_point
        if isinstance(place, str) and not place.startswith("__main__:"):
            found.append(
                {
                    "id": entry.id,
                    "entry_point": place,
                    "description": entry.description,
                    "kwargs": dict(entry.kwargs),
                    "nondeterministic": entry.nondeterministic,
                    "reward_threshold": entry.reward_threshold,
                }
            )
        elif entry.id in named:
            raise ConfigurationError(
                f"environment {env_id!r} cannot be isolated: its class must be in a module that "
                "another process can import, not in a script, a notebook or a function"
            )
    return found


def isolated(
    factory: EnvFactory, *, memory_mb: int | None = None, start_timeout_s: float | None = 120.0
) -> IsolatedSource:
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
    positive(memory_mb=memory_mb, start_timeout_s=start_timeout_s)
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
