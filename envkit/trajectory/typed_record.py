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
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec.structs import astuple

from envkit.errors import EnvkitError, FaultKind, StorageError
from envkit.images import Image
from envkit.messages import Message, Role, check_message
from envkit.tokens.sanity import SanityStatus
from envkit.trajectory.certificate import Certificate
from envkit.trajectory.columns import Column, packed_ids, packed_logprobs, packed_mask
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
        row = _decoder().decode(line)
        certificate = _built(Certificate, row.certificate, image)
        trajectory = _built(Trajectory, row, image, more=2)
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
def _building(cls: type[Any]) -> tuple[tuple[tuple[int, _Convert], ...], tuple[Any, ...]]:
    """Return what converts the fields of a dataclass, by position, and what sets each."""
    kinds = _kinds_of(cls)
    conversions = [(n, one) for n, (_, one) in enumerate(kinds.values()) if one is not None]
    return tuple(conversions), tuple(getattr(cls, name).__set__ for name in kinds)


def _built(cls: type[T], row: Any, image: Find, *, more: int = 0) -> T:  # noqa: ANN401
    """Return a frozen dataclass with slots, whose own way of setting fields is slow.

    Args:
        cls: The class. It has no `__post_init__`.
        row: Its fields, in order.
        image: Returns the image with a given hash.
        more: Number of other fields before them.
    """
    values = list(astuple(row)[more:])
    conversions, setters = _building(cls)
    for place, convert in conversions:
        values[place] = convert(values[place], image)
    made = object.__new__(cls)
    for set_field, value in zip(setters, values, strict=True):
        set_field(made, value)
    return made


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
        return _built(cls, row, image)

    return _struct(cls), convert


def _items(kind: Any, convert: _Convert) -> _Kind:  # noqa: ANN401  # a type
    return tuple[kind, ...], lambda rows, image: tuple([convert(row, image) for row in rows])


def _segment(row: Any, image: Find) -> Segment:  # noqa: ANN401  # its type is made above
    ids = _read_ids(row.wire_ids)
    packed = packed_ids(ids)
    expanded = None
    if row.train_ids != row.wire_ids:  # as text
        ids = _read_ids(row.train_ids)
        expanded = packed_ids(ids)
    mask, logprobs = bytes(row.loss_mask), bytes(row.logprobs)
    usual = b"1," if row.kind is SegmentKind.MODEL else b"0,"
    is_usual = mask == b"[%b]" % (usual * len(ids))[:-1]
    is_zero = logprobs == b"[%b]" % (b"0.0," * len(ids))[:-1]
    return Segment.packed_as(
        kind=row.kind,
        turn=row.turn,
        _wire_ids=packed,
        _train_ids=expanded,
        _loss_mask=None if is_usual else packed_mask(_read_ids(mask)),
        _logprobs=None if is_zero else packed_logprobs(_read_floats(logprobs)),
        images=tuple([image(sha256) for sha256 in row.images]) if row.images else (),
        features=(),
        reward=row.reward,
        weight_version=row.weight_version,
        finish_reason=row.finish_reason,
        extras=_mapping(row.extras, image),
    )


def _free(value: Any, image: Find, depth: int = 0) -> Any:  # noqa: ANN401  # any JSON
    """Return a free-form part, which nothing else holds yet."""
    is_same = not value or is_untagged(value, depth)
    return value if is_same else from_plain(value, "", image, depth)


def _mapping(value: dict[str, Any], image: Find) -> dict[str, Any]:
    if not value or is_untagged(value, 0):
        return value
    found: Any = from_plain(value, "", image)
    if not isinstance(found, dict):  # one tagged key stands for a value of another type
        raise StorageError(type(found).__name__)
    return cast("dict[str, Any]", found)


def _message(row: dict[str, Any], image: Find) -> Message:
    if len(row) == 2 and row.get("role") in _ROLES and type(row.get("content")) is str:
        return cast("Message", row)
    for key, item in row.items():
        if isinstance(item, list | dict):
            row[key] = _free(item, image, 1)
    return check_message(row, source="")  # pyright: ignore[reportArgumentType]  # it checks that


def _history(rows: list[Any], image: Find) -> tuple[int | Message, ...]:
    return tuple(row if isinstance(row, int) else _message(row, image) for row in rows)


def _bytes(text: str | None, _: Find) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


_ROLES: Final = get_args(Role)
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
