"""Fast JSON reads what the standard library reads, and writes what it can read."""

import gc
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envkit import fast_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_values_survive_writing_and_reading(value: object) -> None:
    assert fast_json.loads(fast_json.dumps(value)) == value == json.loads(fast_json.dumps(value))


@given(st.text(max_size=30) | JSON.map(json.dumps))
@example("NaN")
@example("[1e400]")
@example('"\\ud800"')
@example("\ufeff1")
@example("123456789012345678901234567890")
@example("-0.0")
@example('{"a":1,"a":2}')
def test_any_text_reads_as_with_the_standard_library(text: str) -> None:
    def read(loads: object) -> object:
        try:
            return repr(loads(text))  # type: ignore[operator]
        except ValueError:
            return ValueError

    def read_yielding(text: str) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast_json, "_MAX_HELD_BYTES", 0)
            return fast_json.loads_large(text)

    assert read(fast_json.loads) == read(fast_json.loads_large) == read(json.loads)
    assert read(read_yielding) == read(json.loads)


def test_long_text_does_not_stop_other_threads() -> None:
    ticks, is_read = [0], threading.Event()

    def tick() -> None:
        while not is_read.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        found = fast_json.loads_large(b"[" + b"[]," * (1 << 20) + b"[]]")
    finally:
        is_read.set()
        thread.join()
    assert len(found) == (1 << 20) + 1
    assert ticks[0] > 5  # a C parser lets it run at most twice


def test_raw_json_is_copied_into_a_document() -> None:
    assert fast_json.dumps({"a": fast_json.Raw(b"[1,2]"), "b": 0.5}) == b'{"a":[1,2],"b":0.5}'


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        fast_json.loads(b'"\xff"')


QUICK = 100_000
HELD = 250_000


@contextmanager
def counting_collections() -> Generator[list[int]]:
    """Yield a list that gets the generation of each collection."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


@given(JSON)
def test_no_document_has_more_values_than_are_counted(value: object) -> None:
    def count(value: object) -> int:
        if isinstance(value, dict):
            return 1 + sum(1 + count(one) for one in value.values())
        return 1 + (sum(map(count, value)) if isinstance(value, list) else 0)

    assert 1 + fast_json.values_in(fast_json.dumps(value)) >= count(value)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_values_are_counted_in_every_block(size: int) -> None:
    assert fast_json.values_in(b"," * size) == size
    assert fast_json.values_in(b" " * size + b"[{,:]}") == 4


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize(
    ("data", "is_quick"),
    [
        (b"," * QUICK, True),
        (b" " + b"," * QUICK, True),
        (b"," * (QUICK + 1), False),
        (b" " * (1 << 20), True),
        (b" " * ((1 << 20) + 1), False),
    ],
)
def test_event_loop_reads_few_bytes_and_values(data: bytes, is_quick: bool, is_text: bool) -> None:
    assert fast_json.is_quick(data.decode() if is_text else data) is is_quick


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize(
    ("data", "is_held"),
    [
        (b"[" + b"1," * (HELD - 2) + b"1]", True),
        (b"[" + b"1," * (HELD - 1) + b"1]", True),
        (b"[" + b"1," * HELD + b"1]", False),
        (b'"' + b"a" * ((4 << 20) - 2) + b'"', True),
        (b'"' + b"a" * ((4 << 20) - 1) + b'"', False),
    ],
)
def test_c_parser_reads_only_what_it_reads_soon(
    data: bytes, is_held: bool, is_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    loads = fast_json.loads

    def noted(data: bytes | str) -> object:
        read.append(len(data))
        return loads(data)

    monkeypatch.setattr(fast_json, "loads", noted)
    assert fast_json.loads_large(data.decode() if is_text else data) == json.loads(data)
    assert bool(read) is is_held


@pytest.mark.parametrize("lists", [100_000, 200_000])
def test_nothing_is_collected_while_many_lists_are_read(lists: int) -> None:
    body = b"[" + b"[]," * lists + b"[]]"
    with counting_collections() as found, fast_json.collection.paused():
        fast_json.loads_large(body)  # its own pause ends inside this one
        assert not gc.isenabled()
        assert not found
    assert gc.isenabled()
    with pytest.raises(ValueError, match="line 1"):
        fast_json.loads_large(body + b"]")
    assert gc.isenabled()


def test_collection_stays_off_if_the_caller_turned_it_off() -> None:
    assert fast_json.collection.is_enabled
    gc.disable()
    try:
        with fast_json.collection.paused():
            assert not fast_json.collection.is_enabled
        assert not gc.isenabled()
    finally:
        gc.enable()
    with fast_json.collection.paused():
        assert fast_json.collection.is_enabled
