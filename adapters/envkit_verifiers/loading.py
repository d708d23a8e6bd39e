"""Load an environment of the verifiers library, ready for envkit's policy.

The library plays an agent in a sandbox of its vendor, with a coding harness, unless an environment
says otherwise. Where neither the environment nor the arguments do, this module chooses the local
machine and a chat loop in this process.
"""

import importlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import ConfigurationError, MissingDependencyError, message_of

_HARNESS: Final = "envkit-verifiers"
_CHAT: Final = "null"
_UNCHOSEN: Final = "bash"
"""The library's harness for environments that name none."""
_lock: Final = threading.RLock()
_loaded: Final[dict[str, "Loaded"]] = {}
failures: Final[ContextVar[list[Exception] | None]] = ContextVar("failures", default=None)
"""What the task's own scoring raised in the current episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An environment of the library; it holds no episode state."""

    env: Any
    seat: str
    """Name of the agent that the policy plays."""
    max_turns: int
    task_type: Any
    """The environment's class of tasks, which notes in `failures` what its scoring raises."""
    task_config: Any

    def task(self, row: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return the library's task of a row.

        Raises:
            ValueError: The row is not one of the environment's.
        """
        return self.task_type(self.task_type.data_type().model_validate(row), self.task_config)


def library() -> Any:  # noqa: ANN401  # another project's module
    """Return the module `verifiers.v1`.

    Raises:
        MissingDependencyError: It is not installed, or the release lacks the classes.
    """
    try:
        found: Any = importlib.import_module("verifiers.v1")
        importlib.import_module("verifiers.v1.configs.select")  # absent before 0.4
    except ImportError as error:
        raise MissingDependencyError.for_extra(
            "an environment of verifiers", "verifiers>=0.4,<0.5", "verifiers"
        ) from error
    return found


def load(environment: str, arguments: Mapping[str, Any], max_turns: int) -> Loaded:
    """Return an environment, cached by arguments.

    Args:
        environment: Name of the library's taskset.
        arguments: The library's `[env]` block, as JSON data.
        max_turns: Maximum replies if neither names a limit.

    Raises:
        MissingDependencyError: The library is not installed.
        ConfigurationError: The environment cannot be loaded, or needs several policies.
    """
    key = json.dumps([environment, dict(arguments), max_turns], sort_keys=True, default=repr)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(environment, arguments, max_turns)
        return _loaded[key]


def tasks_of(loaded: Loaded) -> Iterator[Any]:
    """Yield the environment's tasks.

    Raises:
        ConfigurationError: They cannot be loaded.
    """
    try:
        yield from loaded.env.taskset
    except Exception as error:
        raise ConfigurationError(
            f"verifiers cannot load the tasks of {loaded.env.taskset.config.id!r}: {_reason(error)}"
        ) from error


def _load(environment: str, arguments: Mapping[str, Any], max_turns: int) -> Loaded:
    vf = library()
    taskset: Any = arguments.get("taskset", {})
    if not isinstance(taskset, Mapping) or "id" in taskset:
        raise ConfigurationError(
            "arguments must have settings of the tasks in 'taskset', an object without 'id', got "
            f"{taskset!r:.200}"
        )
    given = {**arguments, "taskset": {**taskset, "id": environment}}
    try:
        config: Any = vf.resolve_env_config(given)
        seat, config = _seated(config, max_turns)
        env: Any = vf.load_environment(config)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"verifiers cannot load the environment {environment!r}: {_reason(error)}"
        ) from error
    env.finalize = _noted(env.finalize)
    return Loaded(
        env=env,
        seat=seat,
        max_turns=getattr(config, seat).max_turns,
        task_type=_noting(type(env.taskset).task_type()),
        task_config=env.taskset.config.task,
    )


def _seated(config: Any, max_turns: int) -> tuple[str, Any]:  # noqa: ANN401
    """Return the policy's seat, and the configuration with what was left open chosen.

    Raises:
        ConfigurationError: There is not exactly one agent without a model of its own.
    """
    specs: dict[str, Any] = importlib.import_module(
        "verifiers.v1.configs.agent"
    ).agent_config_fields(config)
    seats = [name for name, spec in specs.items() if spec.client is None]
    if len(seats) != 1:
        raise ConfigurationError(
            "envkit's policy plays one agent of an environment; give the others a 'client' and a "
            f"'model' in arguments=, got {seats} without one of {sorted(specs)}"
        )
    seat = seats[0]
    chosen = {name: _local(spec, config.taskset.id) for name, spec in specs.items()}
    if chosen[seat].max_turns is None:
        chosen[seat] = chosen[seat].model_copy(update={"max_turns": max_turns})
    server = importlib.import_module("verifiers.v1.interception").InterceptionServerConfig()
    return seat, config.model_copy(update={**chosen, "interception": server})


def _local(spec: Any, taskset: str) -> Any:  # noqa: ANN401
    """Return an agent that runs on this machine unless a place or a program was chosen."""
    vf = library()
    update: dict[str, Any] = {}
    if "runtime" not in spec.model_fields_set:
        update["runtime"] = vf.SubprocessConfig()
    is_local = isinstance(update.get("runtime", spec.runtime), vf.SubprocessConfig)
    own = vf.default_harness_id(taskset)
    harness = spec.harness.id if spec.harness is not None else _CHAT if own == _UNCHOSEN else own
    if harness == _CHAT:
        kept = {} if spec.harness is None else spec.harness.model_dump(exclude_unset=True)
        name = _HARNESS if is_local else _CHAT  # a loop in this process cannot reach into a box
        update["harness"] = vf.harness_config_type(name)(**{**kept, "id": name})
    return spec.model_copy(update=update)


def _noting(base: Any) -> Any:  # noqa: ANN401
    """Return a subclass of a task class that notes what its scoring raises."""

    async def score(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return await _noted(super(noting, self).score)(*args, **kwargs)

    async def finalize(self: Any, trace: Any, runtime: Any) -> Any:  # noqa: ANN401
        invoke: Any = importlib.import_module("verifiers.v1.utils.decorators").invoke
        return await _noted(invoke)(
            super(noting, self).finalize, {"trace": trace, "runtime": runtime}
        )

    names = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    noting: Any = type(base.__name__, (base,), {**names, "score": score, "finalize": finalize})
    return noting


def _noted(function: Any) -> Any:  # noqa: ANN401
    async def note(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            noted = failures.get()
            if noted is not None:
                noted.append(error)
            raise

    return note


def _reason(error: BaseException) -> str:
    """Return the root cause: the library wraps exceptions of environments."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {message_of(error)}"
