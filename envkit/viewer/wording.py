"""Words and numbers for text pages, formatted as in the browser viewer."""

import math
from collections.abc import Mapping
from typing import Any, Final, cast

STOPS: Final = {
    "terminated": "ended by the environment",
    "env_truncated": "the environment's turn limit",
    "max_turns": "ran out of turns",
    "turn_tokens": "reply too long",
    "response_tokens": "ran out of tokens",
    "sampled_tokens": "ran out of sampled tokens",
    "context_tokens": "context is full",
    "max_images": "too many images",
    "max_sequences": "too many sequences",
    "episode_timeout": "episode timed out",
    "step_timeout": "step timed out",
    "aborted": "stopped",
    "env_fault": "environment fault",
    "engine_fault": "engine fault",
    "ledger_fault": "ledger fault",
}
"""Stop reasons in words, as in `assets/model.js`."""
CHECKS: Final = {
    "equal": "checked, equal to the full render",
    "whitespace": "checked, differs from the full render in white space",
    "different": "checked, different from the full render",
    "unchecked": "unchecked, no comparison was possible",
}
"""How an observation's tokens compare with a full render, as in `assets/model.js`."""
NOTHING: Final = "\N{EN DASH}"
"""Placeholder for a missing value."""
TIMES: Final = "\N{MULTIPLICATION SIGN}"
_MINUS: Final = "\N{MINUS SIGN}"
_HUGE: Final = 1e15
"""Larger numbers are written with an exponent; their digits would fill the line."""
_NUMBERS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def stop_words(stop: str) -> str:
    """Return why an episode ended, in words."""
    return STOPS.get(stop, stop)


def numeric(value: object) -> float:
    """Return a number of JSON data; NaN for anything else, such as an integer beyond any float."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.nan
    if isinstance(value, dict):
        return _NUMBERS.get(str(cast("dict[str, Any]", value).get("$float")), math.nan)
    return math.nan


def number(value: object, digits: int = 2) -> str:
    """Return a number as text: whole ones without a point, others with fixed digits."""
    x = numeric(value)
    if math.isnan(x):
        return "nan" if isinstance(value, (dict, float)) else NOTHING
    if math.isinf(x):
        return f"{_MINUS}∞" if x < 0 else "∞"
    if abs(x) >= _HUGE:
        return f"{x:.2e}".replace("-", _MINUS)
    text = f"{x:,.0f}" if float(x).is_integer() else f"{x:,.{digits}f}"
    return text.replace("-", _MINUS)


def signed(value: float) -> str:
    """Return a number with its sign."""
    return ("+" if value > 0 else _MINUS if value < 0 else "") + number(abs(value))


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{math.floor(100 * share + 0.5)}%"


def seconds(value: object) -> str:
    """Return a time in a suitable unit."""
    x = numeric(value)
    if not math.isfinite(x):
        return NOTHING
    if x == 0:
        return "0 s"
    if x < 0.001:
        return f"{round(x * 1e6):,} µs"
    return f"{round(x * 1e3):,} ms" if x < 1 else f"{number(x, 1)} s"


def rule_words(by: Mapping[str, Any]) -> str:
    """Return what success goes by, from `solved` of the figures, as `ruleOf` of the browser."""
    thresholds = " to ".join(map(number, by["thresholds"]))
    found = [
        f"reward ≥ {thresholds}" if thresholds else "",
        "own verdict" if by["verdicts"] else "",
    ]
    return " or ".join(filter(None, found))


def clipped(text: str, most: int = 160) -> str:
    """Return a text on one line, truncated if long."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
