"""Records that cannot be stored are refused before anything is written, with their names."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.trajectories import build, example, picture, quick
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import FaultKind, StorageError
from envkit.images import Image
from envkit.trajectory import (
    FaultPlace,
    FaultRecord,
    StopReason,
    Trajectory,
    TrajectoryWriter,
    certify,
    load,
    plain,
    read_lines,
)
from envkit.trajectory.plain import MAX_DEPTH, json_chunks


class Rude(Exception):
    """Raises from everything that an error message might ask of it."""

    def __repr__(self) -> str:
        raise self

    __str__ = __repr__


class Exits:
    def __repr__(self) -> str:
        raise SystemExit(0)

    __str__ = __repr__


class Trap(Mapping[str, Any]):
    """A mapping whose items cannot be had."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[str]:
        return iter(("a", "b"))

    def __len__(self) -> int:
        return 2


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def _cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


def _bomb() -> list[Any]:
    value: list[Any] = [1] * 10
    for _ in range(60):
        value = [value] * 10
    return value


REFUSED: dict[str, Any] = {
    "deep": _nested(10_000),
    "a little too deep": _nested(MAX_DEPTH + 1),
    "cycle": _cycle(),
    "endless": _bomb(),
    "set": {1, 2},
    "object": object(),
    "rude object": Rude(),
    "object whose repr exits": Exits(),
    "rude mapping": Trap(Rude()),
    "mapping that exits": Trap(SystemExit(0)),
    "mapping out of memory": Trap(MemoryError()),
    "integer of 5,000 digits": 10**5000,
    "array of objects": np.array([object()]),
    "key that is no key again": {frozenset((1,)): 2},
    "key of a foreign type": {Exits: 1},
    "broken image": Image.from_bytes(b"not an image"),
    "image without its file": Image.deferred(
        lambda: (_ for _ in ()).throw(OSError("gone")), sha256="0" * 64
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", ["task", "reset_info", "metadata", "info", "extras", "tool_call"])
def test_prepare_refuses_what_json_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    monkeypatch.setattr(plain, "MAX_VALUES", 10_000)
    trajectory = _with(example(), place, {"value": REFUSED[name]})
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(example(1))
        before = writer.path.read_bytes()
        with pytest.raises(StorageError, match=f"episode '{trajectory.episode_id}' cannot be stor"):
            writer.prepare(trajectory)
        writer.write(example(2))
    assert writer.path.read_bytes().startswith(before)
    assert load(tmp_path) == (example(1), example(2))


def _with(trajectory: Trajectory, place: str, value: Any) -> Trajectory:
    if place in ("task", "reset_info", "metadata"):
        return replace(trajectory, **{place: value})
    if place == "extras":
        segments = list(trajectory.segments)
        segments[1] = replace(segments[1], extras=value)
        return replace(trajectory, segments=tuple(segments))
    first, *rest = trajectory.turns
    return replace(trajectory, turns=(replace(first, **{place: value}), *rest))


WRONG: list[tuple[str, Any]] = [
    ("episode_id", 7),
    ("episode_id", Rude()),
    ("env_id", None),
    ("seed", "3"),
    ("seed", 10**5000),
    ("group_id", 1),
    ("reward", "high"),
    ("engine", b"sglang"),
    ("stop_reason", "bored"),
    ("stop_reason", Exits()),
    ("env_snapshot", "text"),
    ("metadata", ["a list"]),
    ("messages", ("a text",)),
    ("segments", None),
    ("turns", (None,)),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_prepare_refuses_a_field_of_the_wrong_type(tmp_path: Path, case: int) -> None:
    field, value = WRONG[case]
    wrong: Any = {field: value}
    with (
        TrajectoryWriter(tmp_path) as writer,
        pytest.raises(StorageError, match=r"^episode .* cannot be stored"),
    ):
        writer.prepare(replace(example(), **wrong))


def test_prepare_refuses_ids_that_could_not_be_read_back(tmp_path: Path) -> None:
    prompt, ids = example().segments[0], (-1, 2)
    changed = replace(prompt, train_ids=ids, wire_ids=ids, loss_mask=(0, 0), logprobs=(0.0, 0.0))
    trajectory = replace(example(), segments=(changed, *example().segments[1:]))
    with (
        TrajectoryWriter(tmp_path) as writer,
        pytest.raises(StorageError, match="cannot be stored"),
    ):
        writer.prepare(trajectory)


def test_prepare_lets_the_user_interrupt(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer, pytest.raises(KeyboardInterrupt):
        writer.prepare(replace(example(), metadata={"trap": Trap(KeyboardInterrupt())}))


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["\ud800", "\udfff\ud800", "\x00", "\u2028", "$float", "$pairs"])
    | st.binary(max_size=4)
    | st.sampled_from(
        [np.float32(1.5), np.int64(-3), np.bool_(True), np.longdouble(2), np.zeros(0)]
    )
)
_KEYS = (
    st.text(max_size=4) | st.integers() | st.none() | st.binary(max_size=2)
    | st.tuples(st.integers(), st.text(max_size=2))
    | st.sampled_from(["$image", "$pairs", "\ud800"])
)  # fmt: skip
_GARBAGE = st.recursive(
    _SCALARS
    | st.sampled_from([{1}, object(), 1j])
    | st.builds(Rude)
    | st.builds(Exits)
    | st.builds(lambda: Trap(Rude()))
    | st.builds(lambda: 10**5000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_TEXT = st.text(st.characters(), max_size=6) | st.just("\ud800\udc00\ud800")


@quick
@given(value=_GARBAGE, text=_TEXT)
def test_whatever_prepare_accepts_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, value: Any, text: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    trajectory = replace(
        _with(_with(example(), "info", {"value": value}), "tool_call", {"text": text}),
        episode_id=text,
        env_id=text,
        task={"value": value, "text": text},
        group_id=text,
        engine=text,
        metadata={"value": value, text: text},
        messages=({"role": "user", "content": text}, *example().messages[1:]),
    )
    with TrajectoryWriter(folder) as writer:
        try:
            prepared = writer.prepare(trajectory)
        except StorageError as error:
            refused = str(error)
        else:
            refused = ""
            writer.append(prepared)
    if refused:
        assert f"episode {text!r} cannot be stored" in refused
        return
    (line,) = read_lines(folder)
    assert line.error is None
    assert line.trajectory is not None
    assert line.certificate == certify(line.trajectory)
    assert line.trajectory.episode_id == _joined(text)
    assert line.trajectory.messages[0] == {"role": "user", "content": _joined(text)}
    assert set(line.trajectory.metadata) == {"value", _joined(text)}


def _joined(text: str) -> str:
    """Return text as JSON keeps it: two halves of a surrogate pair side by side are one."""
    return str(json.loads(json.dumps(text)))


def test_keys_that_are_tuples_come_back_as_tuples(tmp_path: Path) -> None:
    info = {(1, ("a", None)): "x", 2: b"y", b"z": 3.0}
    trajectory = replace(example(), metadata={"pairs": info})
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(trajectory)
    assert load(tmp_path)[0].metadata["pairs"] == info


def test_nesting_up_to_the_limit_is_read_back(tmp_path: Path) -> None:
    trajectory = replace(example(), metadata={"deep": _nested(MAX_DEPTH - 1)})
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(trajectory)
    assert load(tmp_path)[0].metadata == trajectory.metadata


@quick
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
        max_leaves=30,
    )
)  # fmt: skip
def test_text_in_parts_is_the_text_of_the_whole(value: Any) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(plain, "_CHUNK", 3)
        small.setattr(plain, "_CHARACTERS", 2)
        parts = list(json_chunks(value))
    assert "".join(parts) == json.dumps(value, separators=(",", ":"), allow_nan=False)


def test_text_of_a_long_column_is_written_in_parts() -> None:
    column = [math.pi] * (5 * plain._CHUNK)  # pyright: ignore[reportPrivateUsage]
    parts = list(json_chunks({"segments": [{"logprobs": column}]}))
    assert max(map(len, parts)) <= len(json.dumps(column)) / 4


def test_a_fault_is_stored_with_its_traceback(tmp_path: Path) -> None:
    fault = FaultRecord(
        where=FaultPlace.LEDGER, kind=FaultKind.CRASHED, message="\ud800", traceback="line 1"
    )
    trajectory = build((), stop_reason=StopReason.ENV_FAULT, fault=fault)
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(trajectory)
    assert load(tmp_path)[0].fault == fault


@pytest.mark.parametrize(
    ("old", "place"),
    [
        *((name, FaultPlace(name)) for name in ("reset", "step", "snapshot", "generate")),
        *((name, FaultPlace(name)) for name in ("ledger", "rewards")),
        ("encode", FaultPlace.LEDGER),
    ],
)
def test_faults_of_older_files_are_read(tmp_path: Path, old: str, place: FaultPlace) -> None:
    _store_fault(tmp_path, {"where": old, "kind": "timeout", "message": "late"})
    assert load(tmp_path)[0].fault == FaultRecord(
        where=place, kind=FaultKind.TIMEOUT, message="late"
    )


@pytest.mark.parametrize("field", ["where", "kind"])
def test_an_unknown_fault_is_a_clear_error(tmp_path: Path, field: str) -> None:
    _store_fault(tmp_path, {"where": "step", "kind": "timeout", "message": "", field: "moon"})
    with pytest.raises(StorageError, match=rf"fault\.{field} must be one of .*got 'moon'"):
        load(tmp_path)


def _store_fault(folder: Path, fault: dict[str, str]) -> None:
    with TrajectoryWriter(folder) as writer:
        writer.write(example(stop_reason=StopReason.ENV_FAULT))
    row = json.loads(writer.path.read_bytes())
    writer.path.write_text(json.dumps({**row, "fault": fault}) + "\n")


def test_an_image_that_another_run_deleted_is_written_again(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(example(0))
        (tmp_path / "images" / f"{picture(0).sha256}.png").unlink()
        writer.write(example(0, episode_id="again"))
    assert [image.pil() for image in load(tmp_path)[1].images()]
