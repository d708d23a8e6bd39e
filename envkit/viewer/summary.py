"""A row of the run table, as JSON data."""

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from pathlib import PurePosixPath
from statistics import fmean
from typing import Any, Final, cast

from envkit.success import finite
from envkit.viewer.figures import elapsed_seconds, finite_rewards, groups_of
from envkit.viewer.live_run import LiveRun
from envkit.viewer.markup import json_text
from envkit.viewer.recorded import recorded_figures
from envkit.viewer.rows import EpisodeRow

_BUCKETS: Final = 24
_MIN_PER_BUCKET: Final = 4
_CELLS: Final = 36
_MAX_SETTINGS: Final = 500
_MAX_TEXT: Final = 500
_MAX_DEPTH: Final = 8
_MAX_METRICS: Final = 400
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
"""Figures that a row contains."""


def summary(run: LiveRun) -> dict[str, Any]:
    """Return the row of a run, with the figures of the episodes read so far.

    Before a run that has ended is read, they are those of its rollout.
    """
    is_summed, settings = run.is_summed, run.settings
    figures = recorded_figures(run.recorded) if is_summed else run.figures()
    rows = [] if is_summed else run.rows()
    count = figures["episodes"] if is_summed else run.count
    planned = settings.get("env_id")
    sampled = dict(figures["metrics"]).get("tokens/response/mean")
    return {
        "name": run.name,
        "state": state_of(run),
        "episodes": count,
        "expected": run.expected,
        "modified": run.modified,
        **{name: figures[name] for name in _SHOWN},
        "environments": figures["environments"] or ([planned] if isinstance(planned, str) else []),
        "policy": _policy(settings) or ", ".join(figures["engines"]),
        "seed": _seed(settings),
        "step": run.step,
        "elapsed": finite(elapsed_seconds(dict(figures["metrics"]), run.recorded)),
        "tokens": sampled,
        "spark": _spark(finite_rewards(rows)),
        "cells": _cells(rows),
        "settings": flat(settings),
    }


def recorded(run: LiveRun) -> dict[str, float]:
    """Return the metrics of a run: of the episodes read so far, and what its rollout wrote."""
    metrics = {} if run.is_summed else dict(run.figures()["metrics"])
    found = {**run.recorded, **metrics}
    named = ((name[:_MAX_TEXT], finite(value)) for name, value in found.items())
    return dict(islice(((n, v) for n, v in named if v is not None), _MAX_METRICS))


def state_of(run: LiveRun) -> str:
    """Return "reading", "live", "waiting", "stopped" or "complete"."""
    is_summed = run.is_summed
    count = run.recorded["episodes"] if is_summed else run.count
    if run.is_behind and not is_summed:
        return "reading"
    if run.is_live:
        return "live" if count else "waiting"
    is_short = run.expected is not None and count < run.expected
    return "stopped" if is_short else "complete"


def _policy(settings: Mapping[str, Any]) -> str:
    """Return the name of the scripted policy, or the last part of the model's name."""
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
    """Return mean rewards of up to 24 buckets in file order; empty for a short file."""
    count = min(_BUCKETS, len(rewards) // _MIN_PER_BUCKET)
    ends = [len(rewards) * n // count for n in range(count + 1)] if count else []
    return [round(fmean(rewards[a:b]), 4) for a, b in pairwise(ends)]


def _cells(rows: Sequence[EpisodeRow]) -> list[float]:
    """Return up to 36 of the groups' mean rewards, evenly spaced from best to worst."""
    rewards = filter(None, map(finite_rewards, groups_of(rows).values()))
    means = sorted(map(fmean, rewards), reverse=True)
    count = min(_CELLS, len(means))
    places = [n * (len(means) - 1) // max(1, count - 1) for n in range(count)]
    return [round(means[place], 4) for place in places]


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Flatten nested settings to text values.

    Args:
        settings: JSON data from a file.

    Returns:
        Values by names such as "config.sampling.temperature": at most 500, of 500 characters each.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = list(settings.items())[::-1]
    while waiting and len(found) < _MAX_SETTINGS:
        name, value = waiting.pop()
        inner = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if inner and name.count(".") < _MAX_DEPTH:
            waiting += [(f"{name}.{key}", inner[key]) for key in reversed(inner)]
        else:
            found[name[:_MAX_TEXT]] = json_text(cast("object", value))[:_MAX_TEXT]
    return found
