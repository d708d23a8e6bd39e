"""envkit's metrics in slime's and miles' logs.

`--custom-rollout-log-function-path envkit_slime.log_rollout_data` and
`--custom-eval-rollout-log-function-path envkit_slime.log_eval_rollout_data` add them to the
trainer's own metrics. Names are those of `envkit.metrics`, under "envkit/".
"""

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from envkit.metrics import EpisodeFacts, aggregate
from envkit_slime.sample import Sample, facts_of, trainer_of
from envkit_slime.upstream import require

_LOGS: Final = {
    "slime": ("slime.observability.metric_utils", "slime.observability.logging_utils"),
    "miles": ("miles.utils.metric_utils", "miles.utils.tracking_utils.tracking"),
}
"""Where each trainer counts its steps, and where it logs them."""


def log_rollout_data(
    rollout_id: int,
    args: Namespace,
    samples: Sequence[Any],
    rollout_extra_metrics: dict[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Add envkit's metrics to those of a rollout; the trainer then logs everything in one step.

    Args:
        rollout_id: Number of the rollout.
        args: The trainer's arguments.
        samples: All samples of the rollout.
        rollout_extra_metrics: Extra metrics to log; changed in place.
        rollout_time: Seconds that the rollout took.

    Returns:
        False: True would make the trainer skip its own log (slime/observability/rollout_metrics.py,
        miles/ray/rollout/metrics.py).
    """
    del rollout_time
    _add(rollout_id, args, episode_metrics(samples), rollout_extra_metrics, samples, "rollout/step")
    return False


def log_eval_rollout_data(
    rollout_id: int,
    args: Namespace,
    data: Mapping[str, Mapping[str, Any]],
    extra_metrics: dict[str, Any] | None,
) -> bool:
    """Add envkit's metrics of every evaluation dataset; the trainer then logs everything.

    Args:
        rollout_id: Number of the rollout.
        args: The trainer's arguments.
        data: By dataset: rewards, truncated, samples.
        extra_metrics: Extra metrics to log; changed in place.

    Returns:
        False, as `log_rollout_data`.
    """
    samples = {name: entry.get("samples") or () for name, entry in data.items()}
    metrics = {
        f"eval/{name}/{key}": value
        for name, known in samples.items()
        for key, value in episode_metrics(known).items()
    }
    everything = [one for known in samples.values() for one in known]
    _add(rollout_id, args, metrics, extra_metrics, everything, "eval/step")
    return False


def _add(
    rollout_id: int,
    args: Namespace,
    metrics: dict[str, float],
    extra: dict[str, Any] | None,
    samples: Sequence[Any],
    step_key: str,
) -> None:
    if extra is not None:
        extra.update(metrics)
    elif metrics:  # there is no mapping to add to: log our own step
        steps, logs = _LOGS[trainer_of(samples[0])]
        step = require(steps).compute_rollout_step(args, rollout_id)
        require(logs).log(args, {**metrics, step_key: step}, step_key=step_key)


def episode_metrics(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the metrics of this adapter's samples; empty if there are none."""
    known = [facts for sample in samples if "stop_reason" in (facts := facts_of(sample))]
    metrics = aggregate(map(EpisodeFacts.from_json, known)) if known else {}
    return {f"envkit/{name}": value for name, value in metrics.items()}
