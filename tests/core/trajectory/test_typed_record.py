"""The fast reading of a line: it returns what the careful one returns, or leaves the line to it."""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fakes.hostile_rows import VALUES, WORDS, mutated
from fakes.trajectories import Context, Reply, build, example, picture, quick, trajectories
from hypothesis import example as case
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import FaultKind, StorageError
from envkit.images import Image
from envkit.trajectory import (
    Branch,
    FaultPlace,
    FaultRecord,
    Origin,
    StopReason,
    Trajectory,
    certify,
    storage,
    typed_record,
)
from envkit.trajectory.image_folder import ImageFolder
from envkit.trajectory.record import SCHEMA, encode
from envkit.trajectory.storage import parse_line
from envkit.trajectory.typed_record import read_typed

FILE = Path("run.jsonl")
FOLDER = ImageFolder(Path("images"))


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Let every test make the types itself, so that coverage says which tests hold a line."""
    for cached in (typed_record._decoder, typed_record._kinds_of, typed_record._building):
        cached.cache_clear()


def row_of(trajectory: Trajectory) -> dict[str, Any]:
    return encode(trajectory, certify(trajectory), lambda _: None)


def line_of(trajectory: Trajectory) -> bytes:
    return json.dumps(row_of(trajectory)).encode() + b"\n"


def full(**changes: Any) -> Trajectory:
    """Return a trajectory with a value in every field, images and values with a tag."""
    replies = (
        Reply(
            observation=Context(images=(picture(1),), expansion=2),
            tool_call={"name": "look", "arguments": {"at": picture(2)}},
            env_retries={"timeout": 1},
            info={"deep": {"list": [1, {"a": [float("nan")]}]}, "raw": b"\0\1"},
        ),
        Reply(observation=Context(text_ids=(7,)), starts_sequence=True, parse_error="no call"),
        Reply(logprobs=(-1.0, 0.0, -0.0)),
    )
    trajectory = build(
        replies,
        prompt=Context(images=(picture(0),)),
        stop_reason=StopReason.ENV_FAULT,
        fault=FaultRecord(
            where=FaultPlace.STEP, kind=FaultKind.TIMEOUT, message="late", traceback="in step"
        ),
        group_id="group",
        env_snapshot=b"state",
        metadata={"table": np.arange(3), (1, "key"): None, "$": {"$only": 1}},
        reset_info={"big": 10**30, "empty": [[], {}]},
        origin=Origin(episode_id="parent", segments=1, turns=0, root="oldest"),
    )
    first, second, third = trajectory.turns
    branch = Branch(
        segment=4, parent=0, reason="cut", message_count=2, history=(0, *trajectory.messages[1:2])
    )
    values: dict[str, Any] = {
        "turns": (first, replace(second, purpose="summary", call=1, neutralised=2), third),
        "branches": (branch,),
        **changes,
    }
    return replace(trajectory, **values)


def seen(line: bytes) -> str:
    """Return everything that a line was read as, with the type of every number, or the error."""
    stored = parse_line(FILE, 3, line, FOLDER)
    shown = f"{stored.error}{stored.is_cut}{stored.trajectory!r}{stored.certificate!r}"
    if stored.trajectory is None or stored.certificate is None:
        return shown
    shown += repr(stored.trajectory.env_snapshot)
    with contextlib.suppress(StorageError):  # some numbers are read, but not written again
        shown += json.dumps(encode(stored.trajectory, stored.certificate, lambda _: None))
    return shown


def nothing(*_: object) -> None:
    """Read no line fast."""


def assert_same(line: bytes) -> None:
    fast = seen(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "read_typed", nothing)
        assert seen(line) == fast


@quick
@given(trajectories())
def test_sound_record_reads_as_the_careful_reading_reads_it(trajectory: Trajectory) -> None:
    assert_same(line_of(trajectory))


@quick
@given(st.randoms(use_true_random=False), trajectories() | st.just(full()) | st.just(example()))
def test_damaged_record_reads_or_fails_as_in_the_careful_reading(
    random: Random, trajectory: Trajectory
) -> None:
    assert_same(mutated(row_of(trajectory), random))


@quick
@given(st.binary(min_size=1, max_size=3), st.integers(min_value=0), st.booleans())
@case(b"\xff", 20, True)  # text that is not UTF-8
@case(b"\xed\xa0\x80", 20, True)  # a lone surrogate, which only Python encodes
@case(b"\\ud800", 20, True)
@case(b"\x0b", 12, False)
@case(b"\xef\xbb\xbf", 0, False)
@case(b" \r", 1, False)
def test_changed_bytes_read_or_fail_as_in_the_careful_reading(
    new: bytes, place: int, is_insertion: bool
) -> None:
    line = line_of(full())
    place %= len(line)
    assert_same(line[:place] + new + line[place + (0 if is_insertion else len(new)) :])


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container with each key, the last two entries of a list only."""
    for key in list(value) if isinstance(value, dict) else range(len(value))[-2:]:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def test_every_field_refuses_what_the_careful_reading_refuses() -> None:
    row = row_of(full())
    numbers = (-(2**63), 1 - 2**63, 2**63 - 1, 2**64, 10**30, -1, 2, 1.0, -0.0, True)
    others = ("MODEL", "encode", "c3RhdGU=", "c3Rh dGU=", "\u00e9", {"$float": "inf"}, {"$x": 1})
    for holder, key in list(places(row)):
        before = holder[key]
        for value in Random(repr(key)).sample((*numbers, *others, *VALUES), 6):
            holder[key] = value
            assert_same(json.dumps(row).encode())
        del holder[key]
        assert_same(json.dumps(row).encode())
        holder.insert(key, before) if isinstance(holder, list) else holder.update({key: before})


@pytest.mark.parametrize("word", [*WORDS.values(), "1e400", "1e5", "-0", "01", '{"$float": "nan"}'])
def test_unusual_json_reads_or_fails_as_in_the_careful_reading(word: str) -> None:
    row = row_of(full())
    for holder, key in list(places(row)):
        before, holder[key] = holder[key], "WORD"
        assert_same(json.dumps(row).replace('"WORD"', word).encode())
        holder[key] = before


@pytest.mark.parametrize("depth", range(97, 103))
def test_nesting_has_the_same_limit(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    for key in ("task", "metadata", "messages"):
        row = row_of(full())
        row[key] = [{"role": "user", "content": "", "x": "DEEP"}] if key == "messages" else "DEEP"
        line = json.dumps(row).replace('"DEEP"', f'{{"a": {nested}}}').encode()
        assert_same(line)
        is_read = parse_line(FILE, 1, line, FOLDER).trajectory is not None
        assert (read_typed(line, FOLDER.read) is not None) == is_read


def test_repeated_keys_count_once_and_the_last_one_counts() -> None:
    line = line_of(full())
    for key, value in (("reward", "2"), ("task", "{}"), ("segments", "[]"), ("seed", "true")):
        assert_same(b'{"%b": %b, %b' % (key.encode(), value.encode(), line[1:]))
        assert_same(b'%b, "%b": %b}' % (line.rstrip()[:-1], key.encode(), value.encode()))


@pytest.mark.parametrize("value", [0, -1, 1, SCHEMA + 1, True, 1.0, None, "1"])
def test_schema_is_checked_as_in_the_careful_reading(value: object) -> None:
    assert_same(json.dumps({**row_of(full()), "schema": value}).encode())


@pytest.mark.parametrize("text", ["c3Rh dGU=", "c3RhdGU", "c3RhdGU=\n", "*c3RhdGU=", "\u00e9", ""])
def test_bytes_are_checked_as_in_the_careful_reading(text: str) -> None:
    assert_same(json.dumps({**row_of(full()), "env_snapshot": text}).encode())


@pytest.mark.parametrize(
    "text", [rb'"\x"', b'"\t"', b"1", b"[[]]", rb'"\ud800"', b'"\xff"', b"1e400"]
)
def test_unknown_fields_are_checked_as_in_the_careful_reading(text: bytes) -> None:
    line = line_of(full())
    for place in (match.end() for match in re.finditer(rb"\{(?=.)", line)):
        assert_same(line[:place] + b'"unknown": %b, ' % text + line[place:])


@pytest.mark.parametrize(
    "message",
    [
        {"role": [], "content": "a"},
        {"role": {}, "content": "a"},
        {"role": "robot", "content": "a"},
        {"role": "user", "content": None},
        {"role": "user", "name": "a"},
        {"role": "user", "content": "a", "trusted": [[0, 2]]},
        {"content": "a"},
    ],
)
def test_messages_are_checked_as_in_the_careful_reading(message: object) -> None:
    assert_same(json.dumps({**row_of(full()), "messages": [message]}).encode())


def unreadable(*_: object) -> Image:
    raise AssertionError


def test_ordinary_records_are_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2**63 - 1
    large = build((Reply(ids=(0, most, 1)),), prompt=Context(text_ids=(most,)), env_restarts=most)
    small = build((Reply(),), env_restarts=-most)
    rows = (full(), example(), build((Reply(),)), large, small)
    lines = [line_of(trajectory) for trajectory in rows]
    before = [seen(line) for line in lines]
    monkeypatch.setattr(storage, "decode", unreadable)
    assert [seen(line) for line in lines] == before
    assert not any("Error" in text for text in before)


def test_columns_that_follow_from_the_segment_are_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = json.dumps(row_of(build((Reply(logprobs=(0.0,) * 3),))), separators=(",", ":")).encode()
    columns, read = list[bytes](), typed_record._read_ids

    def counted(column: bytes) -> list[int]:
        columns.append(bytes(column))
        return read(column)

    monkeypatch.setattr(typed_record, "_read_ids", counted)
    monkeypatch.setattr(typed_record, "_read_floats", unreadable)
    monkeypatch.setattr(typed_record, "from_plain", unreadable)
    found = read_typed(line, unreadable)
    assert found is not None
    assert columns == [b"[11,12,13,14]", b"[101,102,103]"]
    stored = [
        segment.stored(name)
        for segment in found[0].segments
        for name in ("train_ids", "loss_mask", "logprobs")
    ]
    assert stored == [None] * 6
