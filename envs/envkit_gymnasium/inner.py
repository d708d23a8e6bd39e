"""The inner environment: create it, read its rules, and turn its exceptions into faults."""

import inspect
import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, cast

import gymnasium

from envkit import errors, ranges
from envkit_gymnasium.names import PACKAGES, class_key, module_of
from envkit_gymnasium.sentences import holds_picture

GymEnv = gymnasium.Env[Any, Any]
Maker = str | Callable[..., GymEnv]
REPEATABLE: Final = frozenset({"ale_py", "envkit_gymnasium", "highway_env", "minigrid", "vizdoom"})
"""Packages whose environments repeat byte for byte with the same seed and actions: contract tests
play them twice."""
_HINTS: Final = {
    "NoSuchDisplayException": ". It draws with OpenGL: set PYGLET_HEADLESS=true before the start "
    "of Python, or use xvfb-run"
}
"""What to do about an exception, by its name."""
_SHOWN: Final = 300
_LEFT_OUT: Final = frozenset(
    {
        "arguments",
        "credits",
        "information",
        "integration timestep",
        "observation space",
        "references",
        "registered configurations",
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
    """The text rendering of Gymnasium's own environments; else the observation if it holds an
    image; else the image that it renders; else the observation in words. What is installed does not
    matter: a missing renderer is an error."""
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
            _register(env)
            made = cast(Any, gymnasium.make)(env, disable_env_checker=True, **options)
    except errors.EnvkitError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(env, error) from error
    except gymnasium.error.UnregisteredEnv as error:
        raise errors.ConfigurationError(f"Gymnasium has no {_name(env)!r}: {error}") from error
    except Exception as error:  # a foreign constructor may raise anything
        hint = _HINTS.get(type(error).__name__, "")
        raise errors.ConfigurationError(
            f"the environment {_name(env)!r} cannot be made with {options!r:.200}: "
            f"{error!r:.300}{hint}"
        ) from error
    if not isinstance(made, gymnasium.Env):
        raise errors.ConfigurationError(
            f"env must make a gymnasium.Env, got {type(made).__name__} from {_name(env)!r}"
        )
    inner = cast(GymEnv, made)
    if _package(inner) == "highway_env" and os.environ.get("SDL_VIDEODRIVER") == "dummy":
        raise errors.ConfigurationError(
            f"{_name(env)!r} would draw black pictures: highway-env draws nothing where the "
            "variable SDL_VIDEODRIVER is 'dummy'. It needs no screen either way: unset it"
        )
    return inner


def _register(env_id: str) -> None:
    """Import the package of an id, if it is a known one.

    Raises:
        MissingDependencyError: It is not installed.
        ConfigurationError: It does not work here.
    """
    module = module_of(env_id)
    if module is None or env_id in gymnasium.registry:
        return
    package = PACKAGES[module][0]
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise errors.MissingDependencyError(
            f"the environment {env_id!r} needs the package {package}: pip install {package}"
        ) from error
    except Exception as error:  # foreign code may raise anything
        hint = _HINTS.get(type(error).__name__, "")
        raise errors.ConfigurationError(
            f"the package {package} of {env_id!r} does not work here: {error!r:.300}{hint}"
        ) from error


def explain_unknown(env_id: str) -> None:
    """Say why the collection does not list an id of a known package.

    Raises:
        MissingDependencyError: The package is not installed.
        ConfigurationError: The package does not work here, or the id has a namespace of its own.
    """
    _register(env_id)
    if "/" in env_id and env_id in gymnasium.registry:
        raise errors.ConfigurationError(
            f"an id with its own namespace is an argument: play {env_id!r} as "
            f"envkit.make('gymnasium-v0', env={env_id!r})"
        )


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
    is_own = class_key(probe.unwrapped) is not None
    has_picture = holds_picture(probe.observation_space)
    probe.close()
    if view == View.AUTO:
        if View.ANSI in modes and (is_own or View.RGB_ARRAY not in modes):
            return View.ANSI
        return View.RGB_ARRAY if View.RGB_ARRAY in modes and not has_picture else View.STATE
    if view not in modes:
        raise errors.ConfigurationError(
            f"the environment {_name(env)!r} does not render {view!r}; it renders {modes}. "
            "view='state' shows its observation"
        )
    return View(view)


def is_known_repeatable(inner: GymEnv) -> bool:
    """Whether a checked package ships the environment and does not mark it nondeterministic."""
    spec = inner.spec
    is_checked = _package(inner) in REPEATABLE or class_key(inner.unwrapped) is not None
    return is_checked and spec is not None and not spec.nondeterministic


def stable(reset_info: Mapping[str, Any], inner: GymEnv) -> Mapping[str, Any]:
    """Return the info of a reset without what does not follow from the seed.

    highway-env reports an action that it draws from a new, unseeded space at every reset.
    """
    unstable = {"highway_env": "action"}.get(_package(inner), "")
    return {key: value for key, value in reset_info.items() if key != unstable}


def rules_of(inner: GymEnv, settings: Mapping[str, object], *, has_names: bool) -> str:
    """Return the class docstring without code and API sections, and the settings of this game.

    The docstring describes the defaults, which the settings change: a lake that is not slippery.
    Empty if the class has no docstring.

    Args:
        inner: The inner environment.
        settings: Its arguments.
        has_names: Whether the actions are described by names; the docstring's own section on them
            is then left out.
    """
    text = inspect.cleandoc(type(inner.unwrapped).__doc__ or "")
    if not text or type(inner.unwrapped).__doc__ == gymnasium.Env.__doc__:
        return ""
    text = _CODE.sub("", text)
    headings = list(_HEADING.finditer(text))
    starts = [*(heading.start() for heading in headings), len(text)]
    kept = [text[: starts[0]]]
    for heading, end in zip(headings, starts[1:], strict=True):
        title = heading.group(1).casefold()
        if title not in _LEFT_OUT and not (has_names and title == "action space"):
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


def _package(inner: GymEnv) -> str:
    return type(inner.unwrapped).__module__.partition(".")[0]


def _missing(env: Maker, error: Exception) -> errors.MissingDependencyError:
    return errors.MissingDependencyError(f"the environment {_name(env)!r}: {error}")


def _name(env: Maker) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", repr(env))
