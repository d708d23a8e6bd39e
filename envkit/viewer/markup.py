"""Encodes untrusted content for a page, so it can neither become markup nor run."""

import base64
import json
import math
import zlib
from contextlib import suppress
from html import escape
from typing import Any, Final, cast

from envkit import fast_json
from envkit.text import utf8

_COMPRESSION: Final = 6


def pack(data: object) -> str:
    """Return JSON data compressed and in base64, for the page script's `unpack`."""
    packed = zlib.compress(wire_json(data), _COMPRESSION)
    return base64.b64encode(packed).decode("ascii")


def safe_json(data: object) -> str:
    """Return JSON in which nothing can end a script element or open a comment."""
    text = wire_json(data).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def wire_json(data: Any) -> bytes:  # noqa: ANN401  # JSON data
    """Return JSON; infinities and NaN, from a hostile file, become null."""
    with suppress(TypeError, ValueError):  # a lone surrogate
        return fast_json.dumps(data)
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def _finite(data: Any) -> Any:  # noqa: ANN401  # JSON data
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in cast("dict[str, Any]", data).items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in cast("list[Any]", data)]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def json_text(data: object) -> str:
    """Return a text as it is, and other JSON data as JSON."""
    try:
        return data if isinstance(data, str) else json.dumps(data)
    except RecursionError:
        return "…"


def safe_html(text: str) -> str:
    """Return escaped HTML text; lone surrogates, which UTF-8 cannot encode, become `?`."""
    return escape(utf8(text))
