"""JSON through a C library, for what every turn and every line of a run reads or writes.

msgspec reads a reply four times as fast as the standard library, and takes JSON that is already
encoded (`Raw`). It keeps integers of any size, which orjson turns into floats.
"""

import contextlib
import gc
import json
import json.decoder
import json.scanner
import threading
from collections.abc import Generator
from typing import Any, Final

import msgspec

Raw: Final = msgspec.Raw
"""Encoded JSON that `dumps` copies into a larger document."""
_encoder: Final = msgspec.json.Encoder()
dumps: Final = _encoder.encode
"""Return a value as compact JSON bytes. A number that is not finite becomes null: check before."""
_QUICK_BYTES: Final = 1 << 20
_QUICK_VALUES: Final = 100_000
"""Units of `values_in` that the C parser reads in about 5 ms."""
_MAX_HELD_BYTES: Final = 4 << 20
_MAX_HELD_VALUES: Final = 250_000
"""Units of `values_in` that the C parser reads in 5 to 40 ms; 32,768 tokens of SGLang: 164,000."""
_MARKS: Final = b",:[{"
_BLOCK: Final = 1 << 20


def loads(data: bytes | str) -> Any:  # noqa: ANN401  # any JSON
    """Return what `json.loads` returns.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError):
        # NaN, lone surrogates and a byte order mark are Python's extensions; its errors say more.
        return json.loads(data)


def values_in(data: bytes) -> int:
    """Return at least the number of values in JSON, which decides how long it takes to read.

    Every value but the outermost has a comma or bracket before it. Keys count too, and so do these
    signs inside strings.
    """
    starts = range(0, len(data), _BLOCK)  # each block releases the interpreter's lock
    return sum(
        len(block) - len(block.translate(None, _MARKS))
        for block in (data[start : start + _BLOCK] for start in starts)
    )


def is_quick(data: bytes | str) -> bool:
    """Return whether the event loop may read the JSON, which then takes about 5 ms."""
    if len(data) <= _QUICK_VALUES:
        return True
    return len(data) <= _QUICK_BYTES and values_in(_bytes_of(data)) <= _QUICK_VALUES


def loads_large(data: bytes | str) -> Any:  # noqa: ANN401  # any JSON
    """Return what `loads` returns, without stopping the other threads for long.

    A C parser holds the interpreter's lock throughout, on any thread. Long text is therefore parsed
    by Python's own parser, which is some twenty times slower except in strings. Without a pause,
    garbage collection would take ten times as long as the parser for half a million lists.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    with collection.paused():
        if len(data) <= _MAX_HELD_VALUES or (
            len(data) <= _MAX_HELD_BYTES and values_in(_bytes_of(data)) <= _MAX_HELD_VALUES
        ):
            return loads(data)
        if isinstance(data, bytes):
            data = data.decode(json.detect_encoding(data), "surrogatepass")
        return _yielding_decoder().decode(data)


def _bytes_of(data: bytes | str) -> bytes:
    return data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")


class _Collection:
    """The interpreter's garbage collection, which several threads may pause at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0
        self._was_enabled = False

    @property
    def is_enabled(self) -> bool:
        """Whether the process collects, apart from pauses."""
        with self._lock:
            return self._was_enabled if self._pauses else gc.isenabled()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Collect nothing meanwhile: JSON has no reference cycles."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                self._was_enabled = gc.isenabled()
                gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if not self._pauses and self._was_enabled:
                    gc.enable()


collection: Final = _Collection()


def _yielding_decoder() -> json.JSONDecoder:
    decoder, decoding, scanning = map(_untyped, (json.JSONDecoder(), json.decoder, json.scanner))
    decoder.parse_object, decoder.parse_array = decoding.JSONObject, decoding.JSONArray
    decoder.scan_once = scanning.py_make_scanner(decoder)
    return decoder


def _untyped(value: object) -> Any:  # noqa: ANN401  # its stubs lack what is used
    return value
