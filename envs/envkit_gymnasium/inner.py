"""Create the inner environment and turn its exceptions into faults."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, cast

import gymnasium

from envkit.errors import (
    ConfigurationError,
    EnvFault,
    EnvkitError,
    FaultKind,
    MissingDependencyError,
)
from envkit_gymnasium.names import class_key

GymEnv = gymnasium.Env[Any, Any]
Maker = str | Callable[..., GymEnv]
_SHOWN: Final = 300


class View(StrEnum):
    """What the model sees of the inner environment."""

    AUTO = "auto"
    """Its text rendering if it has one, or else its observation."""
    ANSI = "ansi"
    """Its text rendering; colours become a list of marks."""
    RGB_ARRAY = "rgb_array"
    """Its image."""
    STATE = "state"
    """Its observation in words; an observation that is an image is shown as one."""


def make_inner(env: Maker, arguments: Mapping[str, Any], view: View) -> GymEnv:
    """Create the inner environment with the render mode of a view.

    Raises:
        ConfigurationError: Gymnasium has no such environment, or it rejects the arguments.
        MissingDependencyError: It needs a package that is not installed.
    """
    options = dict(arguments)
    if view is not View.STATE:
        options["render_mode"] = view.value
    try:
        if callable(env):
            made: object = env(**options)
        else:
            made = cast(Any, gymnasium.make)(env, disable_env_checker=True, **options)
    except EnvkitError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(env, error) from error
    except Exception as error:  # a foreign constructor may raise anything
        raise ConfigurationError(
            f"the environment {_name(env)!r} cannot be made with {options!r:.200}: {error!r:.300}"
        ) from error
    if not isinstance(made, gymnasium.Env):
        raise ConfigurationError(
            f"env must make a gymnasium.Env, got {type(made).__name__} from {_name(env)!r}"
        )
    return cast(GymEnv, made)


def choose_view(env: Maker, arguments: Mapping[str, Any], view: str) -> View:
    """Resolve a view by asking the environment what it renders.

    Raises:
        ConfigurationError: The view is unknown, or the environment does not render it.
        MissingDependencyError: As `make_inner` does.
    """
    if view not in [member.value for member in View]:
        names = ", ".join(repr(member.value) for member in View)
        raise ConfigurationError(f"view must be one of {names}, got {view!r}")
    if "render_mode" in arguments:
        raise ConfigurationError("pass view= instead of the argument 'render_mode' of env_kwargs")
    if view == View.STATE:
        return View.STATE
    probe = make_inner(env, arguments, View.STATE)
    modes = cast("list[str]", (probe.metadata or {}).get("render_modes") or [])
    probe.close()
    if view == View.AUTO:
        return View.ANSI if View.ANSI in modes else View.STATE
    if view not in modes:
        raise ConfigurationError(
            f"the environment {_name(env)!r} does not render {view!r}; it renders {modes}. "
            "view='state' shows its observation"
        )
    return View(view)


def is_known_repeatable(inner: GymEnv) -> bool:
    """Whether Gymnasium ships the environment and does not mark it nondeterministic."""
    spec = inner.spec
    return class_key(inner.unwrapped) is not None and spec is not None and not spec.nondeterministic


@contextmanager
def foreign(what: str, inner: GymEnv) -> Generator[None]:
    """Turn any exception of the inner environment into a fault.

    Raises:
        EnvFault: CRASHED: it raised.
        MissingDependencyError: A package that it needs is not installed.
    """
    try:
        yield
    except EnvkitError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(str(inner), error) from error
    except Exception as error:  # foreign code may raise anything
        shown = repr(error)[:_SHOWN]
        raise EnvFault(
            f"{what}() of the inner environment {inner} failed: {shown}", kind=FaultKind.CRASHED
        ) from error


def _missing(env: Maker, error: Exception) -> MissingDependencyError:
    return MissingDependencyError(f"the environment {_name(env)!r}: {error}")


def _name(env: Maker) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", repr(env))
