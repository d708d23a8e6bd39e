"""Gradients of TRL's losses over several processes: `python -m fakes.trl_gradient FILE`."""

import os
import sys
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from fakes.gradients import LossCase, Policy, Reduction
from fakes.gradients.episodes import episode_sets

from envkit.trajectory import Trajectory

CASE: Final = LossCase(reduction=Reduction.TOKEN_MEAN, is_off_policy=True)
STEPS: Final = (
    ("trl", "fault"),
    ("trl-images", "images"),
    ("trl-async", "clean"),
    ("trl-async", "unfaulted images"),
)
"""Paths and sets of episodes; the asynchronous trainer's rows must divide among two ranks."""


def policy_and_episodes(name: str) -> tuple[Policy, tuple[Trajectory, ...]]:
    """Return a set of episodes and a new policy that reads it."""
    (chosen,) = (one for one in episode_sets() if one.name == name.removeprefix("unfaulted "))
    trajectories = chosen.trajectories
    if name != chosen.name:
        trajectories = (*trajectories[:-1], replace(trajectories[0], episode_id="again"))
    return Policy(has_images=chosen.has_images), trajectories


def main(file: str) -> None:
    """Compute all gradients together with the other ranks; the first one writes them."""
    from datasets import disable_progress_bars  # pyright: ignore[reportMissingImports]
    from fakes.gradients.of_trl import GRADIENTS

    torch.set_num_threads(1)
    disable_progress_bars()
    paths = {path.name: path for path in GRADIENTS}
    found: dict[str, Any] = {}
    for name, episodes in STEPS:
        policy, trajectories = policy_and_episodes(episodes)
        paths[name].backward(policy, trajectories, paths[name].shapes[0], CASE)
        found[f"{name} {episodes}"] = policy.take_gradient()
    if os.environ["RANK"] == "0":
        np.savez(file, allow_pickle=False, **found)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
