"""What hostile environments raise and return: one function or table for each kind of value."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
from PIL import Image as PilImage

from envkit import errors
from envkit.env import Turn
from envkit.images import Image

PLANTED = "planted"
"""In the message of every exception that is raised on purpose and can carry one."""
SURROGATE = "half a pair: \ud83d."
CONTROLS = "nul \x00, escape \x1b[2J, line separator \u2028."


class MuteError(Exception):
    """Can be neither shown nor printed."""

    def __str__(self) -> str:
        raise ValueError("no text")

    def __repr__(self) -> str:
        raise ValueError("no text")


class OddTextError(Exception):
    """Its text is not text."""

    def __str__(self) -> Any:
        return 7  # noqa: PLE0307  # that is the attack


class SignatureFault(errors.EnvFault):
    """Takes other arguments than its base, so it cannot be built again from its message."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{PLANTED}: {host}:{port}", kind=errors.FaultKind.CRASHED)


class BadRepr:
    """Refuses to be shown."""

    def __repr__(self) -> str:
        raise ValueError("no text")


class BadMapping(Mapping[str, Any]):
    """Fails when it is read."""

    def __getitem__(self, key: str) -> NoReturn:
        raise RuntimeError(PLANTED)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError(PLANTED)

    def __len__(self) -> int:
        return 3


class BadText(str):
    """A string that cannot be encoded or measured."""

    __slots__ = ()

    def encode(self, *_args: Any, **_options: Any) -> NoReturn:
        raise RuntimeError(PLANTED)

    def __len__(self) -> int:
        raise RuntimeError(PLANTED)


def too_deep(depth: int = 0) -> int:
    """Recurse until Python refuses."""
    return too_deep(depth + 1) + 1


def nested(depth: int) -> dict[str, Any]:
    """Return a mapping inside a mapping, and so on."""
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"in": found}
    return found


def cyclic() -> dict[str, Any]:
    """Return a mapping that holds itself."""
    found: dict[str, Any] = {}
    found["self"] = found
    return found


def nonsense_kind() -> errors.EnvFault:
    """Return a fault whose kind is not a kind."""
    fault = errors.EnvFault(PLANTED)
    fault.kind = "nonsense"  # type: ignore[assignment]
    return fault


def with_long_chain() -> Exception:
    """Return an exception whose cause is itself, at one remove."""
    first, second = RuntimeError(PLANTED), ValueError(PLANTED)
    first.__cause__, second.__cause__ = second, first
    return first


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "exception": lambda: RuntimeError(PLANTED),
    "system_exit_0": lambda: SystemExit(0),
    "system_exit_none": lambda: SystemExit(None),
    "keyboard_interrupt": lambda: KeyboardInterrupt(PLANTED),
    "generator_exit": lambda: GeneratorExit(PLANTED),
    "cancelled": lambda: asyncio.CancelledError(PLANTED),
    "stop_iteration": lambda: StopIteration(PLANTED),
    "stop_async_iteration": lambda: StopAsyncIteration(PLANTED),
    "base_group": lambda: BaseExceptionGroup(PLANTED, [KeyboardInterrupt(), SystemExit(3)]),
    "group": lambda: ExceptionGroup(PLANTED, [ValueError("one"), OSError("two")]),
    "mute": MuteError,
    "odd_text": OddTextError,
    "base": lambda: BaseException(PLANTED),
    "memory": lambda: MemoryError(PLANTED),
    "os_error": lambda: ConnectionRefusedError(111, PLANTED),
    "timeout": lambda: TimeoutError(PLANTED),
    "invalid_state": lambda: asyncio.InvalidStateError(PLANTED),
    "warning": lambda: UserWarning(PLANTED),
    "no_text": RuntimeError,
    "surrogate_text": lambda: RuntimeError(SURROGATE + PLANTED),
    "cyclic_cause": with_long_chain,
}
"""Exceptions of Python's own and of careless authors."""

ENVKIT_ERRORS: dict[str, Callable[[], BaseException]] = {
    "configuration": lambda: errors.ConfigurationError(PLANTED),
    "unknown_name": lambda: errors.UnknownNameError.suggest("tool", PLANTED, ["search"]),
    "missing_dependency": lambda: errors.MissingDependencyError.for_extra("it", PLANTED, "x"),
    "contract": lambda: errors.ContractError(PLANTED),
    "episode_state": lambda: errors.EpisodeStateError(PLANTED),
    "template": lambda: errors.TemplateError(PLANTED),
    "dataset": lambda: errors.DatasetError(PLANTED),
    "image": lambda: errors.ImageError(PLANTED),
    "storage": lambda: errors.StorageError(PLANTED),
    "engine_fault": lambda: errors.EngineFault(PLANTED),
    "ledger_fault": lambda: errors.LedgerFault(PLANTED),
    "fault_permanent": lambda: errors.EnvFault(PLANTED, kind=errors.FaultKind.PERMANENT),
    "fault_transient": lambda: errors.EnvFault(PLANTED, kind=errors.FaultKind.TRANSIENT),
    "fault_crashed": lambda: errors.EnvFault(PLANTED, kind=errors.FaultKind.CRASHED),
    "fault_timeout": lambda: errors.EnvFault(PLANTED, kind=errors.FaultKind.TIMEOUT),
    "fault_grader": lambda: errors.EnvFault(PLANTED, kind=errors.FaultKind.GRADER),
    "fault_retry_permanent": lambda: errors.EnvFault(
        PLANTED, kind=errors.FaultKind.PERMANENT, retryable=True
    ),
    "fault_without_text": lambda: errors.EnvFault(""),
    "fault_other_signature": lambda: SignatureFault("localhost", 80),
    "fault_nonsense_kind": nonsense_kind,
}
"""Errors of envkit that an environment's own code raises in the middle of an episode."""

BAD_REWARDS: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "none": lambda: None,
    "text": lambda: "1.0",
    "complex": lambda: 1 + 0j,
    "huge": lambda: 10**400,
    "huge_fraction": lambda: Fraction(10**400, 3),
    "array": lambda: np.array([0.5]),
    "numpy_nan": lambda: np.float32("nan"),
}
"""Rewards that no trainer may see."""

ODD_REWARDS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.float32(0.5),
    "numpy_int": lambda: np.int64(1),
    "fraction": lambda: Fraction(1, 3),
    "minus_zero": lambda: -0.0,
    "true": lambda: True,
    "decimal": lambda: Decimal("0.5"),
    "integer": lambda: 1,
}
"""Rewards that a number can be made of; refusing them is fine too."""

ODD_INFOS: dict[str, Callable[[], Any]] = {
    "set": lambda: {"a": {1, 2}},
    "bytes": lambda: {"a": b"\xff"},
    "nan": lambda: {"a": float("nan")},
    "cyclic": cyclic,
    "deep": lambda: nested(10_000),
    "number_keys": lambda: {1: 2, None: 3},
    "object_keys": lambda: {object(): 1},
    "tuple_keys": lambda: {"a": {(1, 2): 3}},
    "huge_number": lambda: {"a": 10**5000},
    "bad_repr": lambda: {"a": BadRepr()},
    "numpy": lambda: {"a": np.zeros(3), "b": np.float64(2)},
    "surrogate": lambda: {SURROGATE: SURROGATE},
    "class": lambda: {"a": ValueError},
    "lambda": lambda: {"a": lambda: 1},
    "image": lambda: {"a": Image.from_pil(PilImage.new("RGB", (4, 4)))},
    "parse_error_object": lambda: {"parse_error": BadRepr()},
    "tool_call_text": lambda: {"tool_call": "add(1)"},
    "reward_terms_text": lambda: {"reward_terms": "all"},
}
"""Infos that JSON refuses, or that hold a reserved key of another type."""

NOT_INFOS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "list": lambda: ["a"],
    "number": lambda: 3,
    "bad_mapping": BadMapping,
}
"""What is not a mapping, or not readable as one."""

NOT_TURNS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "text": lambda: "Right.",
    "mapping": lambda: {"text": "Right."},
    "pair": lambda: ("Right.", 1.0),
    "class": lambda: Turn,
    "generator": lambda: (Turn("a") for _ in range(2)),
}
"""What an author's hook returns instead of a Turn."""


def broken_image() -> Image:
    """Return an image whose bytes cannot be decoded."""
    return Image.from_bytes(b"\x89PNG\r\n\x1a\nnothing")


def missing_image() -> Image:
    """Return an image that is read from a file that is not there."""

    def read() -> bytes:
        raise FileNotFoundError(2, PLANTED)

    return Image.deferred(read, sha256="0" * 64)


def exiting_image() -> Image:
    """Return an image whose reader ends the process."""

    def read() -> bytes:
        raise SystemExit(0)

    return Image.deferred(read, sha256="1" * 64)


def changed_image() -> Image:
    """Return an image whose pixels are not the ones it says."""
    data = Image.from_pil(PilImage.new("RGB", (28, 28), "red")).png_bytes()
    return Image.deferred(lambda: data, sha256="2" * 64)


def thin_image() -> Image:
    """Return an image of an aspect ratio that processors refuse."""
    return Image.from_pil(PilImage.new("RGB", (4000, 1), "red"))


BAD_IMAGES: dict[str, Callable[[], Any]] = {
    "broken": broken_image,
    "missing": missing_image,
    "exiting": exiting_image,
    "changed": changed_image,
    "thin": thin_image,
}
"""Images that fail when somebody looks at them."""
