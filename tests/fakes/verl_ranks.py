"""Gradients of verl's real training engine, computed in processes of their own."""

# pyright: reportMissingImports=false
# verl is installed only where its contract tests run.

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fakes.gradients import CLIP, CONSTANT_TOKENS, LossCase, Policy, Reduction
from fakes.gradients.episodes import episode_sets
from fakes.gradients.of_verl import MODES, advantages_of, deliver
from fakes.verl_engine import gradient_of, training_batch, training_worker
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template

SETS = ("fault", "rewritten")
CASES = (
    LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=True, is_off_policy=True),
    LossCase(reduction=Reduction.CONSTANT),
    LossCase(reduction=Reduction.EPISODE_MEAN),
)


def rows_of(policy: Policy, name: str, case: LossCase) -> tuple[list[dict[str, torch.Tensor]], int]:
    """Return V1's rows of a set, and how many episodes it has."""
    (episodes,) = (one.trajectories for one in episode_sets() if one.name == name)
    filler_id = episodes[0].segments[0].train_ids[0]
    lines = deliver(episodes, case, is_v1=True, filler_id=filler_id)
    rows: list[dict[str, torch.Tensor]] = []
    for line, advantages in zip(lines, advantages_of(lines, case, is_v1=True), strict=True):
        prompt, response = (
            policy.small(ids) for ids in (line.output.prompt_ids, line.output.response_ids)
        )
        score = policy.old_logprobs if case.is_off_policy else policy.logprobs
        old = score([*prompt, *response]).detach()[len(prompt) - 1 :]
        rows.append({
            "prompts": torch.tensor(prompt),
            "responses": torch.tensor(response),
            "response_mask": line.mask,
            "old_log_probs": old.float(),
            "advantages": advantages,
        })  # fmt: skip
    return rows, len(episodes)


def padded(rows: Sequence[dict[str, torch.Tensor]], multiple: int) -> list[dict[str, torch.Tensor]]:
    """Append what verl's V1 trainer does where rows cannot be divided among its ranks."""
    padding, _ = construct_minimal_padding_template(dict(rows[0]), {}, eos_token_id=0)
    padding |= dict.fromkeys(("old_log_probs", "advantages"), torch.zeros(1))
    return [*rows, *[padding] * (-len(rows) % multiple)]


def rank(number: int, ranks: int, folder: str) -> None:
    """Compute the gradients of all sets and cases as one rank; the first one writes them."""
    torch.set_num_threads(1)
    place, policy = Path(folder), Policy()
    found: dict[str, Any] = {}
    for case in CASES:
        worker = training_worker(
            place / "model",
            meeting=place / "meeting",
            rank=number,
            ranks=ranks,
            loss_agg_mode=MODES[case.reduction],
            loss_scale_factor=CONSTANT_TOKENS,
            clip_ratio=CLIP,
        )
        for name in SETS:
            if name == "rewritten" and case.reduction is Reduction.EPISODE_MEAN:
                continue  # refused
            rows, episodes = rows_of(policy, name, case)
            share = padded(rows, ranks)[number::ranks]
            vector = gradient_of(worker, training_batch(share, episodes=episodes))
            found[f"{name}|{case.name}"] = vector.double().numpy()
    if number == 0:
        np.savez(place / "found.npz", **found)
