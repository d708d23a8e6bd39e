"""Runs a `RunPlan`: plays, stores, aggregates, verifies and reports."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Generator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envkit.cli.console import note
from envkit.cli.engines import Built, build
from envkit.cli.options import make_env
from envkit.cli.progress import Progress, progress_for
from envkit.cli.run_plan import RunPlan
from envkit.cli.stop_keys import StopKeys
from envkit.cli.summary import REPORT_FILE, summarise
from envkit.errors import EnvkitError, StorageError
from envkit.metrics import Aggregator
from envkit.rollout import RolloutState, collect
from envkit.sinks import GuardedSinks
from envkit.sinks.jsonl import METRICS_FILE
from envkit.trajectory import StopReason, Trajectory, TrajectoryWriter
from envkit.trajectory.files import storage_errors
from envkit.trajectory.storage import FILE_NAME

if TYPE_CHECKING:
    from envkit.env import Env
    from envkit.report.document import Decode

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_ALL_FAULTED: Final = 3
EXIT_INTERRUPTED: Final = 130
_SHOWN_FAULTS: Final = 5
_HOPELESS: Final = 32
"""Faulted episodes in a row, but at least two for each one that runs at once, that end a rollout:
what failed then fails for good, and every further episode only waits for its retries."""


@dataclass(slots=True)
class _Outcome:
    """What was played, as far as the exit code and the end of the output need it."""

    decode: "Decode"
    """Turns token ids of the model into text."""
    metrics: Aggregator = field(default_factory=Aggregator)
    count: int = 0
    images: int = 0
    """Pictures in all ledgers."""
    completed: int = 0
    """Neither faulted nor aborted."""
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    """From the first request to the end."""
    faults: Counter[str] = field(default_factory=Counter[str])
    """Faulted episodes by what failed and its message."""
    faults_in_a_row: int = 0
    gave_up: bool = False
    """Whether the rollout ended itself because nothing but faults came."""
    dropped: int = 0
    """Episodes of groups that --on-fault drop_group withheld."""

    def add(self, trajectory: Trajectory) -> None:
        self.count += 1
        self.images += sum(len(segment.images) for segment in trajectory.segments)
        self.metrics.add(trajectory)
        self.faults_in_a_row = self.faults_in_a_row + 1 if trajectory.is_faulted else 0
        ended_early = trajectory.stop_reason is StopReason.ABORTED
        self.completed += not (trajectory.is_faulted or ended_early)
        if trajectory.fault is not None:
            fault = trajectory.fault
            self.faults[f"{fault.where}: {fault.kind}: {fault.message}"] += 1

    def figures(self) -> dict[str, float]:
        """Return the metrics of the whole run."""
        return self.metrics.result(elapsed_seconds=self.seconds)

    @property
    def faulted(self) -> int:
        return self.faults.total()


def run_rollout(plan: RunPlan) -> int:
    """Play the plan and return the exit code.

    Raises:
        EnvkitError: What ended the rollout; finished trajectories are kept.
    """
    env = make_env(plan.env_id, dict(plan.env_kwargs))
    try:
        directory = plan.directory()
        keys, state = StopKeys(), RolloutState()
        with _sinks(plan, directory, state) as sinks:
            outcome = asyncio.run(_play(plan, env, directory, keys, state, sinks))
            if outcome.count:
                sinks.write_metrics(outcome.figures())
    finally:
        env.close()
    code = _finish(plan, directory, outcome, was_stopped=keys.was_pressed)
    return EXIT_ERROR if code == EXIT_OK and sinks.failures else code


@contextmanager
def _sinks(plan: RunPlan, directory: Path, state: RolloutState) -> Generator[GuardedSinks]:
    """Open the sinks, close them, and say which of them are not complete."""
    sinks = plan.sinks.open(
        name=directory.name,
        config=plan.config(),
        state=state,
        overwrite=plan.overwrite,
        tell=None if plan.is_quiet else note,
    )
    try:
        with sinks:
            yield sinks
    finally:
        for failures in sinks.failures:
            note(f"sink {failures}")


async def _play(
    plan: RunPlan,
    env: "Env",
    directory: Path,
    keys: StopKeys,
    state: RolloutState,
    sinks: GuardedSinks,
) -> _Outcome:
    if not plan.is_quiet:
        note(f"loading {plan.choice.label} ...")
    built = await build(plan.choice, env, progress=None if plan.is_quiet else note)
    gc.collect()
    gc.freeze()  # collecting what a model's libraries hold would block the event loop for 100 ms
    outcome = _Outcome(decode=built.codec.decode_all)
    try:
        with (
            _writer(directory, plan) as writer,
            progress_for(state, is_quiet=plan.is_quiet) as progress,
            keys.installed(progress.tell),
        ):
            if not plan.is_quiet:
                sinks.tell = progress.tell
            await _collect(plan, built, _Keep(writer, sinks), outcome, state, keys, progress)
    except asyncio.CancelledError:
        if not keys.was_pressed:
            raise
    except EnvkitError as error:
        if isinstance(error, StorageError):
            error.add_note("free some space, or name another disk with --out")
        if outcome.count:
            error.add_note(f"{outcome.count} finished trajectories are kept in {directory}")
        raise
    finally:
        await built.engine.aclose()
        _tidy(directory)
    outcome.seconds = time.perf_counter() - outcome.started
    outcome.dropped = len(state.dropped)
    return outcome


@dataclass(frozen=True, slots=True)
class _Keep:
    """Writes a trajectory: first to the run's own record, then to the other sinks."""

    writer: TrajectoryWriter
    sinks: GuardedSinks

    def write(self, trajectory: Trajectory) -> None:
        self.writer.write(trajectory)
        self.sinks.write(trajectory)


def _writer(directory: Path, plan: RunPlan) -> TrajectoryWriter:
    if plan.overwrite:  # figures of the old run must not stand beside a new one that fails
        for name in (METRICS_FILE, REPORT_FILE):
            with storage_errors(f"cannot replace {directory / name}"):
                (directory / name).unlink(missing_ok=True)
    return TrajectoryWriter(directory, mode="overwrite" if plan.overwrite else "create")


def _tidy(directory: Path) -> None:
    """Leave no empty run behind."""
    file = directory / FILE_NAME
    with suppress(OSError):
        if file.stat().st_size == 0:
            file.unlink()
            directory.rmdir()  # refuses a folder that holds anything


async def _collect(
    plan: RunPlan,
    built: Built,
    keep: "_Keep",
    outcome: _Outcome,
    state: RolloutState,
    keys: StopKeys,
    progress: Progress,
) -> None:
    """Write every episode as it finishes."""
    played = collect(
        plan.environment(),
        built.engine,
        built.codec,
        episodes=plan.episodes,
        group_size=plan.group_size,
        concurrency=plan.concurrency,
        seed=plan.seed,
        limits=plan.limits,
        retries=plan.retries,
        sampling=plan.sampling,
        env_kwargs=plan.env_kwargs if plan.wrap is None else None,
        on_fault=plan.on_fault,
        interrupt=keys.interrupt,
        state=state,
        metadata=_metadata(plan, built),
    )
    hopeless = max(_HOPELESS, 2 * plan.concurrency)
    async with aclosing(played) as trajectories:
        async for trajectory in trajectories:
            await asyncio.to_thread(keep.write, trajectory)
            outcome.add(trajectory)
            progress.finished(trajectory)
            if outcome.faults_in_a_row >= hopeless and not outcome.gave_up:
                outcome.gave_up = True
                progress.tell(f"giving up: {outcome.faults_in_a_row} episodes in a row faulted")
                keys.interrupt.fire()


def _metadata(plan: RunPlan, built: Built) -> dict[str, object]:
    wrap = {} if plan.wrap is None else {"wrap": plan.wrap, "wrap_kwargs": dict(plan.wrap_kwargs)}
    return {"model": built.model, "rollout_seed": plan.seed, **wrap}


def _finish(plan: RunPlan, directory: Path, outcome: _Outcome, *, was_stopped: bool) -> int:
    """Verify, aggregate and report what was written; return the exit code."""
    if outcome.dropped:
        note(f"{outcome.dropped} episodes were dropped with their groups, because some faulted")
    if outcome.count == 0:
        note("no episode was kept")
        return EXIT_INTERRUPTED if was_stopped else EXIT_ALL_FAULTED
    _tell_faults(outcome)
    is_sound = summarise(directory, outcome.figures(), outcome.decode, as_json=plan.as_json)
    if was_stopped:
        return EXIT_INTERRUPTED
    if _is_blind_wrap(plan) and outcome.completed and not outcome.images:
        note(f"--wrap {plan.wrap} changed nothing: no episode of {plan.env_id} showed a picture")
        return EXIT_ERROR
    if outcome.completed == 0:
        note("no episode ended without a fault; nothing can be trained on")
        return EXIT_ALL_FAULTED
    return EXIT_OK if is_sound and not outcome.gave_up else EXIT_ERROR


def _is_blind_wrap(plan: RunPlan) -> bool:
    """Whether the wrapper changes nothing but pictures."""
    from envkit.wrappers.named import IMAGE_WRAPPERS

    return plan.wrap in IMAGE_WRAPPERS


def _tell_faults(outcome: _Outcome) -> None:
    if not outcome.faulted:
        return
    note(f"{outcome.faulted} of {outcome.count} episodes faulted:")
    for message, count in outcome.faults.most_common(_SHOWN_FAULTS):
        note(f"  {count} x {' '.join(message.split())}")
    hidden = len(outcome.faults) - _SHOWN_FAULTS
    if hidden > 0:
        note(f"  and {hidden} other messages; see the report")
