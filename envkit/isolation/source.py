"""What workers build, and how one is started."""

import json
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import gymnasium

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.isolation.frames import Frame, FrameError
from envkit.isolation.process import WorkerProcess
from envkit.isolation.proxy import IsolatedEnv, IsolatedMultiAgentEnv
from envkit.registration import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedSource:
    """Builds environments in worker processes; equal sources build equal environments."""

    env_id: str | None = None
    """Of a registered environment; None for what a pickled factory returns."""
    arguments: str = "{}"
    """Keyword arguments of a registered environment as JSON."""
    pickled: bytes = b""
    modules: tuple[str, ...] = ()
    """What a pickled factory imports."""
    memory_mb: int | None = None
    """MiB of address space that the worker and each process that it starts may take beyond what it
    needs before the environment is built; None is unlimited."""
    start_timeout_s: float | None = 120.0
    """Deadline of starting and building; None waits forever."""

    @property
    def key(self) -> str:
        """What workers of one supervisor share, as JSON: what it imports."""
        return json.dumps({"env_id": self.env_id, "modules": self.modules})

    def __call__(self) -> IsolatedEnv:
        """Start a worker and return the proxy of its environment.

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
    """Return what a worker must register first: what this process registered at run time.

    Args:
        env_id: The environment that is wanted, if it is a registered one.
        known_ids: Makes the cache notice new environments. Reading what is installed takes longer
            than starting a worker.

    Raises:
        ConfigurationError: The environment that is wanted cannot be imported in another process.
        UnknownNameError: No such environment is registered.
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
                }
            )
        elif entry.id in named:
            raise ConfigurationError(
                f"environment {env_id!r} cannot be isolated: its class must be in a module that "
                "another process can import, not in a script, a notebook or a function"
            )
    return found
