"""Fast JSON reads what the standard library reads, and writes what it can read."""

import json
import threading
import time

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
