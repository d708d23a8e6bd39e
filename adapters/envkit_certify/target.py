"""Find the environment to certify: by id, by `module:Class`, or by `file.py:Class`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from envkit.env import Env
from envkit.errors import ConfigurationError, ContractError, EnvkitError, describe
from envkit.plugins import foreign

Make = Callable[[], Env]


def resolve(target: str, kwargs: Mapping[str, Any]) -> Make:
    """Return a function that makes instances of an environment.

    Args:
        target: An id, `module:Class` or `file.py:Class`.
        kwargs: Arguments of its constructor.

    Raises:
        ConfigurationError: The file or module cannot be imported or lacks the class.
        ContractError: The class is not an `envkit.Env`.
        UnknownNameError: No environment has the id.
    """
    place, colon, name = target.rpartition(":")
    if not colon:
        return _registered(target, kwargs)
    if not place or not name.isidentifier():
        raise ConfigurationError(f"expected module:Class or file.py:Class, got {target!r}")
    found: object = getattr(_module(place), name, None)
    if found is None:
        raise ConfigurationError(f"{place} has no class {name!r}")
    if not isinstance(found, type) or not issubclass(found, Env):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise ContractError(f"{target} must be a subclass of envkit.Env, got {kind}")
    return lambda: _guarded(target, lambda: found(**kwargs))


def _registered(env_id: str, kwargs: Mapping[str, Any]) -> Make:
    from envkit.registration import make, spec

    spec(env_id)  # refuses an unknown id, with a suggestion
    return lambda: _guarded(
        env_id, lambda: cast("Env", make(env_id, disable_env_checker=True, **kwargs).unwrapped)
    )


def _module(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py" and not path.is_file():
        raise ConfigurationError(f"no file {place!r}")
    with foreign(f"cannot import {place!r}", ConfigurationError):
        if path.suffix != ".py":
            return importlib.import_module(place)
        # make sibling modules importable, as `python file.py` does
        sys.path.insert(0, str(path.parent.resolve()))
        name = f"_envkit_certified_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # noqa: PT018  # a .py file has both
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def _guarded(target: str, make: Make) -> Env:
    try:
        return make()
    except (EnvkitError, KeyboardInterrupt):
        raise
    except BaseException as error:  # as above
        raise ContractError(f"{target} cannot be built: {describe(error)}") from error
