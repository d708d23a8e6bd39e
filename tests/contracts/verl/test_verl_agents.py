"""Several agents through verl's real workers: V1 takes a list of rows, V0 does not."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.agents import register_agents
from fakes.verl_checks import check_row
from fakes.verl_worker import Bench, Sample

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest

Make = Callable[..., Bench]


@pytest.fixture(autouse=True)
def toys() -> None:
    register_agents()


def guess(number: int) -> str:
    return EpisodeRequest(
        env_id="toy-guess-v0", env_kwargs={"max_turns": 4}, task={"number": number}
    ).to_column()


def say_five(text: str, images: list[Any]) -> str:
    del text, images
    return "5"


async def test_verl_v1_gets_a_row_of_each_role_with_one_reward(bench: Make) -> None:
    made = bench("v1", say_five, loop={"envkit": {"adjust_rewards": "team_last"}})
    rows = (await made.run([Sample(envkit=guess(3))], n=2)).rows

    assert sorted(row["key"] for row in rows) == ["u0_0_0", "u0_0_1", "u0_1_0", "u0_1_1"]
    assert [row["envkit_role"] for row in rows] == ["asker", "keeper"] * 2
    for row in rows:
        check_row(row)
        assert row["reward_score"] == 0.25
        assert row["rm_scores"].nonzero().flatten().tolist() == [len(row["responses"]) - 1]
        assert row["response_mask"].any()


async def test_verl_v1_refuses_roles_whose_rewards_differ(bench: Make) -> None:
    run = await bench("v1", say_five).run([Sample(envkit=guess(3))])
    assert run.rows == []  # the worker logs why, and marks the prompt as failed


async def test_verl_v0_refuses_several_agents_by_name(bench: Make) -> None:
    with pytest.raises(ConfigurationError, match="use_v1"):
        await bench("v0", say_five).run([Sample(envkit=guess(3))])
