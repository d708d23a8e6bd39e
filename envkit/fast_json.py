"""JSON through a C library, for what every turn and every line of a run reads or writes.

msgspec reads a reply four times as fast as the standard library, and takes JSON that is already
encoded (`Raw`). It keeps integers of any size, which orjson turns into floats.
"""

import json
import json.decoder
import json.scanner
from typing import Any, Final

import msgspec

Raw: Final = msgspec.Raw
"""Encoded JSON that `dumps` copies into a larger document."""
_encoder: Final = msgspec.json.Encoder()
dumps: Final = _encoder.encode
"""Return a value as compact JSON bytes. A number that is not finite becomes null: check before."""
_MAX_HELD_BYTES: Final = 2 << 20


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


def loads_large(data: bytes | str) -> Any:  # noqa: ANN401  # any JSON
    """Return what `loads` returns, without stopping the other threads for long.

    A C parser holds the interpreter's lock throughout: 6 to 18 ms per megabyte, on any thread. Long
    text is therefore parsed by Python's own parser, which is some twenty times slower except in
    strings.

    Raises:
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    if len(data) <= _MAX_HELD_BYTES:
        return loads(data)
    if isinstance(data, bytes):
        data = data.decode(json.detect_encoding(data), "surrogatepass")
    return _yielding_decoder().decode(data)


def _yielding_decoder() -> json.JSONDecoder:
    decoder, decoding, scanning = map(_untyped, (json.JSONDecoder(), json.decoder, json.scanner))
    decoder.parse_object, decoder.parse_array = decoding.JSONObject, decoding.JSONArray
    decoder.scan_once = scanning.py_make_scanner(decoder)
    return decoder


def _untyped(value: object) -> Any:  # noqa: ANN401  # its stubs lack what is used
    return value
