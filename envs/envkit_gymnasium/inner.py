"""The inner environment: create it, read its rules, and turn its exceptions into faults."""

import inspect
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, cast

import gymnasium

from envkit import errors, ranges
from envkit_gymnasium.names import class_key

GymEnv = gymnasium.Env[Any, Any]
Maker = str | Callable[..., GymEnv]
_SHOWN: Final = 300
_LEFT_OUT: Final = frozenset(
    {
        "action space",  # in the description of the action
        "arguments",
        "credits",
        "information",
        "integration timestep",
        "observation space",
        "references",
        "vectorized environment",
        "version history",
    }
)
"""Lowercase titles of sections that do not help to play."""
_HEADING: Final = re.compile(r"^[ \t]*##+[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_CODE: Final = re.compile(r"^[ \t]*```.*?^[ \t]*```[ \t]*$\n?", re.MULTILINE | re.DOTALL)
_HTML: Final = re.compile(r"<[^<>\n]{1,200}>")
_LINK: Final = re.compile(r"!?\[([^\[\]\n]*)\]\([^()\n]*\)")
_LONGEST: Final = 6000


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
    except errors.EnvkitError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(env, error) from error
    except Exception as error:  # a foreign constructor may raise anything
        raise errors.ConfigurationError(
            f"the environment {_name(env)!r} cannot be made with {options!r:.200}: {error!r:.300}"
        ) from error
    if not isinstance(made, gymnasium.Env):
        raise errors.ConfigurationError(
            f"env must make a gymnasium.Env, got {type(made).__name__} from {_name(env)!r}"
        )
    return cast(GymEnv, made)


def choose_view(env: Maker, arguments: Mapping[str, Any], view: str) -> View:
    """Resolve a view by asking the environment what it renders.

    Raises:
        ConfigurationError: The view is unknown, or the environment does not render it.
        MissingDependencyError: As `make_inner` does.
    """
    ranges.one_of("view", view, View)
    if "render_mode" in arguments:
        raise errors.ConfigurationError(
            "pass view= instead of the argument 'render_mode' of env_kwargs"
        )
    if view == View.STATE:
        return View.STATE
    probe = make_inner(env, arguments, View.STATE)
    modes = cast("list[str]", (probe.metadata or {}).get("render_modes") or [])
    probe.close()
    if view == View.AUTO:
        return View.ANSI if View.ANSI in modes else View.STATE
    if view not in modes:
        raise errors.ConfigurationError(
            f"the environment {_name(env)!r} does not render {view!r}; it renders {modes}. "
            "view='state' shows its observation"
        )
    return View(view)


def is_known_repeatable(inner: GymEnv) -> bool:
    """Whether Gymnasium ships the environment and does not mark it nondeterministic."""
    spec = inner.spec
    return class_key(inner.unwrapped) is not None and spec is not None and not spec.nondeterministic


def rules_of(inner: GymEnv, settings: Mapping[str, object]) -> str:
    """Return the class docstring without code and API sections, and the settings of this game.

    The docstring describes the defaults, which the settings change: a lake that is not slippery.
    Empty if the class has no docstring.
    """
    text = inspect.cleandoc(type(inner.unwrapped).__doc__ or "")
    if not text or type(inner.unwrapped).__doc__ == gymnasium.Env.__doc__:
        return ""
    text = _CODE.sub("", text)
    headings = list(_HEADING.finditer(text))
    starts = [*(heading.start() for heading in headings), len(text)]
    kept = [text[: starts[0]]]
    for heading, end in zip(headings, starts[1:], strict=True):
        if heading.group(1).casefold() not in _LEFT_OUT:
            kept.append(text[heading.start() : end])
    plain = _HTML.sub("", _LINK.sub(r"\1", "".join(kept)))
    text = re.sub(r"\n{3,}", "\n\n", plain).strip()[:_LONGEST]
    said = ", ".join(
        f"{name} = {value!r}"
        for name, value in settings.items()
        if isinstance(value, bool | int | float | str) and name != "render_mode"
    )
    return f"{text}\n\nSettings of this game: {said}." if said else text


@contextmanager
def foreign(what: str, inner: GymEnv) -> Generator[None]:
    """Turn any exception of the inner environment into a fault.

    Raises:
        EnvFault: CRASHED: it raised.
        MissingDependencyError: A package that it needs is not installed.
    """
    try:
        yield
    except errors.EnvkitError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(str(inner), error) from error
    except Exception as error:  # foreign code may raise anything
        shown = repr(error)[:_SHOWN]
        raise errors.EnvFault(
            f"{what}() of the inner environment {inner} failed: {shown}",
            kind=errors.FaultKind.CRASHED,
        ) from error


def _missing(env: Maker, error: Exception) -> errors.MissingDependencyError:
    return errors.MissingDependencyError(f"the environment {_name(env)!r}: {error}")


def _name(env: Maker) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", repr(env))
