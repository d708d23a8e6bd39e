"""Load an environment of the verifiers library without what it does to the process.

Two things of the library would break a rollout. Its constructor replaces the handlers of SIGINT and
SIGTERM, and so fails on any thread but the main one; the handlers stay as they are here. Its
rubrics catch whatever a reward function raises and score 0; functions are wrapped here, so that the
failure is known. `MathRubric` does so by itself, and only its log says so (verifiers/rubrics/
math_rubric.py): its process pool broke, or its own time was up, as happens on a busy machine.
"""

import functools
import importlib
import inspect
import json
import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

from envkit.errors import ConfigurationError, MissingDependencyError, message_of

_lock: Final = threading.RLock()
_loaded: Final[dict[str, Any]] = {}
_SWALLOWED: Final = (
    "Math verification failed",
    "Math verification hit hard timeout",
    "Math verification exceeded time limit",
)
"""How the log lines of a rubric begin that scored 0 because it could not score."""
scores: Final[ContextVar[dict[object, float | Exception] | None]] = ContextVar(
    "scores", default=None
)
"""What the reward functions of the episode that is being scored returned or raised, and under
another key what a rubric only logged."""


def library() -> Any:  # noqa: ANN401  # another project's module
    """Return the module `verifiers`.

    Raises:
        MissingDependencyError: It is not installed, or is a release without the classes.
    """
    try:
        found: Any = importlib.import_module("verifiers")
        importlib.import_module("verifiers.clients")
        # Older releases lack the second name, and 0.4 lacks both.
        is_known = hasattr(found, "MultiTurnEnv") and hasattr(found.Rubric, "has_group_rewards")
    except ImportError as error:
        raise _missing_error() from error
    if not is_known:
        raise _missing_error()
    return found


def load(environment: str, arguments: Mapping[str, Any], max_turns: int | None) -> Any:  # noqa: ANN401
    """Return the library's environment, one object for equal arguments: it keeps no episode.

    Args:
        environment: A name that `verifiers.load_environment` takes.
        arguments: For the environment's own `load_environment`; JSON data.
        max_turns: Replies where the environment states no limit; None keeps it unlimited.

    Raises:
        MissingDependencyError: The library is not installed.
        ConfigurationError: The environment cannot be loaded, or scores groups together.
    """
    key = json.dumps([environment, dict(arguments), max_turns], sort_keys=True, default=repr)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(environment, arguments, max_turns)
        return _loaded[key]


def rubrics_of(env: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield the rubrics that score an environment's episodes, those inside groups too."""
    for inner in getattr(env, "envs", ()):
        yield from rubrics_of(inner)
    waiting = [env.rubric]
    while waiting:
        rubric = waiting.pop()
        waiting += getattr(rubric, "rubrics", ())
        yield rubric


def _missing_error() -> MissingDependencyError:
    return MissingDependencyError.for_extra(
        "an environment of verifiers", "verifiers>=0.1.14,<0.2", "verifiers"
    )


def _load(environment: str, arguments: Mapping[str, Any], max_turns: int | None) -> Any:  # noqa: ANN401
    vf = library()
    with _signals_left_alone():
        try:
            env: Any = vf.load_environment(environment, **arguments)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(
                f"verifiers cannot load the environment {environment!r}: {_reason(error)}"
            ) from error
    is_group = hasattr(env, "envs")
    if not isinstance(env, vf.MultiTurnEnv) and not is_group:
        raise ConfigurationError(
            f"load_environment of {environment!r} must return a verifiers.MultiTurnEnv, "
            f"got {type(env).__name__}"
        )
    if env.rubric.has_group_rewards:
        raise ConfigurationError(
            f"the rubric of {environment!r} scores the episodes of a group together, and envkit "
            "scores each by itself; use its other reward functions"
        )
    for one in env.envs if is_group else [env]:
        if max_turns is not None and one.max_turns <= 0:
            one.max_turns = max_turns
    for rubric in rubrics_of(env):
        rubric.funcs[:] = [_observed(function) for function in rubric.funcs]
        _listen(rubric.logger)
    return env


def _reason(error: BaseException) -> str:
    """Return the first cause: the library wraps what an environment raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {message_of(error)}"


@contextmanager
def _signals_left_alone() -> Generator[None]:
    module: Any = importlib.import_module("verifiers.envs.environment")
    before = module.signal
    module.signal = SimpleNamespace(
        signal=_ignore,
        SIGINT=signal.SIGINT,
        SIGTERM=signal.SIGTERM,
        default_int_handler=signal.default_int_handler,
    )
    try:
        yield
    finally:
        module.signal = before


def _ignore(number: int, handler: object) -> None:
    del number, handler


def _listen(logger: logging.Logger) -> None:
    """Note what a rubric says of a failure that it scores 0; print no more than before."""
    if any(isinstance(one, _FailureFilter) for one in logger.filters):
        return
    logger.addFilter(_FailureFilter(logger.getEffectiveLevel()))
    logger.setLevel(logging.DEBUG)


class _FailureFilter(logging.Filter):
    """Reads the lines of one logger in the context of the episode that is being scored."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def filter(self, record: logging.LogRecord) -> bool:
        """Note a failure, and drop lines that the logger's level would have dropped."""
        noted, text = scores.get(), record.getMessage()
        if noted is not None and text.startswith(_SWALLOWED):
            noted[_listen] = RuntimeError(text)
        return record.levelno >= self._least


def _observed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function: its result or error is noted in `scores` too."""

    @functools.wraps(function)
    async def note(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        noted = scores.get()
        try:
            value: Any = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            result = float(value)
        except Exception as error:
            if noted is not None:
                noted[note] = error
            raise
        if noted is not None:
            noted[note] = result
        return result

    return note
