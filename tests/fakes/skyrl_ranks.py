"""SkyRL's policy worker on two data-parallel ranks: real sharding, real loss, gloo in between."""

import multiprocessing
import sys
import typing
from datetime import timedelta
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import typing_extensions

if sys.version_info < (3, 12):  # as in conftest.py; the second process does not read that
    typing.TypedDict = typing_extensions.TypedDict  # pyright: ignore[reportAttributeAccessIssue]

from fakes.gradients import LossCase, Policy
from fakes.gradients.episodes import episode_sets
from fakes.gradients.of_skyrl import PolicyWorker, make_config, on_cpu, training_batch
from skyrl.backends.skyrl_train.distributed.dispatch import MeshDispatch  # pyright: ignore[reportMissingImports]
from skyrl.backends.skyrl_train.distributed.strategy import DistributedStrategy  # pyright: ignore[reportMissingImports]
from torch.distributed.device_mesh import init_device_mesh

from envkit_conformance import Shape

RANKS = 2
Gradient = Any


def gradients_of_two_ranks(jobs: list[tuple[str, Shape, LossCase]], folder: Path) -> list[Gradient]:
    """Return the averaged gradient of each job; this process is rank 0."""
    store = str(folder / "store")
    second = multiprocessing.get_context("spawn").Process(target=run_rank, args=(1, store, jobs))
    second.start()
    try:
        return run_rank(0, store, jobs)
    finally:
        second.join(120)
        if second.exitcode is None:
            second.kill()


def run_rank(rank: int, store: str, jobs: list[tuple[str, Shape, LossCase]]) -> list[Gradient]:
    """Do one rank's part of every job."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=120),
    )
    try:
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
        return [_gradient(mesh, rank, *job) for job in jobs]
    finally:
        dist.destroy_process_group()


def _itself(chunk: Any) -> Any:
    return chunk


def _gradient(mesh: Any, rank: int, name: str, shape: Shape, case: LossCase) -> Gradient:
    (episodes,) = (one.trajectories for one in episode_sets() if one.name == name)
    policy = Policy()
    batch = training_batch(policy, episodes, shape, case)
    # In a run the chunks travel through ray; a reference is the object itself here.
    with patch("skyrl.backends.skyrl_train.distributed.dispatch.ray.put", _itself):
        ((*chunks,),) = MeshDispatch.stage_chunks(
            RANKS, batch, batch.metadata["policy_mini_batch_boundaries"]
        )
    worker: Any = PolicyWorker(policy, make_config(shape, case, len(episodes)), dp_size=RANKS)
    strategy = SimpleNamespace(backward=worker.strategy.backward, world_size=RANKS)
    strategy.all_reduce = MethodType(DistributedStrategy.all_reduce, strategy)
    worker.strategy, worker.device_mesh = strategy, mesh
    with on_cpu():
        worker.forward_backward(chunks[rank])
    for parameter in policy.model.parameters():  # as FSDP does, by averaging
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(parameter.grad)
        parameter.grad /= RANKS
    return policy.take_gradient()
