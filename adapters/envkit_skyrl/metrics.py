"""What a batch says about itself: SkyRL's own metrics and envkit's.

SkyRL joins the metrics of several outputs by what it finds in a name
(`concatenate_generator_outputs` in skyrl/train/generators/utils.py, 0.4.0): "avg" or "mean" takes
the mean, else "min" the smallest, else "max" the largest, and everything else is added up. Names
here are chosen for that; "stop/terminated", say, would be a minimum.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from numbers import Real
from statistics import fmean
from typing import Any

from envkit.trajectory import MergeTally, Trajectory
from envkit.trajectory.stop import StopReason
from envkit_skyrl.rows import Played

PREFIX = "envkit"


def batch_metrics(played: Sequence[Played], *, tally: MergeTally, masked: int) -> dict[str, float]:
    """Return envkit's metrics of a batch, flat.

    Args:
        played: Every sample of the batch.
        tally: What the step-wise rows' prompts kept of one another.
        masked: Samples that train nothing.
    """
    trajectories = [sample.trajectory for sample in played if sample.trajectory is not None]
    found: dict[str, float] = {
        "episodes": len(played),
        "faults": sum(trajectory.is_faulted for trajectory in trajectories),
        "aborted": sum(t.stop_reason is StopReason.ABORTED for t in trajectories),
        "unplayable": len(played) - len(trajectories),
        "masked": masked,
        "resumes": sum(sample.resumes for sample in played),
        "restarts": sum(trajectory.env_restarts for trajectory in trajectories),
        "rows/merged": tally.merged,
        "rows/forked": tally.forked,
        "rows/drifted_tokens": tally.drifted_tokens,
        **_spread("reward", [s.score for s in played if s.score is not None]),
        **_spread("turns", [len(trajectory.turns) for trajectory in trajectories]),
        **_stops(trajectories),
        **_turns(trajectories),
        **_reward_terms(trajectories),
    }
    return {f"{PREFIX}/{name}": float(value) for name, value in found.items()}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{name}/mean": fmean(values), f"{name}/min": min(values), f"{name}/max": max(values)}


def _stops(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counts = Counter(trajectory.stop_reason for trajectory in trajectories)
    total = max(1, len(trajectories))
    found = {f"stop_mean/{reason.value}": n / total for reason, n in sorted(counts.items())}
    kinds = Counter(t.fault.kind for t in trajectories if t.fault is not None)
    return found | {f"fault/{kind}": n for kind, n in sorted(kinds.items())}


def _turns(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    if not turns:
        return {}
    found: dict[str, float] = {
        "retries/engine": sum(turn.engine_retries for turn in turns),
        "retries/env": sum(sum(turn.env_retries.values()) for turn in turns),
        "retries/resample": sum(turn.resamples for turn in turns),
        "parse_errors": sum(turn.parse_error is not None for turn in turns),
        "pictures": sum(turn.image_count for turn in turns),
    }
    for part in ("queue", "generate", "env", "encode"):
        found[f"seconds_mean/{part}"] = fmean(getattr(turn, f"{part}_seconds") for turn in turns)
    return found


def _reward_terms(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return the mean of each term that environments name in `info["reward_terms"]`."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        terms: Counter[str] = Counter()
        for turn in trajectory.turns:
            given: Any = turn.info.get("reward_terms")
            for name, value in (given if isinstance(given, dict) else {}).items():
                if isinstance(value, Real):
                    terms[str(name)] += float(value)  # pyright: ignore[reportArgumentType]
        for name, value in terms.items():
            sums[name].append(value)
    return {f"reward_term_mean/{name}": fmean(values) for name, values in sorted(sums.items())}
