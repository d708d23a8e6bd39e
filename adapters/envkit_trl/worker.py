"""A rollout worker for TRL's AsyncGRPOTrainer: text episodes, any number of rows each.

It runs in the trainer's process, on its own thread, and samples while the trainer trains.
Contracts: `RolloutWorkerProtocol` and `RolloutSample` of trl/experimental/async_grpo (1.16). Rows
    are joined if a prompt exactly extends the previous turn, and fork otherwise: TRL's own
    realignment drops sampled tokens.
"""

import asyncio
import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from envkit.errors import ConfigurationError, EngineFault, FaultKind, RunFailedError
from envkit.ranges import at_least
from envkit.rollout.availability import Watched
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Engine
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.player import Player
from envkit.rollout.request import EpisodeRequest
from envkit.rollout.setup import GroupStart
from envkit.threads.workers import gather_or_cancel
from envkit.tokens import ChatCodec
from envkit.trajectory.trajectory import Trajectory
from envkit_trl.batch import group_spec, reseeded
from envkit_trl.contract import CONTRACT
from envkit_trl.loop_thread import LoopThread
from envkit_trl.requests import row_request
from envkit_trl.samples import RowSettings, group_metrics, group_samples
from envkit_trl.settings import (
    TAIL_SETTING,
    check_arguments,
    rollout_settings,
    warn_of_worker_arguments,
)
from envkit_trl.transfer import EngineWeightTransfer

_FULL_S: Final = 0.02
"""Seconds between checks of a full buffer."""


class EnvRolloutWorker:
    """Plays a dataset's episodes repeatedly and puts their rows into TRL's buffer.

    Attributes:
        rollout_buffer: Queue of `RolloutSample`, read by the trainer.
        metrics_queue: Queue of dictionaries that the trainer logs.
        model_version: Last version from the trainer.
        takes_images: Whether the trainer is an `EnvAsyncGRPOTrainer`, which sets it.
    """

    def __init__(
        self,
        args: Any,  # noqa: ANN401  # a trl AsyncGRPOConfig
        dataset: Iterable[Mapping[str, Any]],
        *,
        engine: Engine,
        codec: ChatCodec,
        config: RolloutConfig | Mapping[str, Any] | None = None,
        groups_at_once: int = 4,
        buffer_rows: int = 256,
        most_empty_groups: int = 16,
        scale_rewards: bool = True,
    ) -> None:
        """Make a worker; the trainer starts and stops it.

        Args:
            args: The trainer's arguments: group size, sampling and completion length.
            dataset: Rows with a column "envkit"; without it the configuration's environment is
                played. Every pass over it has its own seeds.
            engine: Samples the replies, with its own weights; the caller closes it.
            codec: Encodes observations.
            config: Environment, limits, retries, sampling and seed; a mapping is read strictly.
            groups_at_once: Groups played concurrently.
            buffer_rows: Rows that may wait for the trainer before the worker pauses. A smaller
                buffer holds fresher rows: the trainer drops those older than `max_staleness`
                versions.
            most_empty_groups: Consecutive groups without a fault and without a training row, such
                as with prompts that fill the context, after which the worker fails.
            scale_rewards: Divide advantages by the standard deviation of the group's rewards.

        Raises:
            ConfigurationError: The rollouts cannot honour an argument, or there are no rows.
        """
        CONTRACT.check()
        check_arguments(args, who="EnvRolloutWorker", has_codec=True)
        warn_of_worker_arguments(args)
        counts = {"groups_at_once": groups_at_once, "buffer_rows": buffer_rows}
        at_least(1, **counts, most_empty_groups=most_empty_groups)
        config = RolloutConfig.for_trainer(config, tail=TAIL_SETTING)
        self._config, self._sampling = rollout_settings(args, config)
        self._requests = _read(dataset, config)
        self._engine, self._codec = engine, codec
        self._group_size: int = args.num_generations
        self._groups_at_once = groups_at_once
        self._most_empty = most_empty_groups
        self._empty = 0
        self._next_group = 0
        self._progress = time.monotonic()
        self._loop: LoopThread | None = None
        self._running: Future[None] | None = None
        self._interrupt: Interrupt | None = None
        self._availability: Watched | None = None
        self._is_scaled = scale_rewards
        self.takes_images = False
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(maxsize=buffer_rows)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.model_version = 0

    def weight_transfer(self) -> EngineWeightTransfer:
        """Return TRL's `weight_transfer` for an engine with `update_weights`.

        Raises:
            ConfigurationError: The engine has no `update_weights`.
        """
        return EngineWeightTransfer(self._engine, version=lambda: self.model_version + 1)

    def row_settings(self) -> RowSettings:
        """Return how rows are written for the trainer."""
        return RowSettings(
            end_id=self._codec.stop_ids[0],
            media_ids=self._codec.media_ids,
            takes_images=self.takes_images,
            is_scaled=self._is_scaled,
        )

    # ---- what TRL calls

    def start(self) -> None:
        """Start playing, if the worker is not already running."""
        if self._running is not None:
            return
        self._loop = LoopThread("envkit-trl-worker")
        self._progress = time.monotonic()
        self._running = self._loop.submit(self._run())

    def stop(self) -> None:
        """Abort running episodes, close the environments and stop the thread; idempotent."""
        loop, self._loop = self._loop, None
        running, self._running = self._running, None
        if loop is None or running is None:
            return
        loop.run(self._stop(running))
        loop.close()

    def update_model_version(self, model_version: int) -> None:
        """Set the current policy version."""
        self.model_version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise the error that ended the worker, or a fault if it makes no progress.

        Raises:
            EnvkitError: The worker ended: too many faults, or a broken contract.
            EngineFault: No episode has ended for `stale_after_s` seconds, and none waits for a
                backend, which has its own deadlines.
        """
        running = self._running
        if running is not None and running.done() and not running.cancelled():
            error = running.exception()
            if error is not None:
                raise error
        if self._availability is not None and self._availability.outage is not None:
            self._progress = time.monotonic()
        seconds = time.monotonic() - self._progress
        if running is not None and seconds > stale_after_s:
            raise EngineFault(
                f"no episode has ended for {seconds:.0f} s (heartbeat_stale_after_s is "
                f"{stale_after_s:.0f}); check the engine, or set limits.episode_timeout_s",
                kind=FaultKind.TIMEOUT,
            )

    # ---- on the worker's thread

    async def _run(self) -> None:
        self._interrupt = Interrupt()
        player = Player(self._engine, self._codec, self._config)
        self._availability = player.availability
        try:
            await gather_or_cancel(
                [self._play_groups(player, self._interrupt) for _ in range(self._groups_at_once)]
            )
        finally:
            await player.aclose()
            await self._interrupt.close()

    async def _stop(self, running: Future[None]) -> None:
        if self._interrupt is not None:
            self._interrupt.fire()
        await asyncio.wait([asyncio.wrap_future(running)])

    async def _play_groups(self, player: Player, interrupt: Interrupt) -> None:
        while interrupt.reason is None:
            group, self._next_group = self._next_group, self._next_group + 1
            version = self.model_version
            trajectories = await self._play_group(player, interrupt, group)
            if interrupt.reason is not None:
                return
            samples, tally = group_samples(
                trajectories, group_id=group, version=version, settings=self.row_settings()
            )
            self.metrics_queue.put(group_metrics(trajectories, tally))
            self._count_empty(trajectories, len(samples))
            for sample in samples:
                await self._put(sample, interrupt)

    async def _play_group(
        self, player: Player, interrupt: Interrupt, group: int
    ) -> tuple[Trajectory, ...]:
        request = self._requests[group % len(self._requests)]
        sampling, start = reseeded(self._sampling, group), GroupStart()

        async def episode(member: int) -> tuple[Trajectory, ...]:
            spec = group_spec(request, start, member, (self._config.seed, group))
            spec = replace(spec, sampling=sampling)
            played = await player.play(request.factory(), spec, interrupt=interrupt)
            self._progress = time.monotonic()
            return played

        members = range(self._group_size)
        episodes = await gather_or_cancel([episode(member) for member in members])
        return tuple(one for played in episodes for one in played)

    def _count_empty(self, trajectories: Sequence[Trajectory], rows: int) -> None:
        """Fail if no group ever has a row: the trainer would wait forever. Faults are the player's.

        Raises:
            RunFailedError: See above.
        """
        if any(one.is_faulted for one in trajectories):
            return
        self._empty = 0 if rows else self._empty + 1
        if self._empty >= self._most_empty:
            reasons = ", ".join(sorted({one.stop_reason.value for one in trajectories}))
            raise RunFailedError(
                f"{self._empty} groups in a row gave no training row; the episodes of the last "
                f"ended with {reasons}. Raise the limits, or shorten the prompts"
            )

    async def _put(self, sample: Any, interrupt: Interrupt) -> None:  # noqa: ANN401
        """Wait for space: the buffer is a thread queue, and the event loop must not block."""
        while interrupt.reason is None:
            try:
                self.rollout_buffer.put_nowait(sample)
            except queue.Full:
                self._progress = time.monotonic()  # the trainer is the bottleneck
                await asyncio.sleep(_FULL_S)
            else:
                return


def _read(dataset: Iterable[Mapping[str, Any]], config: RolloutConfig) -> list[EpisodeRequest]:
    requests = [row_request(row, config) for row in dataset]
    if not requests:
        raise ConfigurationError("the worker needs at least one dataset row, got none")
    return requests
