"""Several agents through SkyRL's real trainer: their rows are one trajectory, one episode."""

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


async def test_roles_of_an_episode_are_steps_of_one_trajectory(run: MakeRun) -> None:
    made = make(run, say_five)
    output = await made.generate([REQUEST])

    ids = [entry.to_string() for entry in output["trajectory_ids"]]
    rows = list(zip(ids, output["is_last_step"], output["rewards"], strict=True))
    assert [key for key, last, _ in rows if last] == ["0_0", "0_1"]
    assert [sum(row) for _, last, row in rows if last] == [0.25] * 2
    assert not any(sum(row) for _, last, row in rows if not last)
    assert len(ids) == 8  # two turns of two roles in each episode
    assert all(map(any, output["loss_masks"]))
    assert len(advantages(await made.train(output))) == len(ids)


async def test_episodes_with_different_numbers_of_roles_count_once(run: MakeRun) -> None:
    """Member 0 wins before the keeper speaks, so it has one role less than the others."""
    made = make(run, lambda ask: "5" if ask.member else "3", samples=4)
    batch = await made.train(await made.generate([REQUEST]))
    rows = advantages(batch)
    assert rows[0] == 1.5  # (1 - 0.4375) / 0.375, over four episodes
    assert set(rows[1:]) == {-0.5}


async def test_turns_of_several_agents_are_not_compared(run: MakeRun) -> None:
    made = make(run, say_five, envkit={"adjust_rewards": "team_last", "turn_discount": 0.5})
    with pytest.raises(ConfigurationError, match="turn_discount"):
        await made.generate([REQUEST])


async def test_one_row_for_each_sample_is_refused(run: MakeRun) -> None:
    with pytest.raises(ConfigurationError, match="step_wise_trajectories"):
        await make(run, say_five, step_wise=False).generate([REQUEST])


async def test_roles_whose_rewards_differ_are_refused(run: MakeRun) -> None:
    with pytest.raises(ConfigurationError, match="team_mean"):
        await make(run, say_five, envkit={}).generate([REQUEST])
