"""Convert a trajectory to one JSON object and back.

The dataclasses are the schema: every field is one key, in order of declaration, converted according
to its type. Every column of the ledger is written in full, masks and zeros included, so a reader in
any language can use it directly. Processor tensors are not written; they are recomputed from
the images.
"""

import base64
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, cast, get_type_hints

import numpy as np

from envkit.errors import FaultKind, StorageError
from envkit.images import Image
from envkit.messages import Message, check_message
from envkit.tokens.sanity import SanityStatus
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.columns import Column
from envkit.trajectory.plain import Find, Keep, from_plain, plain_number, to_plain
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import Branch, Origin
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import Trajectory, TurnRecord

T = TypeVar("T")

SCHEMA: Final = 1
"""Schema version; incremented when older readers would misread new records."""

MAX_INTEGER: Final = 2**63
"""Integers of a record are smaller than this, and their negatives too."""
DERIVED: Final = frozenset({"features"})
"""Fields that are not stored."""
ADDED_LATER: Final = frozenset(
    {
        "traceback",
        "clamped_logprobs",
        "neutralised",
        "sanity",
        "branches",
        "call",
        "origin",
        "purpose",
        "opened",
    }
)
"""Fields that older files lack. They are omitted if None or empty."""

_CHUNK: Final = 1 << 14
"""Values checked per call, which holds the GIL for about a millisecond."""
_HEAD: Final = (
    "episode_id",
    "env_id",
    "seed",
    "group_id",
    "stop_reason",
    "initial_observation_hash",
    "metadata",
)
_OLD_PLACES: Final = {"encode": FaultPlace.LEDGER}
"""Names of fault places in earlier versions."""


def encode(trajectory: Trajectory, certificate: Certificate, keep: Keep) -> dict[str, Any]:
    """Return the trajectory as strict JSON data.

    Args:
        trajectory: The trajectory to write.
        certificate: Its certificate.
        keep: Called with every image; the record refers to it by hash.

    Raises:
        StorageError: A field has the wrong type, or JSON cannot represent a value in a free-form
            part.
    """
    row = write_fields(trajectory, "", keep)
    return {"schema": SCHEMA, **row, "certificate": write_fields(certificate, "certificate", keep)}


def decode(row: object, image: Find) -> tuple[Trajectory, Certificate]:
    """Return the trajectory and its recorded certificate, without comparing them.

    Args:
        row: JSON data.
        image: Returns the image with a given hash.

    Raises:
        StorageError: The schema is unknown, or a field is missing or has the wrong type.
        LedgerFault: The columns of a segment are inconsistent.
    """
    record = _object(row, "")
    schema = _INTEGER.read(_get(record, "schema", ""), "schema", image)
    if schema > SCHEMA:
        raise StorageError(
            f"the record has schema {schema}, but this envkit reads schemas up to {SCHEMA}; "
            "upgrade with: pip install -U envkit-rl"
        )
    if schema < 1:
        raise StorageError(f"schema must be at least 1, got {schema}")
    certificate = _get(record, "certificate", "")
    trajectory = _read_fields(Trajectory, record, "", image)
    check_branches(trajectory)
    return trajectory, _read_fields(Certificate, certificate, "certificate", image)


def check_branches(trajectory: Trajectory) -> None:
    """Check that every branch starts at a segment, which all later code relies on.

    Raises:
        StorageError: One does not.
    """
    for index, branch in enumerate(trajectory.branches):
        if not 0 < branch.segment < len(trajectory.segments):
            rule = f"a segment from 1 to {len(trajectory.segments) - 1}"
            raise _wrong(f"branches[{index}].segment", rule, branch.segment)


def decode_head(row: object, image: Find) -> dict[str, Any]:
    """Return the fields that identify a record's episode.

    Args:
        row: JSON data; the ledger may be missing.
        image: Returns the image with a given hash.

    Raises:
        StorageError: A field is missing or has the wrong type.
    """
    record = _object(row, "")
    kinds = _kinds_of(Trajectory)
    return {name: kinds[name].read(_get(record, name, ""), name, image) for name in _HEAD}


def write_fields(value: object, where: str, keep: Keep) -> dict[str, Any]:
    """Return a dataclass of the record as JSON data.

    Args:
        value: A trajectory or a part of it.
        where: Its place in the record, for the error; empty for the record itself.
        keep: Called with every image.

    Raises:
        StorageError: A field cannot be written.
    """
    return {
        name: kind.write(getattr(value, name), f"{where}.{name}" if where else name, keep)
        for name, kind in _kinds_of(type(value)).items()
        if name not in ADDED_LATER or getattr(value, name) not in (None, ())
    }


def _read_fields(cls: type[T], row: object, where: str, image: Find) -> T:
    record = _object(row, where)
    return cls(
        **{
            name: kind.read(_get(record, name, where), f"{where}.{name}" if where else name, image)
            for name, kind in _kinds_of(cls).items()
            if name in record or name not in ADDED_LATER
        }
    )


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        name = where or "a record"
        raise StorageError(f"{name} must be a JSON object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _get(record: Mapping[str, Any], name: str, where: str) -> Any:  # noqa: ANN401  # JSON data
    if name not in record:
        raise StorageError(f"{where}.{name}".lstrip(".") + " is missing from the record")
    return record[name]


def _wrong(where: str, rule: str, value: object) -> StorageError:
    return StorageError(f"{where} must be {rule}, got {_shown(value)}")


def _shown(value: object) -> str:
    """Format a value for an error; foreign objects by type only, since their repr may raise."""
    if type(value) in (bool, int, float, str, list, dict, type(None)):
        with contextlib.suppress(ValueError, RecursionError):  # 5,000 digits, a list of itself
            return f"{value!r:.80}"
    return f"a value of type {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Writes and reads values of one type; both raise a `StorageError` that names the place."""

    write: Callable[[Any, str, Keep], Any]
    read: Callable[[Any, str, Find], Any]


@cache
def _kinds_of(cls: type) -> dict[str, _Kind]:
    hints = get_type_hints(cls)
    names = [one.name for one in fields(cls) if one.name not in DERIVED]
    return {name: _BY_NAME.get(name) or _BY_TYPE[hints[name]] for name in names}


def _checked(rule: str, accepts: Callable[[Any], bool], *, same: bool = True) -> _Kind:
    """Return the kind for values that JSON represents directly.

    Args:
        rule: Description of valid values, for the error.
        accepts: Whether a value is valid.
        same: Whether values are written unchanged; False converts NumPy numbers.
    """

    def check(value: Any, where: str, _: object) -> Any:  # noqa: ANN401
        plain: Any = value if same else plain_number(value)
        if not accepts(plain):
            raise _wrong(where, rule, value)
        return plain

    return _Kind(check, check)


def _optional(kind: _Kind) -> _Kind:
    return _Kind(
        lambda value, where, keep: None if value is None else kind.write(value, where, keep),
        lambda value, where, find: None if value is None else kind.read(value, where, find),
    )


def _items(kind: _Kind) -> _Kind:
    """Return the kind for tuples whose items have a given kind."""

    def write(values: Sequence[Any], where: str, keep: Keep) -> list[Any]:
        return [kind.write(value, f"{where}[{n}]", keep) for n, value in enumerate(values)]

    def read(values: Any, where: str, find: Find) -> tuple[Any, ...]:  # noqa: ANN401
        found = _list(values, where)
        return tuple(kind.read(value, f"{where}[{n}]", find) for n, value in enumerate(found))

    return _Kind(write, read)


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(where, "a list", value)
    return cast("list[Any]", value)


def _record(cls: type[Any]) -> _Kind:
    def read(value: Any, where: str, find: Find) -> Any:  # noqa: ANN401
        return _read_fields(cls, value, where, find)

    return _Kind(write_fields, read)


def _enum(cls: type[StrEnum], old: Mapping[str, StrEnum] | None = None) -> _Kind:
    known = {**(old or {}), **{member.value: member for member in cls}}

    def write(value: Any, where: str, _: object) -> str:  # noqa: ANN401
        return read(value, where, _).value

    def read(value: Any, where: str, _: object) -> StrEnum:  # noqa: ANN401
        if not isinstance(value, str) or value not in known:
            raise _wrong(where, f"one of {[*cls]}", value)
        return known[value]

    return _Kind(write, read)


def _write_number(value: Any, where: str, _: object) -> Any:  # noqa: ANN401
    if not isinstance(value, int | float | np.number):
        raise _wrong(where, "a number", value)
    return _sized(plain_number(value), where)


def _read_number(value: Any, where: str, find: Find) -> float:  # noqa: ANN401
    number = from_plain(value, where, find)
    if type(number) not in (int, float):
        raise _wrong(where, "a number", value)
    return _sized(number, where)


def _sized(number: Any, where: str) -> Any:  # noqa: ANN401
    """Return a number unless it is an integer that no float may be able to hold."""
    # Such a number, like a reward of 10**400, raises OverflowError wherever it is used later.
    if type(number) is int and abs(number) >= MAX_INTEGER:
        raise _wrong(where, "a number of at most 63 bits", f"one of {number.bit_length()} bits")
    return number


def _column(write: Callable[[Sequence[Any], str], Sequence[Any]]) -> Callable[..., list[Any]]:
    """Return a function that writes a column of the ledger in chunks."""

    def whole(values: Sequence[Any], where: str, _: object) -> list[Any]:
        found: list[Any] = []
        # A column of a long episode in one call would keep the interpreter from the event loop.
        for start in range(0, len(values), _CHUNK):
            found += write(values[start : start + _CHUNK], where)
        return found

    return whole


def _ids(values: Sequence[Any], where: str) -> Sequence[int]:
    """Check ids or a mask; convert NumPy numbers, which engines may return, to Python's."""
    if set(map(type, values)) - {int}:  # faster than checking one by one
        values = [plain_number(value) for value in values]
    whole = all(type(value) is int for value in values)
    if values and not (whole and 0 <= min(values) <= max(values) < MAX_INTEGER):
        raise _wrong(where, "a list of integers of at least 0", list(values[:20]))
    return values


def _read_ids(value: Any, where: str, _: object) -> tuple[int, ...]:  # noqa: ANN401
    values = _list(value, where)
    is_whole = not values or set(map(type, values)) == {int}
    if not is_whole or (values and not 0 <= min(values) <= max(values) < MAX_INTEGER):
        raise _wrong(where, "a list of integers of at least 0", values)
    return tuple(values)


def _floats(values: Sequence[Any], where: str) -> Sequence[Any]:
    if set(map(type, values)) <= {float} and all(map(math.isfinite, values)):
        return values
    return [_write_number(value, where, None) for value in values]


def _read_floats(value: Any, where: str, find: Find) -> tuple[float, ...]:  # noqa: ANN401
    values = _list(value, where)
    if not set(map(type, values)) <= {int, float}:
        values = [from_plain(one, where, find) for one in values]
    if not set(map(type, values)) <= {int, float}:
        raise _wrong(where, "a list of numbers", values)
    return tuple(values)


def _write_images(images: Sequence[Image], _: str, keep: Keep) -> list[str]:
    for image in images:
        keep(image)
    return [image.sha256 for image in images]


def _read_images(value: Any, where: str, find: Find) -> tuple[Image, ...]:  # noqa: ANN401
    return tuple(find(sha256) for sha256 in _items(_TEXT).read(value, where, find))


def _write_mapping(value: Any, where: str, keep: Keep) -> Any:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise _wrong(where, "a mapping", value)
    return to_plain(value, where, keep)


def _read_mapping(value: Any, where: str, find: Find) -> dict[str, Any]:  # noqa: ANN401
    found = from_plain(value, where, find)
    if not isinstance(found, dict):
        raise _wrong(where, "an object", value)
    return cast("dict[str, Any]", found)


def _read_counts(value: Any, where: str, find: Find) -> dict[str, int]:  # noqa: ANN401
    found = _object(value, where)
    return {name: _INTEGER.read(count, f"{where}.{name}", find) for name, count in found.items()}


def _read_message(value: Any, where: str, find: Find) -> Message:  # noqa: ANN401
    row = _object(value, where)
    entry = {key: from_plain(item, f"{where}.{key}", find, 1) for key, item in row.items()}
    return check_message(cast("Message", entry), source=where)


def _write_bytes(value: Any, where: str, _: object) -> str:  # noqa: ANN401
    if not isinstance(value, bytes):
        raise _wrong(where, "bytes", value)
    return base64.b64encode(value).decode("ascii")


def _read_bytes(value: Any, where: str, find: Find) -> bytes:  # noqa: ANN401
    try:
        return base64.b64decode(_TEXT.read(value, where, find), validate=True)
    except ValueError as error:  # binascii.Error is one; other characters than ASCII are another
        raise StorageError(f"{where} is not valid base64: {error}") from error


def _write_history(value: Sequence[int | Message], where: str, keep: Keep) -> list[Any]:
    return [
        _INTEGER.write(entry, where, keep)
        if isinstance(entry, int)
        else _write_mapping(entry, where, keep)
        for entry in value
    ]


def _read_history(value: Any, where: str, find: Find) -> tuple[int | Message, ...]:  # noqa: ANN401
    return tuple(
        entry if type(entry) is int else _read_message(entry, f"{where}[{n}]", find)
        for n, entry in enumerate(_list(value, where))
    )


_INTEGER: Final = _checked(
    "an integer", lambda value: type(value) is int and abs(value) < MAX_INTEGER, same=False
)
_TEXT: Final = _checked("a string", lambda value: isinstance(value, str))
_NUMBER: Final = _Kind(_write_number, _read_number)
_MAPPING: Final = _Kind(_write_mapping, _read_mapping)
_BY_TYPE: Final[Mapping[Any, _Kind]] = {
    int: _INTEGER,
    int | None: _checked(
        "an integer or null", lambda value: value is None or type(value) is int, same=False
    ),
    float: _NUMBER,
    float | None: _optional(_NUMBER),
    str: _TEXT,
    str | None: _optional(_TEXT),
    bytes | None: _optional(_Kind(_write_bytes, _read_bytes)),
    tuple[str, ...]: _items(_TEXT),
    Column[int]: _Kind(_column(_ids), _read_ids),
    Column[float]: _Kind(_column(_floats), _read_floats),
    tuple[Image, ...]: _Kind(_write_images, _read_images),
    Mapping[str, int]: _Kind(_write_mapping, _read_counts),
    Mapping[str, Any]: _MAPPING,
    StopReason: _enum(StopReason),
    SegmentKind: _enum(SegmentKind),
    FaultPlace: _enum(FaultPlace, _OLD_PLACES),
    FaultKind: _enum(FaultKind),
    SanityStatus | None: _optional(_enum(SanityStatus)),
    FaultRecord | None: _optional(_record(FaultRecord)),
    tuple[Segment, ...]: _items(_record(Segment)),
    tuple[TurnRecord, ...]: _items(_record(TurnRecord)),
    tuple[Branch, ...]: _items(_record(Branch)),
    Origin | None: _optional(_record(Origin)),
    tuple[int | Message, ...]: _Kind(_write_history, _read_history),
    tuple[Message, ...]: _items(_Kind(_write_mapping, _read_message)),
}
_ANYTHING: Final = _Kind(to_plain, from_plain)
_BY_NAME: Final = {"tool_call": _ANYTHING, "parse_error": _ANYTHING}
"""Fields with a value of any type, taken from an environment's `info`."""
