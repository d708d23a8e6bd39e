"""Several agents through SkyRL's real trainer: each role's rows are a trajectory of its own."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.agents import register_agents
from fakes.skyrl_run import Run, advantages

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest

MakeRun = Callable[..., Run]
REQUEST = EpisodeRequest(env_id="toy-guess-v0", env_kwargs={"max_turns": 4}, task={"number": 3})


@pytest.fixture(autouse=True)
def toys() -> None:
    register_agents()


def make(run: MakeRun, policy: Callable[[Any], str], **options: Any) -> Run:
    return run(
        policy=policy,
        env="toy-guess-v0",
        env_kwargs={"max_turns": 4},
        **{"step_wise": True, "envkit": {"adjust_rewards": "team_last"}, **options},
    )


def say_five(ask: Any) -> str:
    return "5"


async def test_each_role_is_a_trajectory_and_the_trainer_takes_the_rows(run: MakeRun) -> None:
    made = make(run, say_five)
    output = await made.generate([REQUEST])

    ids = [entry.to_string() for entry in output["trajectory_ids"]]
    ends = [key for key, last in zip(ids, output["is_last_step"], strict=True) if last]
    assert ends == ["0_0", "0_1", "0_2", "0_3"]
    rewards = [
        sum(row)
        for row, last in zip(output["rewards"], output["is_last_step"], strict=True)
        if last
    ]
    assert rewards == [0.25] * 4
    assert len(advantages(await made.train(output))) >= len(ids)


async def test_one_row_for_each_sample_is_refused(run: MakeRun) -> None:
    with pytest.raises(ConfigurationError, match="step_wise_trajectories"):
        await make(run, say_five, step_wise=False).generate([REQUEST])


async def test_roles_whose_rewards_differ_are_refused(run: MakeRun) -> None:
    with pytest.raises(ConfigurationError, match="team_mean"):
        await make(run, say_five, envkit={}).generate([REQUEST])
