"""Read the line of an ordinary record in one pass of a C library.

msgspec checks the type of every field while it reads the JSON, and a column that follows from its
segment is compared as text. A line with anything unusual, damage included, is left to `record`,
whose errors name the place. So this module may refuse too much, but it accepts nothing that
`record` refuses, and reads nothing differently.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast, get_type_hints

import msgspec
from msgspec.structs import asdict

from envkit.errors import EnvkitError, FaultKind, StorageError
from envkit.images import Image
from envkit.messages import Message, check_message
from envkit.tokens.sanity import SanityStatus
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.columns import Column
from envkit.trajectory.plain import Find, from_plain, is_untagged
from envkit.trajectory.record import ADDED_LATER, DERIVED, MAX_INTEGER, SCHEMA, check_branches
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.sequence import Branch, Origin
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import Trajectory, TurnRecord

T = TypeVar("T")
_Convert = Callable[[Any, Find], Any]
_Kind = tuple[Any, _Convert | None]
"""The type of a field in a file, and what converts it to that of the dataclass; None if nothing
must."""

_Integer = Annotated[int, msgspec.Meta(ge=1 - MAX_INTEGER, le=MAX_INTEGER - 1)]
_Number = _Integer | float
_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER - 1)]
_read_ids: Final = msgspec.json.Decoder(list[_Id]).decode
_read_floats: Final = msgspec.json.Decoder(list[float]).decode


def read_typed(line: bytes, image: Find) -> tuple[Trajectory, Certificate] | None:
    """Return what `record.decode` returns for a line; None if that must read it.

    Args:
        line: One line of a trajectory file.
        image: Returns the image with a given hash.
    """
    try:
        row = asdict(_decoder().decode(line))
        del row["schema"]
        certificate = Certificate(**asdict(row.pop("certificate")))
        trajectory = _built(Trajectory, row, image)
        check_branches(trajectory)
    except (msgspec.MsgspecError, EnvkitError, ValueError, RecursionError):
        return None
    return trajectory, certificate


@cache
def _decoder() -> "msgspec.json.Decoder[Any]":
    schema = Annotated[int, msgspec.Meta(ge=1, le=SCHEMA)]
    row = _struct(Trajectory, schema=schema, certificate=_struct(Certificate))
    return msgspec.json.Decoder(row)


def _struct(cls: type[Any], **more: Any) -> Any:  # noqa: ANN401  # types made from types
    """Return a type with the fields of a dataclass as a file holds them, and some more."""
    found: list[Any] = list(more.items())
    for name, (kind, _) in _kinds_of(cls).items():
        default = cls.__dataclass_fields__[name].default
        found.append((name, kind, default) if name in ADDED_LATER else (name, kind))
    # Unknown fields are refused, since msgspec skips their text without checking all of it.
    return msgspec.defstruct(
        cls.__name__, found, kw_only=True, forbid_unknown_fields=True, gc=False
    )


@cache
def _kinds_of(cls: type[Any]) -> dict[str, _Kind]:
    hints = get_type_hints(cls)
    names = [one.name for one in fields(cls) if one.name not in DERIVED]
    return {name: _BY_NAME.get(name) or _kind_of(hints[name]) for name in names}


@cache
def _conversions(cls: type[Any]) -> tuple[tuple[str, _Convert], ...]:
    kinds = _kinds_of(cls).items()
    return tuple((name, convert) for name, (_, convert) in kinds if convert is not None)


def _built(cls: type[T], row: dict[str, Any], image: Find) -> T:
    for name, convert in _conversions(cls):
        row[name] = convert(row[name], image)
    return cls(**row)


def _kind_of(hint: Any) -> _Kind:  # noqa: ANN401  # a type
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    if hint in _OPTIONAL:
        kind, convert = _record(_OPTIONAL[hint])
        return kind | None, lambda row, image: None if row is None else convert(row, image)
    if hint == tuple[Segment, ...]:
        return _items(_struct(Segment), _segment)
    return _items(*_record(_RECORDS[hint]))


def _record(cls: type[Any]) -> tuple[Any, _Convert]:
    def convert(row: Any, image: Find) -> Any:  # noqa: ANN401  # its type is made above
        return _built(cls, asdict(row), image)

    return _struct(cls), convert


def _items(kind: Any, convert: _Convert) -> _Kind:  # noqa: ANN401  # a type
    return tuple[kind, ...], lambda rows, image: tuple([convert(row, image) for row in rows])


def _segment(row: Any, image: Find) -> Segment:  # noqa: ANN401  # its type is made above
    values = asdict(row)
    wire, train = bytes(row.wire_ids), bytes(row.train_ids)
    ids = values["wire_ids"] = _read_ids(wire)
    if train == wire:
        values["train_ids"] = None
    else:
        ids = values["train_ids"] = _read_ids(train)
    mask, logprobs = bytes(row.loss_mask), bytes(row.logprobs)
    usual = b"1" if row.kind is SegmentKind.MODEL else b"0"
    values["loss_mask"] = None if mask == _repeated(usual, len(ids)) else _read_ids(mask)
    is_zero = logprobs == _repeated(b"0.0", len(ids))
    values["logprobs"] = None if is_zero else _read_floats(logprobs)
    values["images"] = tuple([image(sha256) for sha256 in row.images])
    values["extras"] = _mapping(row.extras, image)
    return Segment(**values)


def _repeated(value: bytes, count: int) -> bytes:
    """Return the text of a list that holds a value so many times."""
    return b"[%b]" % (b"%b," % value * count)[:-1]


def _free(value: Any, image: Find, depth: int = 0) -> Any:  # noqa: ANN401  # any JSON
    """Return a free-form part, which nothing else holds yet."""
    is_same = not value or is_untagged(value, depth)
    return value if is_same else from_plain(value, "", image, depth)


def _mapping(value: dict[str, Any], image: Find) -> dict[str, Any]:
    found: Any = _free(value, image)
    if not isinstance(found, dict):  # one tagged key stands for a value of another type
        raise StorageError(type(found).__name__)
    return cast("dict[str, Any]", found)


def _message(row: dict[str, Any], image: Find) -> Message:
    for key, item in row.items():
        if isinstance(item, list | dict):
            row[key] = _free(item, image, 1)
    return check_message(row, source="")  # pyright: ignore[reportArgumentType]  # it checks that


def _history(rows: list[Any], image: Find) -> tuple[int | Message, ...]:
    return tuple(row if isinstance(row, int) else _message(row, image) for row in rows)


def _bytes(text: str | None, _: Find) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


_MAPPING: Final = dict[str, Any]
_BY_TYPE: Final[Mapping[Any, _Kind]] = {
    int: (_Integer, None),
    int | None: (int | None, None),
    float: (_Number, None),
    float | None: (_Number | None, None),
    str: (str, None),
    str | None: (str | None, None),
    bytes | None: (str | None, _bytes),
    tuple[str, ...]: (tuple[str, ...], None),
    Column[int]: (msgspec.Raw, None),
    Column[float]: (msgspec.Raw, None),
    tuple[Image, ...]: (list[str], None),
    Mapping[str, int]: (dict[str, _Integer], None),
    Mapping[str, Any]: (_MAPPING, _mapping),
    StopReason: (StopReason, None),
    SegmentKind: (SegmentKind, None),
    FaultPlace: (FaultPlace, None),
    FaultKind: (FaultKind, None),
    SanityStatus | None: (SanityStatus | None, None),
    tuple[int | Message, ...]: (list[int | _MAPPING], _history),
    tuple[Message, ...]: _items(_MAPPING, _message),
}
_OPTIONAL: Final[Mapping[Any, type]] = {FaultRecord | None: FaultRecord, Origin | None: Origin}
_RECORDS: Final[Mapping[Any, type]] = {
    tuple[TurnRecord, ...]: TurnRecord,
    tuple[Branch, ...]: Branch,
}
_BY_NAME: Final[Mapping[str, _Kind]] = {"tool_call": (Any, _free), "parse_error": (Any, _free)}
