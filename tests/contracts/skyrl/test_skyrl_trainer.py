"""What SkyRL's real trainer makes of our rows: advantages by turn, weights and baselines."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.skyrl_run import Run, advantages
from fakes.verl_envs import colour_of
from skyrl.train.generators.utils import concatenate_generator_outputs, merge_stepwise_output

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest
from envkit_skyrl import EnvkitExp, EnvkitTrainConfig
from envkit_skyrl.experiment import prepare_config

MakeRun = Callable[..., Run]

TEXT_FIELDS = (
    "prompt_token_ids",
    "response_ids",
    "rewards",
    "loss_masks",
    "rollout_logprobs",
    "stop_reasons",
    "is_last_step",
)


def first_wins(ask: Any) -> str:
    """The first episode of a group is right in every turn, the others never."""
    return "good" if ask.member == 0 else "bad"


def sees(ask: Any) -> str:
    """The first episode reads the newest image, the others do not look."""
    return colour_of(ask.images[-1]) if ask.member == 0 else "purple"


@pytest.mark.parametrize("dp", [1, 2, 4])
async def test_images_step_wise_go_through_the_real_trainer(run: MakeRun, dp: int) -> None:
    made = run(policy=sees, vision=True, step_wise=True, env_kwargs={"pictures": True}, dp=dp)
    output = await made.generate()
    assert [len(grid) for grid in output["image_grid_thw"]] == [1, 2, 3, 1, 2, 3]
    batch = await made.train(output)
    assert len(batch["sequences"]) % dp == 0
    assert advantages(batch)[:6] == [0.707] * 3 + [-0.707] * 3
    # What the model will see: every placeholder of a row has its patches.
    token = made.codec.media_ids[0]
    for ids, pixels in zip(batch["sequences"], batch["pixel_values"], strict=True):
        assert int((ids == token).sum()) * 4 == len(pixels)


async def test_images_merged_by_us_equal_the_whole_rows(run: MakeRun) -> None:
    options = {"policy": sees, "vision": True, "env_kwargs": {"pictures": True}}
    whole = await run(**options).generate()
    merged = await run(**options, step_wise=True, envkit={"merge": True}).generate()
    for key in ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs", "rewards"):
        assert merged[key] == whole[key], key
    for key in ("pixel_values", "image_grid_thw"):
        assert all(map(torch.equal, merged[key], whole[key])), key
    assert merged["is_last_step"] == [True, True]


async def test_a_batch_of_text_and_image_rows_goes_through_the_real_trainer(run: MakeRun) -> None:
    made = run(policy=lambda ask: "good", vision=True, prompts=2, step_wise=True)
    rows = [
        EpisodeRequest(env_id="obey-v0", env_kwargs={"pictures": True}),
        EpisodeRequest(env_id="obey-v0"),
    ]
    output = await made.generate(rows)
    assert [len(pixels) > 0 for pixels in output["pixel_values"]] == [True] * 6 + [False] * 6
    assert output["pixel_values"][6].shape == (0, output["pixel_values"][0].shape[1])
    assert output["image_grid_thw"][6].shape == (0, 3)
    batch = await made.train(output)
    assert len(batch["pixel_values"]) == 12


async def test_merge_equals_that_of_skyrl_on_text_rows(run: MakeRun) -> None:
    ours = await run(policy=first_wins, step_wise=True, envkit={"merge": True}).generate()
    theirs = merge_stepwise_output(await run(policy=first_wins, step_wise=True).generate())
    for key in TEXT_FIELDS:
        assert ours[key] == theirs[key], key
    assert ours["rollout_metrics"]["envkit/rows/merged"] == 4
    assert ours["rollout_metrics"]["envkit/rows/drifted_tokens"] == 0


async def test_merge_is_reward_neutral_in_the_real_trainer(run: MakeRun) -> None:
    # One episode is right in every turn, the other in none: SkyRL's own rows would carry a reward
    # on every turn, and their advantages would depend on the merge.
    found: dict[str, list[float]] = {}
    for name, section, by_trainer in (
        ("rows", {}, False),
        ("merged by us", {"merge": True}, False),
        ("merged by SkyRL", {}, True),
    ):
        made = run(policy=first_wins, step_wise=True, envkit=section)
        batch = await made.train(await made.generate(), merge=by_trainer)
        found[name] = sorted(set(advantages(batch)))
    assert found["rows"] == [-0.707, 0.707]
    assert found["rows"] == found["merged by us"] == found["merged by SkyRL"]


async def test_a_fault_keeps_the_mean_of_its_group(run: MakeRun) -> None:
    replies = {0: "good", 1: "bad", 2: "boom"}
    made = run(policy=lambda ask: replies[ask.member], samples=3)
    output = await made.generate()
    assert sum(output["loss_masks"][2]) == 0
    assert sum(output["rewards"][2]) == pytest.approx(0.375)
    assert output["stop_reasons"] == ["stop", "stop", "error"]
    assert output["rollout_metrics"]["envkit/episodes/faulted"] == 1
    assert output["rollout_metrics"]["envkit/reward/mean"] == pytest.approx(0.375)
    assert advantages(await made.train(output)) == [0.707, -0.707, 0.0]


@pytest.mark.parametrize("step_wise", [False, True])
async def test_a_group_in_which_every_member_faulted_stays_valid(
    run: MakeRun, step_wise: bool
) -> None:
    made = run(
        policy=lambda ask: "boom" if ask.group == "0" else "good",
        samples=2,
        prompts=2,
        step_wise=step_wise,
    )
    output = await made.generate()
    masked = [sum(mask) == 0 for mask in output["loss_masks"]]
    assert masked == [True, True] + [False] * (len(masked) - 2)
    assert advantages(await made.train(output))[:2] == [0.0, 0.0]


async def test_outputs_of_several_calls_are_joined_as_the_async_trainer_does(run: MakeRun) -> None:
    made = run(policy=first_wins, vision=True, prompts=2, step_wise=True)
    picture = EpisodeRequest(env_id="obey-v0", env_kwargs={"pictures": True})
    parts = [
        await made.generate([picture], uids=["0"]),
        await made.generate(uids=["1"]),
    ]
    joined: Any = concatenate_generator_outputs(copy.deepcopy(parts), step_wise=True)
    assert joined["rollout_metrics"]["envkit/episodes"] == 4
    assert joined["rollout_metrics"]["envkit/turns/max"] == 3
    assert joined["rollout_metrics"]["envkit_mean/stop/terminated/share"] == 1.0
    assert len(joined["pixel_values"]) == 12
    await made.train(joined)


async def test_zero_variance_filter_reads_scalar_rewards(run: MakeRun) -> None:
    made = run("good", "good", "good", scalar_rewards=True)
    made.cfg.trainer.algorithm.zero_variance_filter = True
    output = await made.generate()
    assert output["rewards"] == [0.75, 0.75]
    batch = await made.train(output)
    assert int(batch["loss_mask"].sum()) == 0


async def test_overlong_filter_and_zero_reward_do_what_they_do_in_skyrl(run: MakeRun) -> None:
    cut = {"max_turns": 2}
    masked = run("good", "good", samples=1, generator={**cut, "apply_overlong_filtering": True})
    output = await masked.generate()
    assert output["stop_reasons"] == ["length"]
    assert sum(output["loss_masks"][0]) == 0
    assert sum(output["rewards"][0]) == 0.5
    zeroed = run("good", "good", samples=1, generator={**cut, "zero_reward_on_non_stop": True})
    assert sum((await zeroed.generate())["rewards"][0]) == 0.0


WORDS = (("good", "bad", "good"), ("bad", "good", "good"), ("good", "boom", "boom"))


def says(ask: Any) -> str:
    """Two episodes of three turns, and one that fails in its second."""
    return WORDS[ask.member][ask.turn]


def by_turn(batch: Any, member_rows: dict[str, list[int]]) -> list[list[float]]:
    """Return each episode's advantages, one for each reply."""
    found: list[list[float]] = []
    for rows in member_rows.values():
        turns: list[float] = []
        for row in rows:
            before = 0.0
            pairs = zip(batch["loss_mask"][row], batch["advantages"][row], strict=True)
            for mask, advantage in pairs:
                if mask and not before:
                    turns.append(round(float(advantage), 4))
                before = float(mask)
        found.append(turns)
    return found


@pytest.mark.parametrize(
    ("step_wise", "merge", "by_trainer"),
    [(False, False, False), (True, False, False), (True, True, False), (True, False, True)],
    ids=["whole", "steps", "merged by envkit", "merged by SkyRL"],
)
@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        (0.0, [[0.125, -0.125, 0.0], [-0.125, 0.125, 0.0], []]),
        (1.0, [[0.0, -0.125, 0.0], [0.0, 0.125, 0.0], []]),
    ],
)
async def test_a_turn_is_compared_with_the_same_turn_of_its_group(
    run: MakeRun,
    step_wise: bool,
    merge: bool,
    by_trainer: bool,
    discount: float,
    expected: list[list[float]],
) -> None:
    envkit = {"turn_discount": discount, "merge": merge}
    made = run(policy=says, samples=3, step_wise=step_wise, envkit=envkit)
    made.cfg.trainer.algorithm.grpo_norm_by_std = False
    output = await made.generate()
    batch = await made.train(output, merge=by_trainer)
    members: dict[str, list[int]] = {}
    row, lasts = 0, batch.metadata.get("is_last_step") or [True] * 3
    for number, is_last in enumerate(lasts):
        members.setdefault(str(row), []).append(number)
        row += is_last
    assert by_turn(batch, members) == expected


def test_another_estimator_is_refused_with_the_setting() -> None:
    cfg: Any = EnvkitTrainConfig.from_cli_overrides(
        ["envkit.turn_discount=0.9", "trainer.algorithm.advantage_estimator=rloo"]
    )
    with pytest.raises(ConfigurationError, match="advantage_estimator=grpo, got 'rloo'"):
        prepare_config(cfg)


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
