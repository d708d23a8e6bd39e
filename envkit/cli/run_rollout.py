"""Run a `RolloutPlan`: play, store, aggregate, verify and report."""

import asyncio
import contextlib
import errno
import time
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from envkit.cli.console import note
from envkit.cli.engines import Built, Playing, build_any, build_here
from envkit.cli.options import make_env
from envkit.cli.progress import Progress, progress_for
from envkit.cli.run_plan import Output, RolloutPlan
from envkit.cli.sinks import open_sinks
from envkit.cli.stop_signals import StopSignals
from envkit.cli.summary import REPORT_FILE, summarise
from envkit.cli.trained_on import describe_training
from envkit.errors import EnvkitError, RunFailedError, StorageError
from envkit.files import storage_errors
from envkit.metrics import EpisodeFacts
from envkit.plugins import load_plugin
from envkit.rollout.boundary import describe
from envkit.rollout.config import RolloutConfig
from envkit.rollout.plan import Played, RolloutState
from envkit.rollout.player import AnyPlayer, Player
from envkit.rollout.run import Run
from envkit.rollout.run_claim import RunClaim
from envkit.rollout.run_folder import RunFolder
from envkit.rollout.run_settings import RUN_FILE
from envkit.rollout.staleness import Stale
from envkit.secrets import stored
from envkit.sinks.guarded import GuardedSinks
from envkit.sinks.jsonl import METRICS_FILE
from envkit.sinks.sink import SinkRun
from envkit.text import counted
from envkit.trajectory import Trajectory
from envkit.trajectory.storage import PreparedTrajectory

if TYPE_CHECKING:
    from envkit.cli.run_digest import RunDigest
    from envkit.env import Env

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_ALL_FAULTED: Final = 3
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHOWN_FAULTS: Final = 5
_SHOWN_IDS: Final = 20
_LOOK_S: Final = 5.0
"""Seconds between checks of whether the engine is available."""


@dataclass(slots=True)
class _Outcome:
    """Results of a run, for the exit code and the summary."""

    digest: "RunDigest"
    count: int = 0
    images: int = 0
    """Images shown to models."""
    completed: int = 0
    """Neither faulted nor aborted."""
    started: float = 0.0
    seconds: float = 0.0
    """From the first request to the end."""
    faults: Counter[str] = field(default_factory=Counter[str])
    """Faulted episodes by what failed and its message."""
    dropped: int = 0
    """Episodes dropped with their group because of a fault or stale tokens."""
    failure: RunFailedError | None = None
    """Why the run stopped itself."""

    def add(self, facts: EpisodeFacts) -> None:
        self.count += 1
        self.images += facts.images
        self.completed += not (facts.is_faulted or facts.is_aborted)
        if facts.fault is not None:
            fault = facts.fault
            self.faults[f"{fault['where']}: {fault['kind']}: {fault['message']}"] += 1

    def figures(self) -> dict[str, float]:
        """Return the metrics of the whole run."""
        return self.digest.metrics.result(elapsed_seconds=self.seconds)

    @property
    def faulted(self) -> int:
        return self.faults.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A run while it is played."""

    plan: RolloutPlan
    sinks: GuardedSinks
    state: RolloutState
    signals: StopSignals
    outcome: _Outcome
    also: Callable[[Trajectory], None] | None
    """Also receives every trajectory."""

    def store(self, trajectory: Trajectory, line: PreparedTrajectory) -> None:
        """Take a record that was just written."""
        self.sinks.write(trajectory)
        self.outcome.add(self.outcome.digest.add(trajectory, line))

    def take_stored(self, folder: RunFolder) -> None:
        """Take the records of earlier commands: figures cover the whole run, sinks what they lack.

        Raises:
            StorageError: A line cannot be read.
        """
        for facts in self.outcome.digest.stored():
            self.outcome.add(facts)
        if self.plan.sinks or self.also is not None:
            for trajectory in folder.finished():
                self.pass_on(trajectory)
                self.sinks.write(trajectory)

    def pass_on(self, trajectory: Trajectory) -> None:
        """Give a record to whoever runs the rollout."""
        if self.also is not None:
            self.also(trajectory)


def run_rollout(plan: RolloutPlan, *, also: Callable[[Trajectory], None] | None = None) -> int:
    """Play the plan and return the exit code.

    Args:
        plan: The plan.
        also: Called with every stored trajectory, those from before a resume first.

    Raises:
        EnvkitError: The error that ended the rollout; finished trajectories are kept.
    """
    from envkit.cli.run_digest import RunDigest  # the viewer, which other commands do not need

    # The folder is claimed before the sinks open and the model loads: of two equal commands that
    # start together, one ends at once and the other loses nothing.
    _check_names(plan.config)
    with _closed_after(_first_env(plan)) as env, plan.claim() as claim:
        plan = plan.begun(claim)
        if plan.resume_or_start and plan.is_resumed and _is_finished(plan, claim):
            note(f"{claim.path} is finished: all {plan.to_play} episodes are done")
            return EXIT_OK
        signals, state = StopSignals(), RolloutState()
        with (
            RunDigest(claim.path, is_resumed=plan.is_resumed) as digest,
            _sinks(plan, claim.path, state) as sinks,
        ):
            outcome = _Outcome(digest)
            running = _Running(
                plan=plan, sinks=sinks, state=state, signals=signals, outcome=outcome, also=also
            )
            asyncio.run(_play(running, env, claim))
            if outcome.count:
                sinks.write_metrics(outcome.figures())
        code = _finish(plan, claim.path, outcome, signals)
    # A failed sink must show, but not hide that the run itself failed.
    return EXIT_ERROR if code == EXIT_OK and sinks.failures else code


def _is_finished(plan: RolloutPlan, claim: RunClaim) -> bool:
    """Whether a resumed run has nothing to play or to write, and did not fault throughout."""
    if plan.output is Output.JSON:  # the figures are the command's output
        return False
    with plan.open(claim) as folder:
        return (
            len(folder.progress.delivered) >= plan.to_play
            and (claim.path / REPORT_FILE).exists()
            and any(not one.is_faulted for one in folder.finished())
        )


def _check_names(config: RolloutConfig) -> None:
    """Reject a wrong name of an agent or of a player of workers before the model is loaded."""
    config.play_agent()
    if config.workers or config.player is not None:
        from envkit.cli.remote import GROUP

        load_plugin(GROUP, config.player, kind="player")


def _first_env(plan: RolloutPlan) -> "Env":
    """Return the environment that provides the codec's tools, and the policy.

    Raises:
        EnvkitError: It cannot be built, or a wrapper does not fit it.
    """
    env = make_env(plan.env_id, dict(plan.config.env_kwargs))
    try:
        if plan.wraps:
            from envkit.wrappers import Wrapped

            Wrapped(lambda: env, plan.wraps)()
    except BaseException:
        env.close()
        raise
    if plan.config.isolation == "none":
        return env
    from envkit.rollout.sources import isolate, source_of

    env.close()  # it was only built to check the arguments
    source = source_of(plan.env_id, plan.config.env_kwargs)
    timeout_s = plan.config.retries.reset_timeout_s
    kind = plan.config.isolation
    return cast("Env", isolate(source, kind, memory_mb=None, start_timeout_s=timeout_s)())


@contextlib.contextmanager
def _closed_after(env: "Env") -> Generator["Env"]:
    """Close the environment after everything is written; only report its errors."""
    try:
        yield env
    finally:
        try:
            env.close()
        except BaseException as error:  # noqa: BLE001  # foreign code; SystemExit would look like success
            note(f"closing {type(env).__name__} failed: {describe(error)}")


@contextlib.contextmanager
def _sinks(plan: RolloutPlan, directory: Path, state: RolloutState) -> Generator[GuardedSinks]:
    """Open and close the sinks, and report incomplete ones."""
    run = SinkRun(
        directory=directory,
        config=plan.settings(),
        state=state,
        overwrite=plan.overwrite or plan.is_resumed,
        is_resumed=plan.is_resumed,
        tell=None if plan.is_quiet else note,
    )
    sinks = open_sinks(plan.sinks, run)
    try:
        with sinks:
            yield sinks
    finally:
        for failures in sinks.failures:
            note(f"sink {failures}")


async def _play(running: _Running, env: "Env", claim: RunClaim) -> None:
    plan, outcome = running.plan, running.outcome
    if not plan.is_quiet:
        note(f"loading {plan.choice.label} ...")
    # Workers load their own weights; this process only needs the codec.
    build = build_here if plan.config.workers else build_any
    progress = None if plan.is_quiet else note
    built = await build(plan.choice, env, plan.config, progress=progress)
    if isinstance(built, Built) and plan.choice.policy is None and not plan.is_quiet:
        training = describe_training(built.model, plan.env_id)
        if training is not None:
            note(training)
    outcome.started = time.perf_counter()
    if built.codec is not None:
        outcome.digest.vocabulary.token_text = built.codec.token_text
    player: AnyPlayer | None = None
    try:
        player = await _player(plan, built)
        with plan.open(claim) as folder:
            _drop_old_figures(claim.path)
            await _fill(running, built, player, folder)
    except StorageError:
        claim.keep()
        raise
    finally:
        if player is not None:
            await player.aclose()
        await built.engine.aclose()
    outcome.seconds = time.perf_counter() - outcome.started
    outcome.dropped = len(running.state.dropped)


async def _fill(running: _Running, built: Playing, player: AnyPlayer, folder: RunFolder) -> None:
    """Play the missing episodes of the folder."""
    plan, sinks, outcome = running.plan, running.sinks, running.outcome
    state, signals = running.state, running.signals
    if plan.is_resumed:
        running.take_stored(folder)
    run = Run(
        plan.environment(),
        player,
        replace(plan.run, metadata=_metadata(plan, built)),
        interrupt=signals.interrupt,
        state=state,
        progress=folder.progress,
    )
    done = len(folder.progress.delivered)
    try:
        with (
            progress_for(state, done=done, is_quiet=plan.is_quiet) as progress,
            signals.installed(progress.tell),
        ):
            if not plan.is_quiet:
                sinks.tell = progress.tell
                _tell_resumed(plan, folder, progress)
            watching = asyncio.create_task(_tell_outages(state, progress))
            try:
                await run.play(_Delivery(running, folder, progress))
            finally:
                watching.cancel()
        if not signals.was_stopped:
            folder.complete()
    except asyncio.CancelledError:
        if not signals.was_stopped:
            raise
    except RunFailedError as failure:
        _explain(failure, folder, outcome, run)
        outcome.failure = failure
    except EnvkitError as error:
        _explain(error, folder, outcome, run)
        raise


async def _player(plan: RolloutPlan, built: Playing) -> AnyPlayer:
    """Return the player: in this process, or workers, which start now."""
    if not plan.config.workers:
        return Player(built.engine, built.codec, plan.config)
    if not plan.is_quiet:
        note(f"starting {plan.config.workers} workers ...")
    from envkit.cli.remote import remote_player  # needs an extra

    return await remote_player(plan)


@dataclass(frozen=True, slots=True)
class _Delivery:
    """Stores an episode first, then passes it on."""

    running: _Running
    folder: RunFolder
    progress: Progress

    async def __call__(self, played: Played) -> None:
        # Sinks get the record as stored: one that JSON cannot hold became a fault.
        stored = await self.folder.deliver(played, then=self.running.store)
        for trajectory in stored:
            self.running.pass_on(trajectory)
        self.progress.finished(stored)


def _explain(error: EnvkitError, folder: RunFolder, outcome: _Outcome, run: Run) -> None:
    """Add notes to the error: how to go on, and where the finished episodes are."""
    ids = [one.episode_id for played in run.undelivered for one in played]
    rescued: Path | None = None
    if ids:
        with contextlib.suppress(StorageError):
            rescued = folder.rescue(run.undelivered)
    target = folder.path if (folder.path / RUN_FILE).is_file() else rescued
    if isinstance(error, StorageError) and target is not None:
        is_full = getattr(error.__cause__, "errno", None) in _NO_SPACE
        first = "free some space, then complete" if is_full else "complete"
        error.add_note(f"{first} the run with --resume {target}")
    if outcome.count:
        finished = outcome.completed + outcome.faulted
        stored_ones = counted(finished, "finished trajectory")
        if parts := outcome.count - finished:
            stored_ones += f" and {parts} unfinished"
        lost = f"the file held {stored_ones} before that"
        error.add_note(lost if folder.is_lost else f"{folder.path} keeps {stored_ones}")
    if rescued is not None:
        moved = "" if target == rescued else ", which --resume adds to the run"
        others = counted(len(ids), "trajectory")
        error.add_note(f"{rescued} keeps {others} that could not be stored{moved}")
    elif ids:
        shown = ", ".join(ids[:_SHOWN_IDS])
        error.add_note(f"{counted(len(ids), 'trajectory')} could not be stored anywhere: {shown}")


async def _tell_outages(state: RolloutState, progress: Progress) -> None:
    """Report when episodes start to wait for something, and when they go on."""
    was_down = False
    while True:
        await asyncio.sleep(_LOOK_S)
        outage = None if state.availability is None else state.availability.outage
        if outage is not None and not was_down:
            progress.tell(f"{outage}: {outage.reason}")
        elif outage is None and was_down:
            progress.tell("playing again")
        was_down = outage is not None


def _tell_resumed(plan: RolloutPlan, folder: RunFolder, progress: Progress) -> None:
    if plan.is_resumed:
        done, parts = len(folder.progress.delivered), len(folder.progress.unfinished)
        again, rescued = folder.progress.retried, folder.progress.rescued
        retried = f", {again} faulted ones play again" if again else ""
        retried += f", {counted(rescued, 'rescued trajectory')} added" if rescued else ""
        progress.tell(
            f"resuming: {done} of {plan.to_play} episodes are done, {parts} started{retried}"
        )


def _drop_old_figures(directory: Path) -> None:
    """Remove an older run's figures, which must not remain if the new run fails."""
    for name in (METRICS_FILE, REPORT_FILE):
        with storage_errors(f"cannot replace {directory / name}"):
            (directory / name).unlink(missing_ok=True)


def _metadata(plan: RolloutPlan, built: Playing) -> dict[str, object]:
    wrap: dict[str, object] = stored(plan.wrap_settings()) if plan.wraps else {}
    return {"model": built.model, "rollout_seed": plan.config.seed, **wrap}


def _finish(plan: RolloutPlan, directory: Path, outcome: _Outcome, signals: StopSignals) -> int:
    """Verify, aggregate and report what was written; return the exit code."""
    if outcome.dropped:
        drops_stale = plan.config.tail.stale is Stale.DROP
        why = "some faulted or were stale" if drops_stale else "some faulted"
        note(f"{outcome.dropped} episodes were dropped with their groups, because {why}")
    if outcome.count == 0:
        note("no episode was kept")
        return signals.exit_code or EXIT_ALL_FAULTED
    if outcome.failure is None:
        _tell_faults(outcome)
    is_sound = summarise(directory, outcome.figures(), output=plan.output, digest=outcome.digest)
    if signals.was_stopped:
        if plan.output is not Output.NOTHING:
            more = plan.resume_options()
            note(f"complete the run with: envkit rollout --resume {directory}{more}")
        return signals.exit_code
    if outcome.failure is not None:
        raise outcome.failure
    wraps = _image_wraps(plan)
    if wraps and outcome.completed and not outcome.images:
        note(f"{wraps} changed nothing: no episode of {plan.env_id} showed an image")
        return EXIT_ERROR
    if outcome.completed == 0:
        note("no episode ended without a fault; nothing can be trained on")
        return EXIT_ALL_FAULTED
    return EXIT_OK if is_sound else EXIT_ERROR


def _image_wraps(plan: RolloutPlan) -> str:
    """Return the options whose wrappers only change images."""
    from envkit.wrappers.named import IMAGE_WRAPPERS

    return " ".join(f"--wrap {name}" for name in plan.wraps if name in IMAGE_WRAPPERS)


def _tell_faults(outcome: _Outcome) -> None:
    if not outcome.faulted:
        return
    note(f"{outcome.faulted} of {outcome.count} episodes faulted:")
    for message, count in outcome.faults.most_common(_SHOWN_FAULTS):
        note(f"  {count} x {' '.join(message.split())}")
    hidden = len(outcome.faults) - _SHOWN_FAULTS
    if hidden > 0:
        note(f"  and {hidden} other messages; see the report")
