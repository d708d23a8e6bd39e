"""Random histories through SkyRL's real conversion, advantages and normalization."""

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.gradients import CONSTANT_TOKENS, GROUP_SIZE, LossCase, Reduction
from fakes.gradients.of_skyrl import make_config
from fakes.random_groups import (
    FILLER,
    all_groups,
    check_advantages,
    check_owners,
    own_tokens,
    random_group,
    with_silent_leaves,
    without_images,
)

from envkit.trajectory import Trajectory
from envkit_conformance import Shape
from envkit_skyrl.conformance import rows_of_groups
from envkit_skyrl.trainer import EnvkitTrainer


def batch_of(
    group: tuple[Trajectory, ...], shape: Shape, reduction: Reduction
) -> tuple[Any, list[int]]:
    """Return the trainer's batch before the optimizer, and the episode of each row."""
    output = rows_of_groups(without_images(group), shape, filler_id=FILLER)
    episodes = [identity.repetition_id for identity in output["trajectory_ids"]]
    trainer: Any = object.__new__(EnvkitTrainer)  # the constructor would start a run
    trainer.cfg = make_config(shape, LossCase(reduction=reduction), GROUP_SIZE)
    trainer.cfg.generator.n_samples_per_prompt = len(group)
    trainer.all_metrics, trainer.tokenizer = {}, SimpleNamespace(pad_token_id=0)
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    uids = [identity.instance_id for identity in output["trajectory_ids"]]
    batch = trainer.convert_to_training_input(*trainer.postprocess_generator_output(output, uids))
    batch["values"] = None
    batch = trainer.compute_advantages_and_returns(batch)
    batch["unscaled"] = batch["advantages"].clone()
    bounds = batch.metadata["policy_mini_batch_boundaries"]
    prompts = batch.metadata["policy_prompt_boundaries"]
    return trainer._normalize_advantages(batch, bounds, prompts), episodes


def columns_of(batch: Any, row: int) -> tuple[list[int], list[int]]:
    """Return ids and mask of a row's response; sequences are padded on the left."""
    width = batch["loss_mask"].shape[1]
    return batch["sequences"][row][-width:].tolist(), batch["loss_mask"][row].int().tolist()


@pytest.mark.parametrize("reduction", Reduction)
@pytest.mark.parametrize("shape", [Shape.MERGED, Shape.STEPS])
def test_skyrl_random_histories_weigh_like_one_row(shape: Shape, reduction: Reduction) -> None:
    for name, group in all_groups():
        batch, episodes = batch_of(group, shape, reduction)
        rows = range(len(episodes))
        check_owners(group, [(episodes[row], *columns_of(batch, row)) for row in rows])
        trained = [row for row in rows if batch["loss_mask"][row].any()]
        masks = [batch["loss_mask"][row].bool() for row in rows]
        check_advantages(
            group,
            [(episodes[r], float(a)) for r in trained for a in batch["unscaled"][r][masks[r]]],
        )
        tokens = [len(own_tokens(one)) for one in group]
        for row in trained:
            own = len(group) * tokens[episodes[row]]
            divisor = {
                Reduction.EPISODE_MEAN: own,
                Reduction.TOKEN_MEAN: sum(tokens),
                Reduction.CONSTANT: len(group) * CONSTANT_TOKENS,
            }[reduction]
            found = batch["advantages"][row][masks[row]] * divisor
            expected = batch["unscaled"][row][masks[row]]
            assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-4), name


def test_skyrl_leaves_without_own_tokens_train_nothing() -> None:
    group = with_silent_leaves(random_group(1))
    batch, episodes = batch_of(group, Shape.MERGED, Reduction.TOKEN_MEAN)
    rows = [(episode, *columns_of(batch, row)) for row, episode in enumerate(episodes)]
    check_owners(group, rows)
