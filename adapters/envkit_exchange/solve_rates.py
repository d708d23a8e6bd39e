"""Solve rates of the tasks of runs, and a filter for the tasks worth training on.

A group whose members all succeed or all fail has no advantage and yields no gradient. DAPO's
dynamic sampling (https://arxiv.org/abs/2503.14476) drops such tasks during training; this does it
before.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from envkit.errors import ConfigurationError, StorageError
from envkit.metrics.intervals import Interval, wilson_interval
from envkit.rollout.request import ENVKIT_COLUMN, EpisodeRequest
from envkit.rollout.run_settings import RUN_FILE, command_settings
from envkit.rollout.sources import canonical_json
from envkit.secrets import without_secrets
from envkit.success import UNDECLARED
from envkit.trajectory import StopReason, Trajectory, read_trajectories, success_of
from envkit.trajectory.identity import SeenEpisodes
from envkit.trajectory.storage import Source
from envkit.trajectory.trajectory import role_of
from envkit_exchange.trajectories import contents_of

BUCKETS: Final = ("0", "0-0.25", "0.25-0.5", "0.5-0.75", "0.75-1", "1")
"""Bins of the solve-rate histogram; open bins include their lower bound, except 0."""
_UNDEFINED: Final = "without a defined success"


@dataclass(slots=True, kw_only=True)
class TaskRate:
    """The results of one task."""

    request: EpisodeRequest
    episodes: int = 0
    """Scored episodes; faulted and aborted ones are excluded."""
    solved: int = 0

    @property
    def rate(self) -> float:
        """Share of the scored episodes that were solved; NaN without any."""
        return self.solved / self.episodes if self.episodes else math.nan

    @property
    def interval(self) -> Interval:
        """Bounds of the rate at 95% (Wilson); 0 and 1 without a scored episode."""
        return wilson_interval(self.solved, self.episodes)

    def row(self) -> dict[str, Any]:
        """Return a dataset row: the request and the measurements."""
        bounds = self.interval
        return {
            ENVKIT_COLUMN: self.request.to_column(),
            "env_id": self.request.env_id,
            "episodes": self.episodes,
            "solved": self.solved,
            "solve_rate": self.rate,
            "low": round(bounds.low, 6),
            "high": round(bounds.high, 6),
        }


@dataclass(slots=True, kw_only=True)
class SolveRates:
    """Solve rates of the tasks of runs, in the order of the runs."""

    tasks: list[TaskRate]
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of excluded episodes by reason."""

    def kept(self, above: float, below: float) -> list[TaskRate]:
        """Return the tasks whose rate lies strictly between two bounds."""
        return [task for task in self.tasks if task.episodes and above < task.rate < below]

    def summary(self, above: float, below: float) -> dict[str, Any]:
        """Return counts and a histogram as JSON data."""
        scored = [task for task in self.tasks if task.episodes]
        widths = [bounds.high - bounds.low for bounds in (task.interval for task in scored)]
        counted = Counter(_bucket(task.rate) for task in scored)
        return {
            "tasks": len(self.tasks),
            "tasks/unscored": len(self.tasks) - len(scored),
            "tasks/low": sum(task.rate <= above for task in scored),
            "tasks/high": sum(task.rate >= below for task in scored),
            "tasks/kept": len(self.kept(above, below)),
            "episodes": sum(task.episodes for task in scored),
            "episodes/left_out": dict(self.left_out),
            "solve_rate/mean": sum(task.rate for task in scored) / max(1, len(scored)),
            "solve_rate/interval_width": sum(widths) / max(1, len(widths)),
            "histogram": {name: counted[name] for name in BUCKETS},
        }


def solve_rates(
    sources: Sequence[Source],
    *,
    threshold: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SolveRates:
    """Measure the tasks of finished or interrupted runs of one environment.

    Episodes of the same task count together across runs, and an episode in several runs counts
    once. A task is identified by its data, or by
    its seed if the environment has no tasks.

    Args:
        sources: Run directories or trajectory files.
        threshold: A reward threshold; None uses what the environment declared.
        progress: Called with the number of trajectories read so far and the total.

    Raises:
        StorageError: A file cannot be read.
        ConfigurationError: The runs differ in environment or arguments, have several agents, or
            declare no success.
    """
    total = sum(contents_of(source).count for source in sources)
    found: dict[str, TaskRate] = {}
    order: dict[str, tuple[int, int]] = {}
    rates, done = SolveRates(tasks=[]), 0
    shared: EpisodeRequest | None = None
    seen = SeenEpisodes()
    for place, source in enumerate(sources):
        arguments = _env_kwargs(source)
        episodes = read_trajectories(source, skip_cut_line=True)
        for trajectory in seen.first(episodes, rates.left_out):
            done += 1
            progress(done, total)
            request = _request(trajectory, arguments)
            shared = shared or request
            _check_alike(shared, request)
            key = canonical_json(request.task) if request.task else f"seed {request.seed}"
            number: object = trajectory.metadata.get("group")
            order.setdefault(key, (place, number if isinstance(number, int) else done))
            task = found.setdefault(key, TaskRate(request=request))
            _count(trajectory, task, rates.left_out, threshold)
    undefined = rates.left_out[_UNDEFINED]
    if undefined and not any(task.episodes for task in found.values()):
        raise ConfigurationError(
            f"success is undefined in {undefined} of {done} episodes, because {UNDECLARED}: "
            "pass --reward-threshold REWARD, the reward from which a task counts as solved"
        )
    rates.tasks.extend(found[key] for key in sorted(found, key=lambda key: order[key]))
    return rates


def _count(
    trajectory: Trajectory, task: TaskRate, left_out: Counter[str], threshold: float | None
) -> None:
    if trajectory.is_faulted:
        left_out["faulted"] += 1
    elif trajectory.stop_reason is StopReason.ABORTED:
        left_out["aborted"] += 1
    elif trajectory.reward is None:
        left_out["without a reward"] += 1
    elif (is_solved := success_of(trajectory, threshold=threshold)) is None:
        left_out[_UNDEFINED] += 1
    else:
        task.episodes += 1
        task.solved += is_solved


def _env_kwargs(source: Source) -> Mapping[str, Any]:
    """Return the environment's arguments, which a bare trajectory file does not record."""
    folder = Path(source)
    if not (folder / RUN_FILE).is_file():
        return {}
    return without_secrets(command_settings(folder)["config"]["env_kwargs"])


def _request(trajectory: Trajectory, arguments: Mapping[str, Any]) -> EpisodeRequest:
    if role_of(trajectory) is not None:
        raise ConfigurationError(
            "solve rates need episodes with one agent, got a record of the role "
            f"{role_of(trajectory)!r}"
        )
    task = dict(trajectory.task) or None
    if task is None and trajectory.seed is None:
        raise ConfigurationError(
            f"episode {trajectory.episode_id!r} has neither task nor seed, so its task cannot be "
            "replayed"
        )
    return EpisodeRequest(
        env_id=trajectory.env_id, env_kwargs=arguments, task=task, seed=trajectory.seed
    )


def _check_alike(first: EpisodeRequest, request: EpisodeRequest) -> None:
    for name, one, other in (
        ("environment", first.env_id, request.env_id),
        ("arguments", dict(first.env_kwargs), dict(request.env_kwargs)),
    ):
        if one != other:
            raise ConfigurationError(
                f"the runs must have the same environment and arguments, got the {name} "
                f"{str(one)[:200]} and {str(other)[:200]}; filter them one by one"
            )


def _bucket(rate: float) -> str:
    if rate in (0.0, 1.0):
        return BUCKETS[-1] if rate else BUCKETS[0]
    return BUCKETS[1 + int(4 * rate)]


def rows_of(rates: SolveRates, above: float, below: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of the kept tasks.

    Raises:
        StorageError: No task remains.
    """
    kept = rates.kept(above, below)
    if not kept:
        raise StorageError(
            f"no task has a solve rate between {above:g} and {below:g}; nothing was written"
        )
    for task in kept:
        yield task.row()
