"""Plays the episodes of one of TRL's batches, each at its own pace."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from envkit.errors import ConfigurationError
from envkit.rollout.engine import Sampling
from envkit.rollout.multi_agent import has_role
from envkit.rollout.player import Player
from envkit.rollout.request import EpisodeRequest
from envkit.rollout.setup import EpisodeSpec, GroupStart
from envkit.seeds import derive_seed
from envkit.trajectory.trajectory import Trajectory

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Where a batch stands in a training, from which its seeds follow."""

    run_seed: int
    step: int
    """The optimizer step whose weights sample it."""
    is_training: bool
    first_row: int
    """Index of the batch's first row over all processes."""
    group_size: int
    """Rows of one group; they follow each other."""


async def play_batch(
    player: Player,
    requests: Sequence[EpisodeRequest],
    place: BatchPlace,
    *,
    sampling: Sampling,
) -> tuple[Trajectory, ...]:
    """Play one episode for each request and return the trajectories in the same order.

    The members of a group play one task from one seed, with sampling seeds of their own.

    Raises:
        ConfigurationError: Engine, sampling or an environment do not fit together.
        RunFailedError: The first episodes all failed in the same way.
    """
    starts: dict[int, GroupStart] = {}
    if sampling.seed is not None:  # else a task that comes again would get the same replies
        seed = derive_seed(sampling.seed, place.is_training, place.step)
        sampling = replace(sampling, seed=seed)

    async def episode(row: int, request: EpisodeRequest) -> Trajectory:
        group, member = divmod(place.first_row + row, place.group_size)
        seed = request.seed
        if seed is None:
            seed = derive_seed("group", place.run_seed, place.is_training, place.step, group)
        spec = EpisodeSpec(
            seed=seed,
            task=request.task,
            group_id=f"{place.step}-{group}",
            group_start=starts.setdefault(group, GroupStart()),
            member=member,
        )
        played = await player.play(request.factory(), spec, sampling=sampling)
        if has_role(played[0]):
            raise ConfigurationError(
                f"{request.env_id} has several agents, each with a row of its own, and TRL's "
                "GRPOTrainer takes exactly one row for each prompt: use AsyncGRPOTrainer with "
                "envkit_trl's rollout worker"
            )
        return played[0]

    return await gather_or_cancel([episode(row, request) for row, request in enumerate(requests)])


async def gather_or_cancel(episodes: Sequence[Coroutine[Any, Any, T]]) -> tuple[T, ...]:
    """Return all results in order; the first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(episode) for episode in episodes]
    try:
        return tuple(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
