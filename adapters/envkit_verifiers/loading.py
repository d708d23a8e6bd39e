"""Load an environment of the verifiers library without its side effects on the process.

Two side effects would break a rollout. The constructor replaces the handlers of SIGINT and SIGTERM,
which fails outside the main thread; this module keeps the handlers. Rubrics catch exceptions of
reward functions and score 0; this module wraps the functions to detect failures. `MathRubric` also
scores its own failures 0, and only its log says so (verifiers/rubrics/ math_rubric.py): its process
pool broke, or it timed out, as happens on a busy machine.
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
"""Prefixes of log lines of a rubric that scored 0 because it failed."""
scores: Final[ContextVar[dict[object, float | Exception] | None]] = ContextVar(
    "scores", default=None
)
"""Results or exceptions of the current episode's reward functions, and, under another key, failures
that a rubric only logged."""


def library() -> Any:  # noqa: ANN401  # another project's module
    """Return the module `verifiers`.

    Raises:
        MissingDependencyError: It is not installed, or the release lacks the classes.
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
    """Return the library's environment, cached by arguments: it holds no episode state.

    Args:
        environment: A name for `verifiers.load_environment`.
        arguments: Arguments of the environment's own `load_environment`, as JSON data.
        max_turns: Maximum replies if the environment has no limit; None keeps it unlimited.

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
    """Yield the rubrics that score an environment's episodes, including those in rubric groups."""
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
            "scores each separately; use its other reward functions"
        )
    for one in env.envs if is_group else [env]:
        if max_turns is not None and one.max_turns <= 0:
            one.max_turns = max_turns
    for rubric in rubrics_of(env):
        rubric.funcs[:] = [_observed(function) for function in rubric.funcs]
        _listen(rubric.logger)
    return env


def _reason(error: BaseException) -> str:
    """Return the root cause: the library wraps exceptions of environments."""
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
    """Record a rubric's log of a failure that it scores 0, without printing more than before."""
    if any(isinstance(one, _FailureFilter) for one in logger.filters):
        return
    logger.addFilter(_FailureFilter(logger.getEffectiveLevel()))
    logger.setLevel(logging.DEBUG)


class _FailureFilter(logging.Filter):
    """Reads one logger's records in the context of the episode being scored."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self._least = least

    def filter(self, record: logging.LogRecord) -> bool:
        """Record a failure, and drop records that the logger's level would have dropped."""
        noted, text = scores.get(), record.getMessage()
        if noted is not None and text.startswith(_SWALLOWED):
            noted[_listen] = RuntimeError(text)
        return record.levelno >= self._least


def _observed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function to record its result or error in `scores`."""

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
