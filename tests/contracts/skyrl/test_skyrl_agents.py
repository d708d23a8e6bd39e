"""Several agents, and agents behind the gateway: SkyRL's real trainer has rows of one episode."""

from collections.abc import Callable
from typing import Any

import pytest
from fakes.agent_rows import DELEGATING, TITLED, check_sampled, runs
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


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("agent", "replies"), [("titled", TITLED), ("delegating", DELEGATING)])
async def test_skyrl_counts_an_episode_once_however_many_rows_it_has(
    run: MakeRun, agent: str, replies: list[int]
) -> None:
    made = run(
        policy=lambda ask: "yes",
        env="toy-echo-v0",
        step_wise=True,
        envkit={"agent": f"fakes.own_agents:{agent}", "merge": True},
    )
    output = await made.generate()

    masks = output["loss_masks"]
    assert [len(runs(mask)) for mask in masks] == replies * 2
    ids = [one.to_string() for one in output["trajectory_ids"]]
    assert ids == [f"0_{member}" for member in range(2) for _ in replies]
    assert [sum(row) for row in output["rewards"]] == ([0.0] * (len(replies) - 1) + [0.5]) * 2
    prompts = [request["ids"] for request in made.client.requests]
    for prompt, response, mask in zip(
        output["prompt_token_ids"], output["response_ids"], masks, strict=True
    ):
        check_sampled([*prompt, *response], mask, prompts)
    output["rewards"][-1][-1] = 1.5
    found = advantages(await made.train(output))
    assert len(set(found[: len(replies)])) == 1
    assert found[0] == -found[-1] < 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("merge", "by_trainer"),
    [(False, False), (True, False), (False, True)],
    ids=["steps", "merged by envkit", "merged by SkyRL"],
)
async def test_skyrl_credits_the_turns_of_an_agent_in_the_order_of_its_calls(
    run: MakeRun, merge: bool, by_trainer: bool
) -> None:
    """The sub-agent's call comes between two of the main conversation, whatever rows they are."""
    words = (("good", "bad", "good"), ("bad", "good", "bad"))
    made = run(
        policy=lambda ask: words[ask.member][ask.turn],
        env="toy-echo-v0",
        step_wise=True,
        envkit={"agent": "fakes.own_agents:relaying", "merge": merge, "turn_discount": 0.5},
    )
    made.cfg.trainer.algorithm.grpo_norm_by_std = False
    output = await made.generate()
    assert [sum(row) for row in output["rewards"]] == [1.0, 0.0, 100.0, 0.0, 10.0, 0.0]
    prompts = [request["ids"] for request in made.client.requests]
    rows = ("prompt_token_ids", "response_ids", "loss_masks")
    for prompt, response, mask in zip(*(output[name] for name in rows), strict=True):
        check_sampled([*prompt, *response], mask, prompts)

    batch = await made.train(output, merge=by_trainer)
    # The returns are 26, 50 and 100, and 5, 10 and 0.
    assert advantages(batch) == [10.5, 20.0, 50.0, -10.5, -20.0, -50.0]


@pytest.mark.usefixtures("installed")
async def test_skyrl_whole_rows_refuse_agents_by_name(run: MakeRun) -> None:
    with pytest.raises(ConfigurationError, match="step_wise_trajectories"):
        await run(
            policy=lambda ask: "yes",
            env="toy-echo-v0",
            envkit={"agent": "fakes.own_agents:delegating"},
        ).generate()
