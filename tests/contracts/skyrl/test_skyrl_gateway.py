"""Black-box agents behind the gateway through SkyRL's real trainer: one trajectory per episode."""

from collections.abc import Callable

import pytest
from fakes.agent_rows import DELEGATING, TITLED, check_sampled, runs
from fakes.skyrl_run import Run, advantages

from envkit.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("installed")
MakeRun = Callable[..., Run]


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


async def test_skyrl_whole_rows_refuse_agents_by_name(run: MakeRun) -> None:
    with pytest.raises(ConfigurationError, match="step_wise_trajectories"):
        await run(
            policy=lambda ask: "yes",
            env="toy-echo-v0",
            envkit={"agent": "fakes.own_agents:delegating"},
        ).generate()
