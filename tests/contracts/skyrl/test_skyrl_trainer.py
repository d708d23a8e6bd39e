"""What SkyRL's real trainer makes of our rows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.skyrl_envs import colour_of
from fakes.skyrl_run import Run, advantages
from skyrl.train.generators.utils import concatenate_generator_outputs, merge_stepwise_output

from envkit.rollout import EpisodeRequest

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


async def test_whole_rows_go_through_the_real_trainer(run: MakeRun) -> None:
    made = run(policy=first_wins)
    output = await made.generate()
    assert [sum(row) for row in output["rewards"]] == [0.75, 0.0]
    batch = await made.train(output)
    assert advantages(batch) == [0.707, -0.707]


async def test_step_wise_rows_go_through_the_real_trainer(run: MakeRun) -> None:
    made = run(policy=first_wins, step_wise=True)
    output = await made.generate()
    assert output["is_last_step"] == [False, False, True] * 2
    assert advantages(await made.train(output)) == [0.707] * 3 + [-0.707] * 3


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


async def test_images_whole_go_through_the_real_trainer(run: MakeRun) -> None:
    made = run(policy=sees, vision=True, env_kwargs={"pictures": True})
    output = await made.generate()
    assert [len(grid) for grid in output["image_grid_thw"]] == [3, 3]
    assert [round(sum(row), 2) for row in output["rewards"]] == [0.75, 0.0]
    assert advantages(await made.train(output)) == [0.707, -0.707]


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


async def test_an_environment_that_cannot_be_built_is_masked(run: MakeRun) -> None:
    made = run("good", "good", "good", prompts=2)
    rows = [EpisodeRequest(env_id="broken-v0"), EpisodeRequest(env_id="obey-v0")]
    output = await made.generate(rows)
    assert [sum(mask) > 0 for mask in output["loss_masks"]] == [False, False, True, True]
    assert output["prompt_token_ids"][0] == [made.codec.stop_ids[0]]
    await made.train(output)


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


async def test_rewards_by_turn_are_on_each_reply(run: MakeRun) -> None:
    made = run("good", "bad", "good", samples=1, envkit={"reward_placement": "turns"})
    output = await made.generate()
    (mask,), (rewards,) = output["loss_masks"], output["rewards"]
    placed = [index for index, reward in enumerate(rewards) if reward]
    ends = [n for n, value in enumerate(mask) if value and (n + 1 == len(mask) or not mask[n + 1])]
    assert placed == [ends[0], ends[2]]
    assert sum(rewards) == 0.5


async def test_overlong_filter_and_zero_reward_do_what_they_do_in_skyrl(run: MakeRun) -> None:
    cut = {"max_turns": 2}
    masked = run("good", "good", samples=1, generator={**cut, "apply_overlong_filtering": True})
    output = await masked.generate()
    assert output["stop_reasons"] == ["length"]
    assert sum(output["loss_masks"][0]) == 0
    assert sum(output["rewards"][0]) == 0.5
    zeroed = run("good", "good", samples=1, generator={**cut, "zero_reward_on_non_stop": True})
    assert sum((await zeroed.generate())["rewards"][0]) == 0.0
