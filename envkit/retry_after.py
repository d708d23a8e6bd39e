"""The retry delay that a server requests in its response headers.

`Retry-After` is whole seconds or a date (RFC 9110, 10.2.3); some servers send fractions of seconds.
`retry-after-ms` is OpenAI's own header and more precise, so it comes first. Invalid values are
ignored: a bad header is no reason to abandon a call.
"""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

LONGEST_S: Final = 1e9
"""Upper limit on the delay in seconds; about thirty years."""

UNAVAILABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""HTTP statuses of a server that accepts no requests for now."""

_DECIMAL: Final = re.compile(r"[ \t]*-?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})[ \t]*", re.ASCII)


def retry_after(
    headers: Mapping[str, str], *, wall_clock: Callable[[], float] = time.time
) -> float | None:
    """Return the seconds to wait, 0 to `LONGEST_S`; None without a readable header.

    Args:
        headers: Headers of the response. Names are in lowercase or in the standard spelling, or the
            mapping ignores case, as aiohttp's does.
        wall_clock: Seconds since 1970, for a date.
    """
    milliseconds = _decimal(_header(headers, "retry-after-ms"))
    if milliseconds is not None:
        return min(LONGEST_S, milliseconds / 1000)
    value = _header(headers, "Retry-After")
    seconds = _decimal(value)
    if seconds is None:
        seconds = _until(value, wall_clock)
    return None if seconds is None else min(LONGEST_S, seconds)


def _header(headers: Mapping[str, str], name: str) -> str:
    return headers.get(name) or headers.get(name.lower()) or ""


def _decimal(value: str) -> float | None:
    """Parse a number, clamped to at least 0; None if it is not a number."""
    return max(0.0, float(value)) if _DECIMAL.fullmatch(value) else None


def _until(value: str, wall_clock: Callable[[], float]) -> float | None:
    """Return the seconds until a date, 0 if it is past; None if it is not a date."""
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:  # "-0000": UTC from a machine that does not say where it is
            date = date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - wall_clock())
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
