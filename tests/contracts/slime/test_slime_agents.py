"""Several agents and agents behind the gateway, in slime's and miles' real rollout.

Each role and each trained sequence is a sample; siblings share the rollout id. Side requests have
mask 0 and make no row.
"""

from pathlib import Path
from typing import Any

import pytest
from fakes.agent_rows import DELEGATING, PRAISED, RELAYING, TITLED, check_sampled, runs
from fakes.agents import register_agents
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_model import FakeRequest
from fakes.slime_groups import (
    group_of,
    miles_args,
    miles_group,
    miles_state,
    roll_group,
    roll_miles,
)
from fakes.slime_run import DOTS, ECHO, Served, text_server, vision_server

from envkit.errors import ConfigurationError
from envkit.trajectory import read_trajectories, verify_file

pytestmark = pytest.mark.slime

GUESS = {"env_id": "toy-guess-v0", "env_kwargs": {"max_turns": 4}}

NORMALISE = {"custom_reward_post_process_path": "envkit_slime.post_process_rewards"}


@pytest.fixture(autouse=True)
def toys() -> None:
    register_agents()


def say_five(_request: FakeRequest) -> str:
    return "5"


async def roll_agents(args: Any, number: int, size: int = 2) -> list[Any]:
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group
    from slime.utils.types import Sample

    column = {**GUESS, "task": {"number": number}}
    group = [
        Sample(group_index=7, index=7 * size + n, metadata={"envkit": dict(column)})
        for n in range(size)
    ]
    return await generate_and_rm_group(args, group, GenerateState(args).sampling_params.copy())


@pytest.mark.usefixtures("needs_slime")
async def test_each_role_is_its_own_sample_and_siblings_share_the_rollout_id(
    tmp_path: Any,
) -> None:
    with text_server(say_five) as served:
        args = served.args({**GUESS, "record_dir": str(tmp_path)}, **NORMALISE)
        group = await roll_agents(args, number=3)

    assert [len(member) for member in group] == [2, 2]
    for index, siblings in zip((14, 15), group, strict=True):
        assert [one.metadata["envkit_episode"]["role"] for one in siblings] == ["asker", "keeper"]
        assert {one.rollout_id for one in siblings} == {index}
        assert [one.reward for one in siblings] == [0.0, 0.25]
        for one in siblings:
            one._validate_response_metadata_lengths()
            assert len(one.loss_mask) == len(one.rollout_log_probs) == one.response_length > 0
            assert one.loss_mask[-1] == 1
    assert verify_file(tmp_path).is_sound


@pytest.mark.usefixtures("needs_slime")
async def test_roles_are_normalised_against_the_same_role_of_the_group() -> None:
    data_utils = pytest.importorskip("slime.observability.rollout_data_utils")

    from envkit_slime import post_process_rewards

    with text_server(say_five) as served:
        args = served.args(GUESS, **NORMALISE)
        group = await roll_agents(args, number=3)
    data_utils.validate_rollout_id_annotated([group])
    samples = [one for siblings in group for one in siblings]
    samples[0].reward = 1.0

    raw, normalised = post_process_rewards(args, samples)

    assert raw == [1.0, 0.25, 0.0, 0.25]
    assert normalised[1] == normalised[3] == 0.0
    assert normalised[0] == -normalised[2] > 0


@pytest.mark.usefixtures("needs_slime")
async def test_a_fault_of_several_roles_is_one_row() -> None:
    envkit = {**GUESS, "retries": {"max_engine_retries_per_turn": 0}}
    plan = FailurePlan(script=[None, None, Failure.INTERNAL])
    with text_server(say_five, failures=plan) as served:
        args = served.args(envkit, **NORMALISE)
        (siblings,) = await roll_agents(args, number=3, size=1)

    (only,) = siblings
    assert only.status is only.Status.FAILED
    assert only.rollout_id == 7
    assert not any(only.loss_mask)


@pytest.mark.usefixtures("needs_slime")
async def test_role_that_never_spoke_has_no_sample() -> None:
    with text_server(say_five) as served:
        args = served.args(GUESS, **NORMALISE)
        group = await roll_agents(args, number=5)

    assert [len(member) for member in group] == [1, 1]
    assert group[0][0].reward == 1.0


@pytest.mark.usefixtures("needs_slime")
@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        ({"partial_rollout": True}, "--partial-rollout"),
        ({}, "--custom-reward-post-process-path"),
    ],
)
async def test_what_cannot_carry_siblings_is_refused(overrides: dict[str, Any], word: str) -> None:
    with text_server(say_five) as served:
        args = served.args(GUESS, **overrides)
        with pytest.raises(ConfigurationError, match=word):
            await roll_agents(args, number=3)


def played_by(agent: str, env: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**env, "agent": f"fakes.own_agents:{agent}", **options}


def check_episode(
    samples: list[Any], replies: list[int], served: Served, *, reward: float = 0.5
) -> None:
    """Check the samples of one episode against what the server was asked."""
    prompts = [payload["input_ids"] for payload in served.fake.payloads()]
    assert [len(runs(one.loss_mask)) for one in samples] == replies
    assert {one.reward for one in samples} == {reward}
    for one in samples:
        assert len(one.loss_mask) == len(one.rollout_log_probs) == one.response_length
        check_sampled(one.tokens, one.loss_mask, prompts)


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_slime")
@pytest.mark.parametrize(("agent", "replies"), [("titled", TITLED), ("delegating", DELEGATING)])
async def test_slime_gets_a_sample_of_each_sequence(
    agent: str, replies: list[int], tmp_path: Path
) -> None:
    from envkit_slime import post_process_rewards

    envkit = played_by(agent, ECHO, fan_out="sequences", record_dir=str(tmp_path / "run"))
    with text_server(lambda _: "yes") as served:
        args = served.args(envkit, **NORMALISE)
        group = await roll_group(args, group_of())
        for index, samples in enumerate(group):
            check_episode(samples, replies, served)
            assert {one.rollout_id for one in samples} == {index}
            for one in samples:
                one._validate_response_metadata_lengths()
    assert verify_file(tmp_path / "run").is_sound
    trained = [
        t.trained_token_count for t in read_trajectories(tmp_path / "run" / "trajectories.jsonl")
    ]
    assert sorted(trained) == sorted(sum(sum(s.loss_mask) for s in one) for one in group)
    flat = [one for samples in group for one in samples]
    flat[0].reward = 1.5
    for one in group[0]:
        one.reward = 1.5
    _, advantages = post_process_rewards(args, flat)
    assert len(set(advantages[: len(replies)])) == 1  # once per episode, however many samples
    assert advantages[0] == -advantages[-1] > 0


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_slime")
async def test_slime_gives_each_sample_of_an_agent_the_sum_of_its_rewards() -> None:
    envkit = played_by("relaying", ECHO, fan_out="sequences")
    with text_server(lambda _: "good") as served:
        for samples in await roll_group(served.args(envkit, **NORMALISE), group_of()):
            check_episode(samples, RELAYING, served, reward=PRAISED)


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_slime")
async def test_slime_takes_an_agent_of_one_trained_sequence_without_fan_out() -> None:
    with text_server(lambda _: "yes") as served:
        group = await roll_group(served.args(played_by("titled", ECHO)), group_of())
        for sample in group:
            check_episode([sample], TITLED, served)


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_slime")
async def test_slime_an_agent_of_several_rows_names_the_setting_that_takes_it() -> None:
    refused = pytest.raises(ConfigurationError, match="fan_out: sequences")
    with text_server(lambda _: "yes") as served, refused:
        await roll_group(served.args(played_by("delegating", ECHO)), group_of())


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_slime")
async def test_slime_has_the_images_of_each_sequence() -> None:
    envkit = played_by("delegating", DOTS, fan_out="sequences")
    with vision_server(lambda _: "5") as served:
        group = await roll_group(served.args(envkit, **NORMALISE), group_of())
    for samples in group:
        grids = [(one.multimodal_train_inputs or {}).get("image_grid_thw") for one in samples]
        assert [0 if one is None else len(one) for one in grids] == [1, 1, 0]


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_slime")
@pytest.mark.parametrize("agent", ["titled", "delegating"])
async def test_slime_a_fault_after_several_sequences_is_one_failed_sample(agent: str) -> None:
    plan = FailurePlan(script=[None, None, Failure.INTERNAL])
    envkit = played_by(agent, ECHO, retries={"max_engine_retries_per_turn": 0})
    with text_server(lambda _: "yes", failures=plan) as served:
        (sample,) = await roll_group(served.args(envkit), group_of(1))
    assert sample.status is sample.Status.FAILED
    assert sample.remove_sample
    assert not any(sample.loss_mask)


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_miles_main")
async def test_miles_gets_a_sample_of_each_sequence() -> None:
    envkit = played_by("delegating", ECHO, fan_out="sequences")
    with text_server(lambda _: "yes") as served:
        args = miles_args(served, envkit, **NORMALISE)
        group = await roll_miles(miles_state(args), miles_group())
        for index, samples in enumerate(group):
            check_episode(samples, DELEGATING, served)
            assert {one.rollout_id for one in samples} == {index}


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_miles_main")
async def test_miles_gives_each_sample_of_an_agent_the_sum_of_its_rewards() -> None:
    envkit = played_by("relaying", ECHO, fan_out="sequences")
    with text_server(lambda _: "good") as served:
        args = miles_args(served, envkit, **NORMALISE)
        for samples in await roll_miles(miles_state(args), miles_group()):
            check_episode(samples, RELAYING, served, reward=PRAISED)


@pytest.mark.usefixtures("installed")
@pytest.mark.usefixtures("needs_miles")
async def test_miles_takes_an_agent_of_one_trained_sequence() -> None:
    with text_server(lambda _: "yes") as served:
        args = miles_args(served, played_by("titled", ECHO))
        for sample in await roll_miles(miles_state(args), miles_group()):
            check_episode([sample], TITLED, served)


@pytest.mark.usefixtures("needs_miles")
@pytest.mark.usefixtures("needs_miles_main")
async def test_miles_gets_a_sample_of_each_role_with_one_rollout_id() -> None:
    rolled = await roll_miles_agents()
    assert [len(siblings) for siblings in rolled] == [2, 2]
    for index, siblings in enumerate(rolled):
        assert [one.metadata["envkit_episode"]["role"] for one in siblings] == ["asker", "keeper"]
        assert {one.rollout_id for one in siblings} == {index}
        assert [one.reward for one in siblings] == [0.0, 0.25]
        for one in siblings:
            one.validate()


@pytest.mark.usefixtures("needs_miles")
async def test_miles_release_takes_siblings_only_with_a_mean_over_tokens() -> None:
    from miles.utils.types import Sample

    if hasattr(Sample, "rollout_id"):
        pytest.skip("this miles counts the rollouts of siblings")
    with pytest.raises(ConfigurationError, match="--calculate-per-token-loss"):
        await roll_miles_agents()
    assert [
        len(siblings) for siblings in await roll_miles_agents(calculate_per_token_loss=True)
    ] == [2, 2]


async def roll_miles_agents(**flags: Any) -> Any:
    """Roll out a group of two episodes."""
    group = miles_group()
    for sample in group:
        sample.metadata = {"envkit": {**GUESS, "task": {"number": 3}}}
    with text_server(say_five) as served:
        return await roll_miles(miles_state(miles_args(served, GUESS, **NORMALISE, **flags)), group)
