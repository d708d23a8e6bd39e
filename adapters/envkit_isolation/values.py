"""JSON forms of the observations, messages, outcomes and errors of workers.

Outgoing values are checked against the environment contract. Incoming values are checked as
untrusted data. envkit's errors keep their type and any other error becomes an `EnvFault`, so a
worker cannot make its caller build any other object.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from envkit import errors
from envkit.errors import (
    ContractError,
    EnvFault,
    EnvkitError,
    FaultKind,
    message_of,
    raise_missing,
    shown,
    traceback_of,
)
from envkit.images import Image
from envkit.success import with_verdict
from envkit.turns import Observation

_KEPT: Final[dict[str, type[EnvkitError]]] = {
    kind.__name__: kind
    for kind in (
        errors.ConfigurationError,
        errors.UnknownNameError,
        errors.MissingDependencyError,
        errors.ContractError,
        errors.EpisodeStateError,
        errors.TemplateError,
        errors.DatasetError,
        errors.ImageError,
        errors.StorageError,
    )
}
_MESSAGE_CHARACTERS: Final = 8000
_TRACEBACK_CHARACTERS: Final = 8000


def observation_of(
    value: object, source: str, refusal: type[Exception] = ContractError
) -> Observation:
    """Check that a value is an observation, and return it.

    Args:
        value: The value to check.
        source: Where it comes from, such as "MyEnv.step".
        refusal: Raised if it is not one.
    """
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if fields.keys() == {"text", "images", "role"} and isinstance(fields["images"], list | tuple):
        text, role = fields["text"], fields["role"]
        images = tuple(cast("Sequence[Any]", fields["images"]))
        are_images = all(isinstance(image, Image) for image in images)
        if are_images and isinstance(text, str) and role in ("user", "tool"):
            return {"text": text, "images": images, "role": role}
    raise refusal(
        f"{source} must return an observation of text (str), images (envkit.Image) and role "
        f"('user' or 'tool'), got {shown(value)}"
    )


def reset_out(value: object, source: str) -> dict[str, Any]:
    """Convert the result of `reset` to frame data.

    Raises:
        ContractError: It is not an observation and a mapping, or its success term is not a verdict.
    """
    values: list[Any] = list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else []
    if len(values) != 2 or not isinstance(values[1], Mapping):
        raise ContractError(
            f"{source} must return an observation and a mapping, got {shown(value)}"
        )
    info = with_verdict(dict(cast("Mapping[str, Any]", values[1])))
    return {"observation": observation_of(values[0], source), "info": info}


def error_out(error: BaseException, where: str) -> dict[str, Any]:
    """Return an exception as JSON data.

    Args:
        error: Whatever the environment raised, including SystemExit and KeyboardInterrupt.
        where: What was called, such as "MyEnv.step".
    """
    try:
        raise_missing(error)
    except errors.MissingDependencyError as missing:
        error = missing  # a cause does not cross the process boundary
    text, retryable = message_of(error)[:_MESSAGE_CHARACTERS], None
    name = next((kind.__name__ for kind in type(error).__mro__ if kind in _KEPT.values()), None)
    if name is None:
        name = "EnvFault"
        if not isinstance(error, EnvFault):
            text = f"{where} failed: {type(error).__name__}: {text}"
    if isinstance(error, EnvFault):
        retryable = error.retryable
    return {
        "type": name,
        "message": text,
        "kind": _kind_of(error).value,
        "retryable": retryable,
        "traceback": traceback_of(error)[-_TRACEBACK_CHARACTERS:],
    }


def error_in(data: Any) -> EnvkitError:  # noqa: ANN401  # from a process that may send anything
    """Build the exception that a worker describes; only envkit's errors are built."""
    match data:
        case {"type": str(name), "message": str(message), "kind": str(kind), **rest}:
            pass
        case _:
            return EnvFault(f"an error that cannot be read: {shown(data)}", kind=FaultKind.CRASHED)
    if name in _KEPT:
        error: EnvkitError = _KEPT[name](message)
    else:
        retryable = rest.get("retryable")
        error = EnvFault(
            message,
            kind=FaultKind(kind if kind in set(FaultKind) else FaultKind.PERMANENT),
            retryable=retryable if isinstance(retryable, bool) else None,
        )
    if isinstance(rest.get("traceback"), str):
        error.add_note("in the environment's process:\n" + rest["traceback"])
    return error


def _kind_of(error: BaseException) -> FaultKind:
    if isinstance(error, EnvFault):
        return FaultKind(error.kind)
    if isinstance(error, TimeoutError):
        return FaultKind.TIMEOUT
    if isinstance(error, OSError):
        return FaultKind.TRANSIENT
    return FaultKind.CRASHED if isinstance(error, MemoryError) else FaultKind.PERMANENT
