"""A run as an asynchronous generator of trajectories."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import Engine
from envkit.rollout.host import EnvFactory
from envkit.rollout.plan import Played, RolloutState, RunPlan
from envkit.rollout.player import Player
from envkit.rollout.run import Run
from envkit.tasks import Task
from envkit.tokens.codec import ChatCodec
from envkit.trajectory.trajectory import TAIL, Trajectory


async def collect(
    env_id: str | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    episodes: int,
    group_size: int = 1,
    concurrency: int = 64,
    config: RolloutConfig | None = None,
    tasks: Sequence[Task] | None = None,
    state: RolloutState | None = None,
) -> AsyncGenerator[Trajectory, None]:
    """Play episodes and yield their records as they finish.

    A record is delivered once the loop asks for the next one. Closing the generator, or leaving
    its `async for` with an exception, cancels all running episodes and closes all environments.
    `Run` also accepts an interrupt, engines per role, and an earlier run's progress.

    Args:
        env_id: A registered environment, or a function that builds one.
        engine: Samples the replies; the caller closes it.
        codec: Encodes the environments' messages.
        episodes: As in `RunPlan`.
        group_size: As in `RunPlan`.
        concurrency: As in `RunPlan`.
        config: Limits, retries, sampling, seed and the environment's arguments; None uses the
            defaults.
        tasks: As in `RunPlan`.
        state: Updated with the progress. Groups that `config.tail` parked in it come first.

    Yields:
        One trajectory per episode of the batch, in the order they finish. With several agents, one
        per role that replied; those of an episode come together.

    Raises:
        ConfigurationError: The plan is invalid, or the environment cannot be built with its
            arguments.
        RunFailedError: The first episodes all failed in the same way; they were yielded.
    """
    plan = RunPlan(episodes=episodes, group_size=group_size, concurrency=concurrency, tasks=tasks)
    player = Player(engine, codec, config)
    try:
        run = Run(env_id, player, plan, state=state)
        async with contextlib.aclosing(delivered(run)) as trajectories:
            async for trajectory in trajectories:
                yield trajectory
    finally:
        await player.aclose()


async def delivered(run: Run) -> AsyncGenerator[Trajectory, None]:
    """Play a run and yield its trajectories; see `collect`.

    Args:
        run: One that has not been played.

    Raises:
        ConfigurationError: As for `Run.play`.
        RunFailedError: As for `Run.play`.
    """
    ready: asyncio.Queue[tuple[Played, asyncio.Future[None]] | None] = asyncio.Queue()
    waiting: set[asyncio.Future[None]] = set()
    is_closed = False

    async def deliver(episode: Played) -> None:
        if TAIL in episode[0].metadata:
            return
        if is_closed:
            raise asyncio.CancelledError("the generator is closed")
        taken = asyncio.get_running_loop().create_future()
        waiting.add(taken)
        ready.put_nowait((episode, taken))
        try:
            await taken
        finally:
            waiting.discard(taken)

    async def play() -> None:
        try:
            await run.play(deliver)
        finally:
            ready.put_nowait(None)

    playing = asyncio.create_task(play())
    try:
        while (item := await ready.get()) is not None:
            episode, taken = item
            for trajectory in episode:
                yield trajectory
            if not taken.done():
                taken.set_result(None)
        await playing
    finally:
        is_closed = True
        playing.cancel()
        for taken in tuple(waiting):
            taken.cancel()
        await asyncio.gather(playing, return_exceptions=True)
