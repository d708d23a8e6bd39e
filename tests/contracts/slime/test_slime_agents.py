"""Several agents through slime's real rollout: one sample for each role, siblings by rollout id."""

from typing import Any

import pytest
from fakes.agents import register_agents
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_model import FakeRequest
from fakes.slime_run import text_server

from envkit.errors import ConfigurationError
from envkit.trajectory import verify_file

pytestmark = [pytest.mark.slime, pytest.mark.usefixtures("needs_slime")]

GUESS = {"env_id": "toy-guess-v0", "env_kwargs": {"max_turns": 4}}
NORMALISE = "envkit_slime.post_process_rewards"


@pytest.fixture(autouse=True)
def toys() -> None:
    register_agents()


def say_five(_request: FakeRequest) -> str:
    return "5"


async def roll(args: Any, number: int, size: int = 2) -> list[Any]:
    from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group
    from slime.utils.types import Sample

    column = {**GUESS, "task": {"number": number}}
    group = [
        Sample(group_index=7, index=7 * size + n, metadata={"envkit": dict(column)})
        for n in range(size)
    ]
    return await generate_and_rm_group(args, group, GenerateState(args).sampling_params.copy())


async def test_each_role_is_its_own_sample_and_siblings_share_the_rollout_id(
    tmp_path: Any,
) -> None:
    with text_server(say_five) as served:
        args = served.args(
            {**GUESS, "record_dir": str(tmp_path)}, custom_reward_post_process_path=NORMALISE
        )
        group = await roll(args, number=3)

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


async def test_roles_are_normalised_against_the_same_role_of_the_group() -> None:
    data_utils = pytest.importorskip("slime.observability.rollout_data_utils")

    from envkit_slime import post_process_rewards

    with text_server(say_five) as served:
        args = served.args(GUESS, custom_reward_post_process_path=NORMALISE)
        group = await roll(args, number=3)
    data_utils.validate_rollout_id_annotated([group])
    samples = [one for siblings in group for one in siblings]
    samples[0].reward = 1.0

    raw, normalised = post_process_rewards(args, samples)

    assert raw == [1.0, 0.25, 0.0, 0.25]
    assert normalised[1] == normalised[3] == 0.0
    assert normalised[0] == -normalised[2] > 0


async def test_a_fault_of_several_roles_is_one_row() -> None:
    envkit = {**GUESS, "retries": {"max_engine_retries_per_turn": 0}}
    plan = FailurePlan(script=[None, None, Failure.INTERNAL])
    with text_server(say_five, failures=plan) as served:
        args = served.args(envkit, custom_reward_post_process_path=NORMALISE)
        (siblings,) = await roll(args, number=3, size=1)

    (only,) = siblings
    assert only.status is only.Status.FAILED
    assert only.rollout_id == 7
    assert not any(only.loss_mask)


async def test_role_that_never_spoke_has_no_sample() -> None:
    with text_server(say_five) as served:
        args = served.args(GUESS, custom_reward_post_process_path=NORMALISE)
        group = await roll(args, number=5)

    assert [len(member) for member in group] == [1, 1]
    assert group[0][0].reward == 1.0


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
            await roll(args, number=3)
