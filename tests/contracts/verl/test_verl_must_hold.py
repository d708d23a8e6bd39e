"""The list "Must hold" of the verl reference, line by line, in both of verl's workers."""

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
from fakes.verl_checks import check_batch, check_images, check_row, model_runs
from fakes.verl_envs import colour_of
from fakes.verl_worker import PROMPT, RESPONSE, Bench, Run, Sample
from verl.experimental.agent_loop import AgentLoopBase

from envkit.rollout import EpisodeRequest
from envkit_verl import EnvAgentLoop

Make = Callable[..., Bench]


def see(text: str, images: list[Any]) -> str:
    """Say "up" to text, and name the colour of the last image."""
    del text
    return colour_of(images[-1]) if images else "up"


def steps(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-steps-v0", env_kwargs=kwargs).to_column()


def colours(**kwargs: Any) -> str:
    return EpisodeRequest(env_id="verl-colours-v0", env_kwargs=kwargs).to_column()


_mixed: dict[str, Run] = {}


@pytest.fixture
async def mixed(bench: Make, version: str) -> Run:
    """A batch with text, images, a fault, a prompt that is too long and two truncations.

    Played once for each worker: the tests only read what it delivered.
    """
    if version not in _mixed:
        _mixed[version] = await _play_mixed(bench, version)
    return _mixed[version]


async def _play_mixed(bench: Make, version: str) -> Run:
    samples = [
        Sample(envkit=steps(), uid="text", index=0),
        Sample(envkit=colours(), uid="pictures", index=1),
        Sample(envkit=steps(fails_at=1), uid="fault", index=2),
        Sample(envkit=steps(prompt_padding=PROMPT), uid="long", index=3),
        Sample(envkit=steps(padding=RESPONSE), uid="observation", index=4),
        Sample(envkit=colours(rounds=9, max_turns=9, side=196), uid="many", index=5),
    ]
    return await bench(version, see, model="qwen2_5_vl").run(samples, n=2)


async def test_verl_must_hold_1_lengths_masks_and_logprobs(mixed: Run) -> None:
    """`len(response_ids) == len(response_mask) == len(response_logprobs)`; mask 0/1; 0.0 on env."""
    assert len(mixed.rows) == 12
    for row in mixed.rows:
        check_row(row)
    trained = [row for row in mixed.rows if not row["envkit_failed"]]
    assert len(trained) == 8
    for row in trained:
        assert (row["rollout_log_probs"][row["response_mask"] == 1] < 0).all()


async def test_verl_must_hold_2_response_starts_with_the_model(mixed: Run) -> None:
    """The first response token is model output; at least one model token."""
    for row in mixed.rows:
        if not row["envkit_failed"]:
            assert row["response_mask"][0] == 1
            replies = [row["responses"][a:b].tolist() for a, b in model_runs(row["response_mask"])]
            assert replies  # exactly what the server sampled, nothing else
            sampled = [call.reply for call in mixed.server.calls]
            assert all(reply in sampled for reply in replies)


async def test_verl_must_hold_3_lengths_cut_at_turn_boundaries(mixed: Run) -> None:
    """Prompt and response within their lengths; cut only at a turn, never inside an image."""
    for row in mixed.rows:
        assert len(row["prompts"]) <= PROMPT
        assert len(row["responses"]) <= RESPONSE
        if not row["envkit_failed"]:  # the last token is the end of a reply
            assert row["response_mask"][-1] == 1
    reasons = {row.get("uid"): row["envkit_stop_reason"] for row in mixed.rows}
    assert reasons["observation"] == "response_tokens"
    assert reasons["many"] == "response_tokens"


async def test_verl_must_hold_4_image_runs_equal_images_and_grids(mixed: Run) -> None:
    """Image-pad runs == images, and pads_i == grid_i / merge^2, in rows with several images."""
    for row in mixed.rows:
        check_images(row, mixed.worker.processor)
    counts = [
        len(row["multi_modal_inputs"]["image_grid_thw"])
        for row in mixed.rows
        if row["uid"] == "pictures"
    ]
    assert counts == [3, 3]


@pytest.mark.parametrize("kept", [True, False])
async def test_verl_must_hold_5_logprobs_in_all_samples_or_in_none(
    bench: Make, version: str, kept: bool
) -> None:
    """Log-probs in all samples of a run or in none, faulted ones included."""
    option = {"actor_rollout_ref__rollout__calculate_log_probs": kept}
    samples = [Sample(envkit=steps()), Sample(envkit=steps(fails_at=0), uid="u1")]
    run = await bench(version, see, **option).run(samples)
    assert [("rollout_log_probs" in row) for row in run.rows] == [kept, kept]
    assert {call.params["logprobs"] for call in run.server.calls} == {kept}


async def test_verl_must_hold_6_reward_is_a_float_and_metrics_have_the_same_keys(
    mixed: Run,
) -> None:
    """`reward_score` is always a float; `reward_extra_info` has the same numeric keys."""
    assert all("rm_scores" in row for row in mixed.rows)
    check_batch(mixed.rows)
    for row in mixed.rows:
        assert isinstance(row["reward_score"], float)
        assert row["reward_extra_info"]["envkit/reward"] == pytest.approx(row["reward_score"])


async def test_verl_must_hold_7_fields_are_set_explicitly(mixed: Run, version: str) -> None:
    """`num_turns`, `metrics`, `extra_fields` are set: V1 dumps only what is."""
    turns = {row["uid"]: row["num_turns"] for row in mixed.rows}
    assert turns["text"] == 6  # three replies
    if version == "v1":
        for row in mixed.rows:
            assert {"num_turns", "metrics", "extra_fields"} <= set(row)
            assert set(row["metrics"]) == {
                "generate_sequences",
                "tool_calls",
                "compute_score",
                "num_preempted",
            }
    else:
        assert len(mixed.raw.meta_info["metrics"]) == 12
        assert mixed.raw.meta_info["reward_extra_keys"]


async def test_verl_must_hold_8_weight_versions_are_ints(mixed: Run) -> None:
    """`min_global_steps` and `max_global_steps` are ints, even if no server was asked."""
    for row in mixed.rows:
        sampled = row["uid"] != "long"
        assert row["min_global_steps"] == row["max_global_steps"]
        assert type(row["max_global_steps"]) is int
        if sampled:
            assert row["max_global_steps"] == mixed.server.global_steps


async def test_verl_must_hold_9_both_trainers_workers_take_the_same_episode(
    bench: Make,
) -> None:
    """V0 and V1 deliver the same ids, masks, log-probabilities and reward."""
    rows = [
        (
            await bench(version, see, model="qwen2_5_vl").run(
                [Sample(envkit=EpisodeRequest(env_id="verl-colours-v0", seed=5).to_column())]
            )
        ).rows[0]
        for version in ("v0", "v1")
    ]
    for key in ("prompts", "responses", "response_mask", "rollout_log_probs", "position_ids"):
        assert rows[0][key].tolist() == rows[1][key].tolist(), key
    assert rows[0]["reward_score"] == pytest.approx(rows[1]["reward_score"]) == pytest.approx(1.0)


def test_verl_must_hold_10_only_the_stable_subset_is_used() -> None:
    """envkit owns tokenisation and masks: no method of the base class is called but its own init.

    What the loop reads is what 0.7.1 to 0.9.1 have in common.
    """
    stable = {
        "config", "rollout_config", "server_manager", "tokenizer", "processor", "dataset_cls",
        "data_config", "loop",
    }  # fmt: skip
    source = inspect.getsource(EnvAgentLoop)
    base = {name for name in vars(AgentLoopBase) if not name.startswith("__")} - {"run"}
    used = {name for name in base if f"self.{name}" in source or f"super().{name}" in source}
    assert not used
    attributes = {
        word.split("(")[0].split(")")[0].split(",")[0].split(".")[0].strip()
        for word in source.replace("\n", " ").split("self.")[1:]
        for word in [word.split(" ")[0]]
    }
    own = {name for name in attributes if name.startswith("_")}
    assert attributes - own <= stable


async def test_verl_must_hold_everything_in_random_episodes(bench: Make, version: str) -> None:
    """Episodes of random length, replies, paddings, limits and failures give valid rows."""
    rng = random.Random(11)

    def babble(text: str, images: list[Any]) -> str:
        del text, images
        return " ".join(["up"] * rng.choice([1, 2, 5, 40, 90, 300]))

    samples = [
        Sample(
            envkit=steps(
                rounds=rng.randint(1, 6),
                padding=rng.choice([0, 3, 60, 150, 185, 190, 400]),
                prompt_padding=rng.choice([0, 10, 250, 300, 310, 330]),
                fails_at=rng.choice([None, None, None, 0, 2]),
            ),
            uid=f"u{number}",
            index=number,
        )
        for number in range(30)
    ]
    run = await bench(version, babble, max_model_len=400).run(samples)
    assert len(run.rows) == 30
    for row in run.rows:
        check_row(row)
        assert len(row["prompts"]) + len(row["responses"]) <= 400
    check_batch(run.rows)
    assert {row["envkit_failed"] for row in run.rows} == {0, 1}
    for call in run.server.calls:
        assert 1 <= call.params["max_tokens"] <= min(RESPONSE, 400 - len(call.prompt_ids))
