"""The boundary between the rollout and foreign code: checks return values, converts exceptions.

Any exception of an environment becomes an `EnvFault` here, and every return value is checked here,
once. A misbehaving episode therefore ends alone and never ends a run.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from envkit.env import Capabilities, Env, Observation, Reset, Step
from envkit.errors import (
    NO_THREAD,
    ConfigurationError,
    ContractError,
    EnvFault,
    FaultKind,
    StorageError,
    describe,
    shown,
)
from envkit.images import Image
from envkit.messages import Message, check_message, images_of, text_of
from envkit.success import checked_threshold, finite, with_own_reward, with_verdict
from envkit.tasks import Task
from envkit.tools import ToolSpec
from envkit.trajectory.plain import check_plain

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOutcome:
    """A checked reset, with everything else that an episode reads from its environment."""

    observation: Observation
    info: dict[str, Any]
    message: Message
    """The observation as `format_observation` returned it."""
    hash: str
    """Hash of the observation; equal for the members of a group."""
    task: Task
    system_prompt: str | None
    tools: tuple[ToolSpec, ...]
    history: str | dict[str, Any] | None
    """The environment's own history policy; None appends everything."""
    reward_threshold: float | None
    """Return from which the episode is solved; None if the environment declares none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """A checked step."""

    step: Step
    message: Message
    """The observation as `format_observation` returned it."""
    hash: str
    """Hash of the observation, the reward and both flags."""


def is_own_cancellation(error: BaseException) -> bool:
    """Return whether our own caller cancelled the task or closes its coroutine.

    Foreign code may raise the same exceptions itself, which is an ordinary failure.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no running loop: the coroutine is being closed
        return True
    if isinstance(error, GeneratorExit):
        return task is None
    is_cancelled = task is not None and task.cancelling() > 0
    return isinstance(error, asyncio.CancelledError) and is_cancelled


def as_env_fault(error: BaseException, where: str) -> EnvFault:
    """Return an exception of foreign code as a fault; a valid `EnvFault` is returned unchanged."""
    if isinstance(error, EnvFault) and isinstance(cast(object, error.kind), FaultKind):
        return error
    fault = EnvFault(f"{where} failed: {describe(error)}", kind=_kind_of(error))
    fault.__cause__ = error
    return fault


def _kind_of(error: BaseException) -> FaultKind:
    if isinstance(error, TimeoutError):
        return FaultKind.TIMEOUT
    if isinstance(error, OSError) and not isinstance(error, StorageError):
        return FaultKind.TRANSIENT
    if isinstance(error, RuntimeError) and str(error).startswith(NO_THREAD):
        return FaultKind.TRANSIENT
    return FaultKind.PERMANENT


def guarded(function: Callable[[], T], where: str) -> Callable[[], T]:
    """Wrap a function so that it raises only `EnvFault`."""

    def call() -> T:
        try:
            return function()
        # SystemExit or CancelledError from a worker thread would otherwise end the event loop, or
        # look like a cancellation of the caller.
        except BaseException as error:  # foreign code may raise anything
            fault = as_env_fault(error, where)
            if fault is error:
                raise  # with its own cause
            raise fault from error

    return call


def observation_hash(observation: Observation) -> str:
    """Return a hash of what the model sees."""
    return _digest(observation, "")


def step_hash(step: Step) -> str:
    """Return a hash of a step: observation, reward and both flags."""
    return _digest(step.observation, f"{step.reward!r}{step.terminated}{step.truncated}")


def reset_outcome(value: Any, env: Env, outer: Any) -> ResetOutcome:  # noqa: ANN401  # foreign
    """Check the result of `reset` and read everything else that the episode needs.

    Args:
        value: The result of `reset`.
        env: The environment itself.
        outer: The environment in its wrappers.

    Raises:
        ContractError: A value violates the contract.
    """
    name = type(env).__name__
    parts = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
    if len(parts) != 2:
        raise ContractError(f"{name}.reset must return (observation, info), got {shown(value)}")
    observation, info = parts
    reset = Reset(_observation(observation, f"{name}.reset"), _info(info, f"{name}.reset"))
    return ResetOutcome(
        observation=reset.observation,
        info=reset.info,
        message=formatted(reset.observation, env, outer),
        hash=observation_hash(reset.observation),
        task=_task(env),
        system_prompt=_declared(env, "system_prompt", str | None, "a str or None"),
        tools=_tools(env),
        history=_history(env),
        reward_threshold=_threshold(env),
    )


def step_outcome(value: Any, env: Env, outer: Any) -> StepOutcome:  # noqa: ANN401  # foreign data
    """Check the result of `step`.

    Args:
        value: The result of `step`.
        env: The environment itself.
        outer: The environment in its wrappers.

    Raises:
        ContractError: A value violates the contract.
    """
    step = checked_step(value, type(env).__name__)
    if outer is not env:
        step = step._replace(info=with_own_reward(step.info, step.reward, env.own_reward))
    return StepOutcome(
        step=step, message=formatted(step.observation, env, outer), hash=step_hash(step)
    )


def checked_step(value: Any, name: str) -> Step:  # noqa: ANN401  # foreign data
    """Return the result of `step` with plain Python numbers.

    Raises:
        ContractError: The value is not a five-tuple, the reward is not a finite number (it would
            poison a whole group's advantages), or a flag is not a bool.
    """
    parts = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
    if len(parts) != 5:
        raise ContractError(
            f"{name}.step must return (observation, reward, terminated, truncated, info), "
            f"got {shown(value)}"
        )
    observation, reward, terminated, truncated, info = parts
    if not (_is_flag(terminated) and _is_flag(truncated)):
        raise ContractError(
            f"{name}.step must return terminated and truncated as bool, "
            f"got {shown(terminated)} and {shown(truncated)}"
        )
    return Step(
        _observation(observation, f"{name}.step"),
        _reward(reward, f"{name}.step"),
        bool(terminated),
        bool(truncated),
        _info(info, f"{name}.step"),
    )


def checked_capabilities(env: Env) -> Capabilities:
    """Return the environment's declared capabilities.

    Raises:
        ContractError: It is not a `Capabilities`.
    """
    return _declared(env, "capabilities", Capabilities, "envkit.Capabilities")


def formatted(observation: Observation, env: Env, outer: Any) -> Message:  # noqa: ANN401  # wrappers
    """Return an observation's chat message, as the outermost wrapper that defines it formats it.

    Raises:
        ContractError: It is not a chat message.
    """
    entry: Message = hook(env, outer, "format_observation")(observation)
    source = f"{type(env).__name__}.format_observation"
    check_message(entry, source=source)
    check_plain(entry, source)
    return entry


def observation_in(entry: Message) -> Observation:
    """Return the observation of a recorded message, for an environment that may shorten it."""
    role: Any = entry["role"]  # "user" or "tool"
    return {"text": text_of(entry), "images": images_of([entry]), "role": role}


def hook(env: Env, outer: Any, name: str) -> Any:  # noqa: ANN401  # a method of either
    """Return a method of the environment, or of the outermost wrapper that defines it."""
    return getattr(env, name) if outer is env else outer.get_wrapper_attr(name)


def warmed(value: T) -> T:
    """Hash and encode the images of a new observation on this thread instead of the event loop.

    The record needs both. Images that arrived encoded keep their bytes.
    """
    foreign: Any = value
    try:
        images: Any = foreign[0]["images"]
    except (TypeError, KeyError, IndexError):
        return value  # the later check reports the problem
    for image in _images(images) or ():
        _ = image.sha256, image.encoded(image.file_format)
    return value


def _digest(observation: Observation, outcome: str) -> str:
    text = observation["text"]
    images = "".join([image.sha256 for image in observation["images"]])
    head = f"{len(text)}:{text}{observation['role']}:{images}:{outcome}"
    return hashlib.sha256(head.encode("utf-8", "surrogatepass")).hexdigest()


def _observation(value: Any, source: str) -> Observation:  # noqa: ANN401  # foreign data
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if fields.keys() != {"text", "images", "role"}:
        raise ContractError(
            f"{source} must return an observation with exactly the keys text, images and role, "
            f"got {shown(value)}"
        )
    text, role, images = fields["text"], fields["role"], _images(fields["images"])
    if not isinstance(text, str) or role not in ("user", "tool") or images is None:
        raise ContractError(
            f"{source} must return an observation of a str text, a tuple of envkit.Image and the "
            f"role 'user' or 'tool', got {shown(value)}"
        )
    return {"text": text, "images": images, "role": role}


def _images(value: Any) -> tuple[Image, ...] | None:  # noqa: ANN401  # foreign data
    """Return images as a tuple, or None if the value is something else."""
    if type(value) is tuple and not value:
        return ()
    if not isinstance(value, (tuple, list)):
        return None
    items = tuple(cast("list[Any]", value))
    return items if all(isinstance(item, Image) for item in items) else None


def _is_flag(value: object) -> bool:
    return type(value) is bool or isinstance(value, np.bool_)


def _reward(value: Any, source: str) -> float:  # noqa: ANN401  # foreign data
    reward = finite(value)
    if reward is not None:
        return reward
    raise ContractError(f"{source} must return a finite number as reward, got {shown(value)}")


def _info(value: Any, source: str) -> dict[str, Any]:  # noqa: ANN401  # foreign data
    """Check an environment's `info`, which the record must be able to store, and return it."""
    if not isinstance(value, Mapping):
        raise ContractError(f"{source} must return info as a mapping, got {shown(value)}")
    info = with_verdict(dict(cast("Mapping[str, Any]", value)))
    _check_plain(info, f"{source}: info")
    return info


def _check_plain(value: Any, where: str) -> None:  # noqa: ANN401  # foreign data
    try:
        check_plain(value, where)
    except StorageError as error:
        raise ContractError(str(error)) from error


def _declared(env: Env, name: str, kinds: Any, rule: str) -> Any:  # noqa: ANN401  # foreign data
    """Return an attribute of the environment.

    Raises:
        ContractError: It is of none of the kinds, which the rule names.
    """
    value: Any = getattr(env, name)
    if not isinstance(value, kinds):
        raise ContractError(f"{type(env).__name__}.{name} must be {rule}, got {shown(value)}")
    return value


def _task(env: Env) -> Task:
    found: Task = dict(_declared(env, "task", Mapping, "a mapping"))
    _check_plain(found, f"{type(env).__name__}.task")
    return found


def _history(env: Env) -> str | dict[str, Any] | None:
    rule = "a name, a mapping or None"
    setting = _declared(env, "history_policy", str | Mapping | None, rule)
    return dict(cast("Mapping[str, Any]", setting)) if isinstance(setting, Mapping) else setting


def _threshold(env: Env) -> float | None:
    try:
        return checked_threshold(env.reward_threshold)
    except ConfigurationError as error:
        raise ContractError(f"{type(env).__name__}: {error}") from error


def _tools(env: Env) -> tuple[ToolSpec, ...]:
    tools: Any = env.tools
    items = tuple(cast("list[Any]", tools)) if isinstance(tools, (tuple, list)) else (None,)
    if not all(isinstance(item, ToolSpec) for item in items):
        raise ContractError(
            f"{type(env).__name__}.tools must be a tuple of envkit.ToolSpec, got {shown(tools)}"
        )
    return cast("tuple[ToolSpec, ...]", items)
