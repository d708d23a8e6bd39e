"""The figures of a run that was not read, from the metrics that its rollout wrote."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from envkit.trajectory.stop import StopReason
from envkit.viewer.figures import ends, stops


def recorded_figures(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the figures that the table of runs shows, under the names of `figures`.

    Metrics do not have what needs every episode: intervals, and which groups have a signal.

    Args:
        metrics: The metrics of all episodes of a run, as its rollout wrote them.
    """
    episodes, judged = int(metrics["episodes"]), metrics.get("success/episodes", 0.0)
    mean, groups = metrics.get("reward/mean"), int(metrics.get("groups", 0))
    reasons = {reason: int(metrics.get(f"stop/{reason}", 0)) for reason in StopReason}
    return {
        "episodes": episodes,
        "environments": [],
        "engines": [],
        "reward": None
        if mean is None
        else {
            "mean": mean,
            **ends(None),
            "groups": groups,
            "top": max(1.0, metrics.get("reward/max", mean)),
            "bottom": min(0.0, metrics.get("reward/min", mean)),
        },
        "solved": {
            "count": _whole(metrics.get("success/rate", 0.0) * judged),
            "of": _whole(judged),
            **ends(None),
            "by": None,
        },
        "groups": {"count": groups, "compared": 0, "signal": 0},
        "faults": int(metrics.get("episodes/faulted", 0)),
        "broken": 0,
        "unread": {
            "count": int(metrics.get("parse_error/count", 0)),
            "of": _whole(metrics.get("turns/mean", 0.0) * episodes),
        },
        "turns": metrics.get("turns/mean"),
        "seconds": metrics.get("seconds/episode/mean"),
        "stops": stops(Counter({reason: n for reason, n in reasons.items() if n > 0})),
        "metrics": list(metrics.items()),
    }


def _whole(number: float) -> int:
    """Round a product of metrics, which a hostile file can make infinite."""
    return round(number) if math.isfinite(number) else 0
