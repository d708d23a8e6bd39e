"""Turn a function that builds an environment into one that builds it in a worker process."""

import pickle
import pickletools
import sys
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.host import EnvFactory
from envkit.rollout.sources import EnvSource
from envkit_isolation.source import IsolatedSource


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
    for name, value in (("memory_mb", memory_mb), ("start_timeout_s", start_timeout_s)):
        if value is not None and value <= 0:
            raise ConfigurationError(f"{name} must be positive or None, got {value}")
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
