"""envkit's metrics in slime's logs.

`--custom-rollout-log-function-path envkit_slime.log_rollout_data` and
`--custom-eval-rollout-log-function-path envkit_slime.log_eval_rollout_data` add them to what slime
logs anyway. Names are those of `envkit.metrics`, under "envkit/".
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envkit_slime.sample import Sample, summary_of
from envkit_slime.upstream import require

PREFIX = "envkit/"


def log_rollout_data(
    rollout_id: int,
    args: Namespace,
    samples: Sequence[Any],
    rollout_extra_metrics: dict[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Add envkit's metrics to those of a rollout; slime then logs everything in one step.

    Args:
        rollout_id: Number of the rollout.
        args: slime's arguments.
        samples: All samples of the rollout.
        rollout_extra_metrics: What slime logs besides its own; added to in place.
        rollout_time: Seconds that the rollout took.

    Returns:
        False: slime is to go on with its own log (slime/observability/rollout_metrics.py).
    """
    del rollout_time
    metrics = episode_metrics(samples)
    if rollout_extra_metrics is not None:
        rollout_extra_metrics.update(metrics)
    else:
        _log(rollout_id, args, metrics, "rollout/step")
    return False


def log_eval_rollout_data(
    rollout_id: int,
    args: Namespace,
    data: Mapping[str, Mapping[str, Any]],
    extra_metrics: dict[str, Any] | None,
) -> bool:
    """Add envkit's metrics of every evaluation dataset; slime then logs everything.

    Args:
        rollout_id: Number of the rollout.
        args: slime's arguments.
        data: By dataset: rewards, truncated, samples.
        extra_metrics: What slime logs besides its own; added to in place.

    Returns:
        False: slime is to go on with its own log.
    """
    metrics = {
        f"eval/{name}/{key}": value
        for name, entry in data.items()
        for key, value in episode_metrics(entry.get("samples") or ()).items()
    }
    if extra_metrics is not None:
        extra_metrics.update(metrics)
    else:
        _log(rollout_id, args, metrics, "eval/step")
    return False


def _log(rollout_id: int, args: Namespace, metrics: dict[str, float], step_key: str) -> None:
    if not metrics:
        return
    step = require("slime.observability.metric_utils").compute_rollout_step(args, rollout_id)
    log = require("slime.observability.logging_utils").log
    log(args, {**metrics, step_key: step}, step_key=step_key)


def episode_metrics(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the metrics of the samples that this adapter made; none where it made none."""
    episodes = [summary for sample in samples if "stop_reason" in (summary := summary_of(sample))]
    if not episodes:
        return {}
    count, turns = len(episodes), sum(episode["turns"] for episode in episodes)
    stops = Counter(episode["stop_reason"] for episode in episodes)
    faults = Counter(episode["fault"]["kind"] for episode in episodes if episode["fault"])
    retries: Counter[str] = Counter()
    for episode in episodes:
        retries.update(episode["env_retries"])
    retries["engine"] = sum(episode["engine_retries"] for episode in episodes)
    retries["resample"] = sum(episode["resamples"] for episode in episodes)
    retries["restart"] = sum(episode["restarts"] for episode in episodes)
    retries["server_abort"] = sum(episode["server_aborts"] for episode in episodes)
    metrics = {
        "episodes": float(count),
        "faults": float(faults.total()),
        "fault/rate": faults.total() / count,
        "turns/mean": turns / count,
        "turns/max": float(max(episode["turns"] for episode in episodes)),
        "images/mean": _mean(episodes, "images"),
        "tool_calls/mean": _mean(episodes, "tool_calls"),
        "parse_error/rate": sum(episode["parse_errors"] for episode in episodes) / max(1, turns),
        "seconds/env/mean": sum(e["env_seconds"] for e in episodes) / max(1, turns),
        "seconds/encode/mean": sum(e["encode_seconds"] for e in episodes) / max(1, turns),
        "seconds/generate/mean": sum(e["generate_seconds"] for e in episodes) / max(1, turns),
        **_rewards(episodes),
        **{f"stop/{reason}/share": number / count for reason, number in sorted(stops.items())},
        **{f"fault/{kind}": float(number) for kind, number in sorted(faults.items())},
        **{f"retry/{kind}": float(number) for kind, number in sorted(retries.items())},
    }
    return {PREFIX + name: value for name, value in metrics.items()}


def _rewards(episodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean over episodes that have a reward; faulted ones have none."""
    rewards = [episode["reward"] for episode in episodes if episode["reward"] is not None]
    if not rewards:
        return {}
    return {
        "reward/mean": sum(rewards) / len(rewards),
        "success/rate": sum(reward > 0 for reward in rewards) / len(rewards),
    }


def _mean(episodes: Sequence[Mapping[str, Any]], key: str) -> float:
    return sum(episode[key] for episode in episodes) / len(episodes)
