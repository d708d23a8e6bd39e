"""Recordings, random histories and failures through SkyRL's real output, trainer and gradient."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.effects import FAILURES, Effect, check_effects, failure_group
from fakes import random_groups
from fakes.conformance_checks import check_projection
from fakes.gradients import (
    CONSTANT_TOKENS,
    GROUP_SIZE,
    Compared,
    LossCase,
    Policy,
    Reduction,
    Verdict,
    of_skyrl,
)
from fakes.gradients.episodes import episode_sets
from fakes.gradients.of_skyrl import GRADIENTS, make_config, training_batch
from fakes.gradients.suite import measure, plain_gradient
from fakes.lost_backend import LOST, PATIENT, QUICK, check_ends, check_waits, register_lost
from fakes.skyrl_ranks import gradients_of_two_ranks
from fakes.skyrl_run import Run, real_trainer

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest
from envkit.trajectory import Trajectory
from envkit_conformance import Shape
from envkit_skyrl.conformance import PROJECTIONS, rows_of_groups
from envkit_skyrl.trainer import EnvkitTrainer


@pytest.mark.parametrize("name", [one.name for one in PROJECTIONS])
def test_skyrl_has_every_recording_token_for_token(name: str) -> None:
    check_projection(PROJECTIONS, name)


def batch_of(
    group: tuple[Trajectory, ...], shape: Shape, reduction: Reduction
) -> tuple[Any, list[int]]:
    """Return the trainer's batch before the optimizer, and the episode of each row."""
    output = rows_of_groups(
        random_groups.without_images(group), shape, filler_id=random_groups.FILLER
    )
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
    for name, group in random_groups.all_groups():
        batch, episodes = batch_of(group, shape, reduction)
        rows = range(len(episodes))
        random_groups.check_owners(
            group, [(episodes[row], *columns_of(batch, row)) for row in rows]
        )
        trained = [row for row in rows if batch["loss_mask"][row].any()]
        masks = [batch["loss_mask"][row].bool() for row in rows]
        random_groups.check_advantages(
            group,
            [(episodes[r], float(a)) for r in trained for a in batch["unscaled"][r][masks[r]]],
        )
        tokens = [len(random_groups.own_tokens(one)) for one in group]
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
    group = random_groups.with_silent_leaves(random_groups.random_group(1))
    batch, episodes = batch_of(group, Shape.MERGED, Reduction.TOKEN_MEAN)
    rows = [(episode, *columns_of(batch, row)) for row, episode in enumerate(episodes)]
    random_groups.check_owners(group, rows)


MakeRun = Callable[..., Run]


async def test_dynamic_sampling_cuts_step_wise_rows(run: MakeRun) -> None:
    made = run(policy=lambda ask: "good" if ask.member else "end", samples=2, step_wise=True)
    made.cfg.trainer.algorithm.dynamic_sampling.type = "filter"
    output = await made.generate()
    ids = [identity.instance_id for identity in output["trajectory_ids"]]
    assert len(ids) > 2
    kept, uids, goes_on = real_trainer(made.cfg, dp=1).handle_dynamic_sampling(output, ids)
    assert not goes_on
    assert len(uids) == len(kept["response_ids"]) == 2  # one prompt of two samples, as rows


@pytest.mark.parametrize("is_set", [False, True])
def test_normalising_a_batch_depends_on_its_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, is_set: bool
) -> None:
    (fault,) = (one for one in episode_sets() if one.name == "fault")
    case = LossCase(reduction=Reduction.TOKEN_MEAN)
    original = of_skyrl.make_config

    def normalising(shape: Shape, case: LossCase, episodes: int) -> Any:
        cfg = original(shape, case, episodes)
        cfg.trainer.algorithm.advantage_batch_normalize = is_set
        return cfg

    monkeypatch.setattr(of_skyrl, "make_config", normalising)
    found: list[Sequence[float]] = []
    for shape in (Shape.WHOLE, Shape.STEPS):
        batch = training_batch(Policy(), fault.trajectories, shape, case)
        trained = batch["advantages"][batch["loss_mask"].bool()]
        found.append([round(one, 7) for one in trained.tolist()])
    assert (found[0] == found[1]) is not is_set


def test_every_gradient_equals_the_plain_formula(compared: Compared) -> None:
    found = compared(GRADIENTS)
    wrong = [str(one) for one in found if one.verdict not in (Verdict.EQUAL, Verdict.FOUND)]
    assert not wrong
    assert {one.shape for one in found} == set(Shape) - {Shape.CALLS}  # their order changes no loss
    assert {one.case.reduction for one in found} == set(Reduction)


def test_two_data_parallel_ranks_have_the_gradient_of_one(tmp_path: Path) -> None:
    jobs = [
        ("fault", Shape.WHOLE, LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=True)),
        ("two groups", Shape.STEPS, LossCase(reduction=Reduction.EPISODE_MEAN, is_off_policy=True)),
        ("two groups", Shape.STEPS, LossCase(reduction=Reduction.CONSTANT)),
    ]
    for job, found in zip(jobs, gradients_of_two_ranks(jobs, tmp_path), strict=True):
        cosine, ratio = measure(found, plain_gradient(job[0], job[2]))
        assert cosine == pytest.approx(1, abs=1e-6), job
        assert ratio == pytest.approx(1, abs=1e-4), job


async def advantages_of(made: Run, name: str, shape: Shape) -> Effect:
    """Send a group through the trainer, without the deviation and with it."""
    found: dict[bool, tuple[float, ...]] = {}
    rows = tokens = 0
    for is_scaled in (False, True):
        made.cfg.trainer.algorithm.grpo_norm_by_std = is_scaled
        output = rows_of_groups(failure_group(name), shape, filler_id=made.codec.stop_ids[0])
        failed = [n for n, one in enumerate(output["trajectory_ids"]) if one.repetition_id == 3]
        rows, tokens = len(failed), sum(sum(output["loss_masks"][row]) for row in failed)
        members = [one.repetition_id for one in output["trajectory_ids"]]
        batch = await made.train(output)
        firsts = [members.index(member) for member in range(3)]
        spans = [batch["response_mask"][row].bool() for row in firsts]
        pairs = zip(firsts, spans, strict=True)
        found[is_scaled] = tuple(float(batch["advantages"][row][span][0]) for row, span in pairs)
    return Effect(rows=rows, trained_tokens=tokens, centred=found[False], scaled=found[True])


@pytest.mark.parametrize("shape", [Shape.WHOLE, Shape.MERGED])
async def test_failed_episodes_have_the_documented_effect(run: MakeRun, shape: Shape) -> None:
    made = run(samples=4, step_wise=shape is not Shape.WHOLE)
    check_effects("skyrl", {name: await advantages_of(made, name, shape) for name in FAILURES})


async def test_skyrl_ends_after_its_backend_was_killed(run: MakeRun) -> None:
    register_lost()
    made = run("hello", env=LOST, envkit=QUICK, samples=4)
    assert [sum(row) for row in (await made.generate())["rewards"]] == [1.0] * 4
    await check_ends(made.generate)


async def test_skyrl_goes_on_when_its_backend_is_back(run: MakeRun) -> None:
    register_lost()
    made = run("hello", env=LOST, envkit=PATIENT, samples=4)
    for output in await check_waits(made.generate):
        assert not any(map(sum, output["loss_masks"]))
    assert [sum(row) for row in (await made.generate())["rewards"]] == [1.0] * 4


async def test_skyrl_dataset_that_no_episode_reads_is_refused(run: MakeRun) -> None:
    """The environment would draw its own tasks, and the curve would look healthy."""
    made = run("good", envkit={"draw_tasks": False})
    with pytest.raises(ConfigurationError, match="no episode of obey-v0 reads it"):
        await made.generate()
    await made.generate([EpisodeRequest(env_id="obey-v0", seed=3)])
