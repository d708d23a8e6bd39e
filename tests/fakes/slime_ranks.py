"""One of several data-parallel ranks: `python -m fakes.slime_ranks TRAINER RANK WORLD FOLDER`.

Writes the gradients that the trainer's ranks agree on to `FOLDER/RANK.npz`, by set and case.
"""

import importlib
import os
import sys
import warnings
from pathlib import Path

CASES = 3
"""So many of the suite's first cases: one for each reduction."""


def main() -> None:
    """Join the others, then compute every case."""
    trainer, rank, world, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    warnings.filterwarnings("ignore")
    from fakes.trainer_stubs import install

    install()
    import numpy as np
    import torch
    import torch.distributed
    from fakes.gradients.cases import CASES as ALL
    from fakes.gradients.episodes import episode_sets
    from fakes.gradients.suite import policy_for

    from envkit_conformance import Shape

    torch.set_num_threads(1)
    meeting = f"file://{Path(folder) / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    path = importlib.import_module(f"fakes.gradients.of_{trainer}").GRADIENTS[0]
    found = {}
    for episodes in episode_sets():
        if episodes.name not in ("clean", "fault", "images"):
            continue
        policy = policy_for(episodes)
        for case in ALL[:CASES]:
            path.backward(policy, episodes.trajectories, Shape.WHOLE, case)
            found[f"{episodes.name}|{case.name}"] = policy.take_gradient()
    np.savez(Path(folder) / f"{rank}.npz", **found)
    sys.stdout.flush()
    os._exit(0)  # the trainers leave threads behind


if __name__ == "__main__":
    main()
