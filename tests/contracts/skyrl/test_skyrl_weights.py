"""An episode's weight and baseline in SkyRL's real trainer, however many rows it became."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.skyrl_run import Run, advantages

from envkit_skyrl import EnvkitExp

MakeRun = Callable[..., Run]


def replies(ask: Any) -> str:
    """Three turns that are right, one turn, two turns that are not, and a fault."""
    return ("good", "end", "bad" if ask.turn == 0 else "end", "boom")[ask.member]


async def scaled_advantages(made: Run, reduction: str, *, merge: bool = False) -> Any:
    """Return the trainer's batch as its workers get it."""
    algorithm = made.cfg.trainer.algorithm
    algorithm.loss_reduction, algorithm.max_seq_len = reduction, 512
    trainer = made.trainer(merge=merge)
    batch = await made.train(await made.generate(), merge=merge, trainer=trainer)
    metadata = batch.metadata
    return trainer._normalize_advantages(
        batch, metadata["policy_mini_batch_boundaries"], metadata["policy_prompt_boundaries"]
    )


def weights(batch: Any) -> list[float]:
    """Return the sum of each trained episode's advantages by token."""
    sums: list[float] = []
    rows = zip(
        batch["advantages"], batch["loss_mask"], batch.metadata["is_last_step"], strict=False
    )
    total = 0.0
    for row, mask, is_last in rows:
        total += float((row * mask).sum())
        if is_last:
            sums.append(round(total, 6))
            total = 0.0
    return sums


@pytest.mark.parametrize("reduction", ["sequence_mean", "seq_mean_token_sum_norm", "token_mean"])
@pytest.mark.parametrize("by", ["envkit", "skyrl"])
async def test_an_episode_of_several_rows_weighs_as_much_as_one_row(
    run: MakeRun, reduction: str, by: str
) -> None:
    options: dict[str, Any] = {"policy": replies, "samples": 4, "step_wise": True}
    one_row = run(**options, envkit={"merge": by == "envkit"})
    merged = await scaled_advantages(one_row, reduction, merge=by == "skyrl")
    steps = await scaled_advantages(run(**options), reduction)
    assert len(merged["sequences"]) == 4
    assert len(steps["sequences"]) == 7
    assert weights(steps) == weights(merged)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "maxrl"])
@pytest.mark.parametrize("step_wise", [False, True])
async def test_a_faulted_episode_is_not_in_its_groups_statistics(
    run: MakeRun, estimator: str, step_wise: bool
) -> None:
    found: list[list[float]] = []
    for samples in (3, 4):
        made = run(policy=replies, samples=samples, step_wise=step_wise)
        made.cfg.trainer.algorithm.advantage_estimator = estimator
        found.append(advantages(await made.train(await made.generate())))
    clean, with_fault = found
    assert with_fault == [*clean, 0.0]


async def test_a_lone_survivor_of_its_group_has_no_advantage(run: MakeRun) -> None:
    made = run(policy=lambda ask: "boom" if ask.member else "good", samples=3)
    assert advantages(await made.train(await made.generate())) == [0.0, 0.0, 0.0]


async def test_padding_for_the_workers_leaves_weights_and_groups_alone(run: MakeRun) -> None:
    plain = run(policy=replies, samples=4, step_wise=True)
    padded = run(policy=replies, samples=4, step_wise=True, dp=4)
    batches = [await scaled_advantages(made, "sequence_mean") for made in (plain, padded)]
    assert [len(batch["sequences"]) for batch in batches] == [7, 8]
    assert torch.equal(batches[0]["advantages"], batches[1]["advantages"][:7])


def test_the_pages_trainer_counts_episodes_in_the_asynchronous_trainer_too() -> None:
    page = (Path(__file__).parents[3] / "docs/trainers/skyrl.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)  # the page's own lines
    order = [one.__name__ for one in made["Trainer"].__mro__[:4]]
    assert order == ["Trainer", "EpisodeCredit", "FullyAsyncRayPPOTrainer", "RayPPOTrainer"]
    assert issubclass(made["Exp"], EnvkitExp)
