"""All errors that envkit raises, and typed infrastructure faults.

The tree::

    EnvkitError
    ├── ConfigurationError (ValueError)        an argument or a combination of arguments is wrong
    │   ├── UnknownNameError (KeyError)        a name that is not registered; suggests the nearest
    │   └── MissingDependencyError (ImportError)  an extra is not installed; prints the install line
    │       └── RefusedError                   the machine refuses what an installed part needs
    ├── ContractError (TypeError)              an environment, engine or plugin broke its contract
    ├── EpisodeStateError (RuntimeError)       step before reset, or after the episode's end
    ├── TemplateError (ValueError)             a chat template cannot express the messages
    ├── DatasetError (ValueError)              a data file has the wrong columns or an invalid row
    ├── ImageError (ValueError)                bytes that are not a readable image, or are too large
    ├── ServiceError (RuntimeError)            a port, a server or an account cannot be used
    ├── RunFailedError (RuntimeError)          the episodes of a run all fail in the same way
    ├── StorageError (OSError)                 a trajectory file cannot be written or read
    └── Fault (RuntimeError)                   infrastructure failed; never a reward
        ├── EnvFault                           an environment's backend, its process or its deadline
        ├── EngineFault                        the engine or the connection to it
        └── LedgerFault                        the token record would no longer be exact
            └── HistoryFault                   a history policy failed

A bad reply from a model is not an error: it becomes an observation that describes the problem, and
it is counted.
"""

import difflib
import errno
import os
import reprlib
import sys
import traceback
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, cast

_MAX_NAMES: Final = 20
_NEAR_NAMES: Final = 5
_SHOWN_CHARACTERS: Final = 200
_CAUSES: Final = 16
"""Causes that are followed; foreign code can chain them in a circle."""
_brief: Final = reprlib.Repr()
_brief.maxstring = _brief.maxother = _SHOWN_CHARACTERS


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion with the nearest known name; empty if none is close.

    Args:
        name: The requested name.
        known: All valid names.
    """
    found = nearest(name, known)
    return "" if found is None else f" Did you mean {found!r}?"


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.4) -> str | None:
    """Return the closest known name, or None if no similarity reaches the cutoff, 0 to 1."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def describe(error: BaseException) -> str:
    """Return the type and the message of an exception, even if its `__str__` raises."""
    return f"{type_name(error)}: {message_of(error)}"


def type_name(value: object) -> str:
    """Return the name of a foreign value's type, even if its metaclass hides it."""
    return type.__dict__["__name__"].__get__(type(value))


def message_of(error: BaseException) -> str:
    """Return the message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  # foreign code
        return "(its __str__ raises)"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as text, even if its `__str__` raises."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  # foreign code
        return "".join(traceback.format_tb(error.__traceback__)) + describe(error)


def shown(value: Any) -> str:  # noqa: ANN401  # foreign data
    """Return the type of a foreign value and the start of its repr, even if `__repr__` raises.

    Long strings and collections are truncated before they are formatted.
    """
    name = type_name(value)
    try:
        return f"{name}: {_brief.repr(value):.{_SHOWN_CHARACTERS}}"
    except BaseException:  # noqa: BLE001  # foreign code, or an integer too long to print
        return f"{name} (its __repr__ raises)"


NO_THREAD: Final = "can't start new thread"
"""What `Thread.start` says when the system refuses one (CPython, Modules/_threadmodule.c)."""
SHORTAGES: Final = (
    NO_THREAD,
    *map(os.strerror, (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)),
)
"""What the system says when it refuses a thread, a process, a descriptor or memory. Programs that
an environment starts report it as text."""


class FaultKind(StrEnum):
    """The kind of failure, which determines how a retry policy reacts."""

    TIMEOUT = "timeout"
    """No answer before the deadline; the call may or may not have taken effect."""
    TRANSIENT = "transient"
    """A transient failure that a retry should survive: a refused connection, a 503."""
    CRASHED = "crashed"
    """The environment's process, browser or object is gone and must be replaced."""
    PERMANENT = "permanent"
    """The same call fails again: a bad request, a bug, a broken task."""
    GRADER = "grader"
    """The reward could not be computed: a judge or a verifier failed."""

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return self in (FaultKind.TIMEOUT, FaultKind.TRANSIENT, FaultKind.CRASHED)


class EnvkitError(Exception):
    """The base class of all errors that envkit raises on purpose."""


class ConfigurationError(EnvkitError, ValueError):
    """An argument, or a combination of arguments, is wrong."""


class UnknownNameError(ConfigurationError, KeyError):
    """A name is not registered."""

    __str__ = Exception.__str__  # KeyError's is the message in quotes

    @classmethod
    def suggest(
        cls, noun: str, name: str, known: Iterable[str], *, meant: str | None = None
    ) -> "UnknownNameError":
        """Build the error with the nearest known name and the list, shortened if long.

        Args:
            noun: The kind of thing named, such as "environment".
            name: The requested name.
            known: All valid names.
            meant: The valid name that this one stands for; None suggests the nearest.
        """
        names = sorted(known)
        listed = names
        if len(names) > _MAX_NAMES:
            listed = difflib.get_close_matches(name, names, n=_NEAR_NAMES, cutoff=0.0)
        hidden = len(names) - len(listed)
        rest = f" and {hidden} others" if hidden else ""
        hint = did_you_mean(name, names) if meant is None else f" Did you mean {meant!r}?"
        return cls(f"no {noun} {name!r} is registered.{hint} Registered: {listed}{rest}")


def _is_installed(package: str) -> bool:
    """Return whether there is a distribution or a module of this name."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    try:
        return bool(version(package))
    except (PackageNotFoundError, ValueError):
        pass
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


class MissingDependencyError(ConfigurationError, ImportError):
    """A feature needs a package that is not installed, or that cannot be imported."""

    @classmethod
    def for_extra(cls, feature: str, package: str, extra: str) -> "MissingDependencyError":
        """Build the error with the command that installs the extra.

        Called while an exception of an import is handled, it names that cause if the package is
        installed.
        """
        cause = sys.exception()
        if cause is None or not _is_installed(package):
            return cls(
                f"{feature} needs the package {package!r}, which is not installed. "
                f"Install it with: pip install 'envkit-rl[{extra}]'"
            )
        return cls(
            f"{feature} needs the package {package!r}, which is installed but cannot be imported: "
            f"{describe(cause)}. Remove this cause, or reinstall it with: "
            f"pip uninstall -y {package} && pip install 'envkit-rl[{extra}]'"
        )


class RefusedError(MissingDependencyError):
    """The machine or its container refuses what an installed feature needs, such as a sandbox."""


def raise_missing(error: BaseException) -> None:
    """Raise the missing dependency that caused an exception; do nothing if none did.

    A `ModuleNotFoundError` of foreign code is one too.

    Args:
        error: Whatever foreign code raised; its own attributes are not trusted.

    Raises:
        MissingDependencyError: The exception, or one in its chain of causes, is one.
    """
    missing = _missing_dependency(error)
    if missing is not None:
        raise missing from (None if missing is error else error)


def _missing_dependency(error: BaseException) -> MissingDependencyError | None:
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            return None
        kind = type(cause)  # not isinstance, which asks a foreign `__class__`
        if issubclass(kind, MissingDependencyError):
            return cast(MissingDependencyError, cause)
        if issubclass(kind, ModuleNotFoundError):
            module = ImportError.__dict__["name"].__get__(cause)
            named = f"the module {module!r}" if type(module) is str else "a module"
            return MissingDependencyError(
                f"{message_of(error) if cause is not error else describe(error)}. Install the "
                f"package that provides {named}, with its dependencies"
            )
        cause = BaseException.__dict__["__cause__"].__get__(cause)
    return None


class ContractError(EnvkitError, TypeError):
    """An environment, engine or plugin returned something its contract does not allow."""


class EpisodeStateError(EnvkitError, RuntimeError):
    """A call came at the wrong time: step before reset, or after the episode's end."""


class TemplateError(EnvkitError, ValueError):
    """A chat template cannot express the messages, or exactness cannot be proven."""


class DatasetError(EnvkitError, ValueError):
    """A data file has the wrong columns, or a row that cannot be read."""


class ImageError(EnvkitError, ValueError):
    """Bytes that are not a readable image, or an image over the stated limits."""


class ServiceError(EnvkitError, RuntimeError):
    """A port is in use, or a server or an account rejects requests; the arguments may be right."""


class RunFailedError(EnvkitError, RuntimeError):
    """The episodes of a run all fail in the same way, so the run is stopped."""

    def __init__(self, message: str, played: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.played = tuple(played)
        """Undelivered records of the last episode."""


class StorageError(EnvkitError, OSError):
    """A trajectory file cannot be written or read."""


class BusyError(StorageError):
    """Another process is writing the file."""


class Fault(EnvkitError, RuntimeError):
    """Infrastructure failed. A faulted trajectory has no reward and no trained tokens."""

    def __init__(
        self, message: str, *, kind: FaultKind = FaultKind.PERMANENT, retryable: bool | None = None
    ) -> None:
        super().__init__(message)
        self.kind: FaultKind = FaultKind(kind)
        self.retryable: bool = self.kind.is_retryable if retryable is None else retryable

    def __reduce__(self) -> tuple[object, ...]:
        """Keep kind and retryable when the fault crosses a process boundary."""
        return _rebuild_fault, (type(self), str(self), self.kind, self.retryable)


def _rebuild_fault(cls: type[Fault], message: str, kind: FaultKind, retryable: bool) -> Fault:
    return cls(message, kind=kind, retryable=retryable)


class EnvFault(Fault):
    """An environment's backend, process or deadline failed."""


class EngineFault(Fault):
    """The engine, or the connection to it, failed."""

    def __init__(
        self,
        message: str,
        *,
        kind: FaultKind = FaultKind.PERMANENT,
        retryable: bool | None = None,
        is_unavailable: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        """Describe the failure.

        Args:
            message: What happened, and what to do about it.
            kind: The kind of failure, for the retry policy.
            retryable: Whether the same request may succeed; None follows the kind.
            is_unavailable: Whether the engine is unavailable: it cannot be reached, or rejects all
                requests for now (a refused connection, a 429, a 503). All episodes then wait for
                it. False means that only this request failed.
            retry_after_s: Delay that the server requested, in seconds; None if it did not.
            status: HTTP status of an answer that was refused; None without one.
        """
        super().__init__(message, kind=kind, retryable=retryable)
        self.is_unavailable: bool = is_unavailable
        self.retry_after_s: float | None = retry_after_s
        self.status: int | None = status

    def reworded(self, message: str) -> "EngineFault":
        """Return the same failure with another message."""
        fields = (self.kind, self.retryable, self.is_unavailable, self.retry_after_s, self.status)
        return _rebuild_engine_fault(type(self), message, *fields)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep every field when the fault crosses a process boundary."""
        fields = (self.kind, self.retryable, self.is_unavailable, self.retry_after_s, self.status)
        return _rebuild_engine_fault, (type(self), str(self), *fields)


def _rebuild_engine_fault(
    cls: type[EngineFault],
    message: str,
    kind: FaultKind,
    retryable: bool,
    is_unavailable: bool,
    retry_after_s: float | None,
    status: int | None,
) -> EngineFault:
    return cls(
        message,
        kind=kind,
        retryable=retryable,
        is_unavailable=is_unavailable,
        retry_after_s=retry_after_s,
        status=status,
    )


class LedgerFault(Fault):
    """The token record would no longer be exact, so the sample must not be trained on."""


class HistoryFault(LedgerFault):
    """A history policy failed, or returned something other than a conversation to continue."""
