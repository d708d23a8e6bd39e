"""Write trajectories as a log for Inspect (inspect_ai).

A log is a zip archive with a file per sample, their summaries, and a header with the settings and
results. The layout follows inspect_ai 0.3.285, inspect_ai/log/_recorders/eval.py. The package
itself is not needed.
"""

import hashlib
import math
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import envkit
from envkit.errors import StorageError
from envkit.files import storage_errors
from envkit.text import utf8
from envkit.trajectory import StopReason, Trajectory
from envkit.trajectory.plain import json_chunks
from envkit.trajectory.storage import Source, trajectory_file
from envkit.trajectory.trajectory import role_of
from envkit_exchange.inspect_sample import SCORER, Sample, model_of, sample_of
from envkit_exchange.tables import replacing
from envkit_exchange.trajectories import ExportTally, Selection, contents_of

_VERSION: Final = 2
"""Version of Inspect's log format."""


@dataclass(slots=True)
class _Totals:
    """Totals over samples, for the header of a log."""

    env_ids: Counter[str] = field(default_factory=Counter[str])
    models: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    epochs: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    rewards: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Rewards of scored episodes, by task."""
    summaries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    first_id: str = ""
    is_stopped: bool = False
    """Whether an episode was aborted."""

    def add(self, trajectory: Trajectory, sample: Sample) -> None:
        """Count a sample."""
        self.first_id = self.first_id or trajectory.episode_id
        self.env_ids[trajectory.env_id] += 1
        self.models.setdefault(model_of(trajectory), Counter()).update(sample.usage)
        if trajectory.reward is not None:
            self.rewards.setdefault(sample.record["id"], []).append(trajectory.reward)
        self.is_stopped |= trajectory.stop_reason is StopReason.ABORTED
        self.summaries.append(sample.summary)

    def place(self, trajectory: Trajectory) -> tuple[str, int]:
        """Return the task's id and the episode's number within the task."""
        name = trajectory.group_id or trajectory.episode_id
        role = role_of(trajectory)
        # The id becomes part of a file name in the archive.
        name = utf8(name if role is None else f"{name}-{role}").replace("/", "_")
        taken = self.epochs.setdefault(name, set())
        member: object = trajectory.metadata.get("member")
        epoch = member + 1 if isinstance(member, int) and member >= 0 else 1
        while epoch in taken:
            epoch += 1
        taken.add(epoch)
        return name, epoch


def export_inspect(
    source: Source,
    target: Path,
    selection: Selection,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExportTally:
    """Write a trajectory file as an Inspect log.

    A group becomes one sample with an epoch per episode. A fault becomes the sample's error,
    without a score.

    Args:
        source: A trajectory file or a run directory.
        target: The log, ending in ".eval"; an existing one is replaced once the new one is
            complete.
        selection: Which trajectories to export; its row options are ignored.
        progress: Called with the trajectories read so far and their number.

    Raises:
        StorageError: The source or target fails, or no trajectory is left to write.
    """
    total, tally, totals = contents_of(source).count, ExportTally(), _Totals()
    with (
        replacing(target) as temporary,
        storage_errors(f"cannot write {target}"),
        zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as log,
    ):
        for trajectory in selection.of(source, tally, lambda done: progress(done, total)):
            name, epoch = totals.place(trajectory)
            sample = sample_of(trajectory, sample_id=name, epoch=epoch)
            _write(log, f"samples/{name}_epoch_{epoch}.json", sample.record)
            totals.add(trajectory, sample)
            tally.trajectories += 1
        _close(log, source, totals)
    tally.rows = tally.trajectories
    return tally


def _close(log: zipfile.ZipFile, source: Source, totals: _Totals) -> None:
    if not totals.summaries:
        raise StorageError(f"no trajectory of {str(source)!r} is left to export")
    spec, plan = _spec(source, totals), {"name": "rollout", "steps": [{"solver": "envkit"}]}
    usage = {model: dict(counted) for model, counted in totals.models.items()}
    _write(log, "_journal/start.json", {"version": _VERSION, "eval": spec, "plan": plan})
    _write(log, "summaries.json", totals.summaries)
    header = {
        "version": _VERSION,
        "status": "cancelled" if totals.is_stopped else "success",
        "eval": spec,
        "plan": plan,
        "results": _results(totals),
        "stats": {
            "started_at": spec["created"],
            "completed_at": spec["created"],
            "model_usage": usage,
        },
    }
    _write(log, "header.json", header)


def _spec(source: Source, totals: _Totals) -> dict[str, Any]:
    file = trajectory_file(source)
    with storage_errors(f"cannot read {file}"):
        written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    # The same run gives the same ids, so a repeated export is recognisable.
    digest = hashlib.sha256(totals.first_id.encode("utf-8", "replace")).hexdigest()
    env_id = utf8(totals.env_ids.most_common(1)[0][0])
    ids = [*totals.epochs]
    return {
        "eval_id": digest[:22],
        "run_id": digest[22:44],
        "created": written.isoformat(timespec="seconds"),
        "task": env_id,
        "task_id": hashlib.sha256(env_id.encode()).hexdigest()[:22],
        "dataset": {"name": env_id, "samples": len(ids), "sample_ids": ids},
        "model": max(totals.models, key=lambda name: totals.models[name]["total_tokens"]),
        "config": {"epochs": max(map(len, totals.epochs.values())), "epochs_reducer": ["mean"]},
        "packages": {"envkit-rl": envkit.__version__},
        "scorers": [{"name": SCORER, "metrics": [{"name": "mean"}, {"name": "stderr"}]}],
        "metadata": {"envs": {utf8(name): count for name, count in totals.env_ids.items()}},
    }


def _results(totals: _Totals) -> dict[str, Any]:
    """Return the mean reward as Inspect computes it: the mean over epochs, then over tasks."""
    count = len(totals.summaries)
    scored = sum(map(len, totals.rewards.values()))
    means = [fmean(values) for values in totals.rewards.values()]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    metrics = {"mean": fmean(means), "stderr": error} if means else {}
    score = {
        "name": SCORER,
        "scorer": SCORER,
        "reducer": "mean",
        "scored_samples": len(totals.rewards),
        "unscored_samples": len(totals.epochs) - len(totals.rewards),
        "metrics": {name: {"name": name, "value": value} for name, value in metrics.items()},
    }
    return {"total_samples": count, "completed_samples": scored, "scores": [score]}


def _write(log: zipfile.ZipFile, name: str, value: Mapping[str, Any] | list[Any]) -> None:
    try:
        with log.open(name, "w", force_zip64=True) as stream:
            for chunk in json_chunks(value):
                stream.write(chunk.encode("ascii"))
    except (TypeError, ValueError) as error:
        raise StorageError(f"{name} of the log is not valid JSON: {error}") from error
