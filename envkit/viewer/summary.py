"""What the table of runs shows of one run, as JSON data."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from statistics import fmean
from typing import Any, Final, cast

from envkit.viewer.live_run import LiveRun

_BUCKETS: Final = 24
_FEWEST: Final = 4
_CELLS: Final = 36
_MOST_SETTINGS: Final = 500
_LONGEST: Final = 500
_DEEPEST: Final = 8
_SHOWN: Final = (
    "environments",
    "reward",
    "solved",
    "groups",
    "faults",
    "broken",
    "unread",
    "turns",
    "seconds",
    "stops",
)
"""Of the figures of a run."""


def summary(run: LiveRun) -> dict[str, Any]:
    """Return the row of a run; the figures are of the episodes read so far."""
    figures, settings, rewards = run.figures(), run.settings, run.rewards()
    planned = settings.get("env_id")
    sampled = dict(figures["metrics"]).get("tokens/response/mean")
    return {
        "name": run.name,
        "state": _state(run),
        "episodes": run.count,
        "expected": run.expected,
        "modified": run.modified,
        **{name: figures[name] for name in _SHOWN},
        "environments": figures["environments"] or ([planned] if isinstance(planned, str) else []),
        "policy": _policy(settings) or ", ".join(figures["engines"]),
        "seed": _seed(settings),
        "step": run.step,
        "tokens": sampled,
        "spark": _spark(rewards),
        "cells": _cells(run.group_means()),
        "settings": flat(settings),
    }


def _state(run: LiveRun) -> str:
    """Return "reading", "live", "waiting", "stopped" or "complete"."""
    if run.is_behind:
        return "reading"
    if run.is_live:
        return "live" if run.count else "waiting"
    is_short = run.expected is not None and run.count < run.expected
    return "stopped" if is_short else "complete"


def _policy(settings: Mapping[str, Any]) -> str:
    """Return what played: the scripted policy, or the model by the last part of its name."""
    given = settings.get("engine")
    engine = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    for key in ("policy", "model", "chat", "name"):
        if isinstance(name := engine.get(key), str) and name:
            return PurePosixPath(name).name or name
    return ""


def _seed(settings: Mapping[str, Any]) -> int | None:
    config = settings.get("config")
    seed: Any = cast("dict[str, Any]", config).get("seed") if isinstance(config, dict) else None
    return seed if type(seed) is int else None


def _spark(rewards: Sequence[float]) -> list[float]:
    """Return mean rewards of up to 24 stretches of the file, in its order; none of a short file."""
    count = min(_BUCKETS, len(rewards) // _FEWEST)
    ends = [len(rewards) * n // count for n in range(count + 1)] if count else []
    return [round(fmean(rewards[a:b]), 4) for a, b in pairwise(ends)]


def _cells(means: Sequence[float]) -> list[float]:
    """Return up to 36 of the groups' means, spread evenly from the best to the worst."""
    count = min(_CELLS, len(means))
    places = [n * (len(means) - 1) // max(1, count - 1) for n in range(count)]
    return [round(means[place], 4) for place in places]


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return nested settings as one level of text.

    Args:
        settings: JSON data, as a file holds it.

    Returns:
        By names such as "config.sampling.temperature"; at most 500, and 500 characters of each.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = list(settings.items())[::-1]
    while waiting and len(found) < _MOST_SETTINGS:
        name, value = waiting.pop()
        inner = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if inner and name.count(".") < _DEEPEST:
            waiting += [(f"{name}.{key}", inner[key]) for key in reversed(inner)]
        else:
            found[name[:_LONGEST]] = _written(cast("object", value))[:_LONGEST]
    return found


def _written(value: object) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        return "…"
