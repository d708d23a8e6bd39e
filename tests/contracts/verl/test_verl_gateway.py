"""Black-box agents behind the gateway through verl's real V1 worker."""

from collections.abc import Callable

import pytest
from fakes.agent_rows import DELEGATING, PRAISED, RELAYING, TITLED, check_sampled, runs
from fakes.verl_checks import check_row
from fakes.verl_worker import Bench, Sample

from envkit.errors import ConfigurationError
from envkit.rollout import EpisodeRequest

pytestmark = pytest.mark.usefixtures("installed")
Make = Callable[..., Bench]
ECHO = EpisodeRequest(env_id="toy-echo-v0").to_column()


@pytest.mark.parametrize(("agent", "replies"), [("titled", TITLED), ("delegating", DELEGATING)])
async def test_verl_v1_gets_a_row_of_each_trained_sequence(
    bench: Make, agent: str, replies: list[int]
) -> None:
    made = bench("v1", lambda *_: "yes", loop={"envkit": {"agent": f"fakes.own_agents:{agent}"}})
    run = await made.run([Sample(envkit=ECHO)], n=2)
    rows = sorted(run.rows, key=lambda row: row["key"])

    expected = [f"u0_{member}_{n}" for member in range(2) for n in range(len(replies))]
    assert [row["key"] for row in rows] == expected
    assert [len(runs(row["response_mask"].tolist())) for row in rows] == replies * 2
    prompts = [call.prompt_ids for call in run.server.calls]
    for row in rows:
        check_row(row)
        assert row["reward_score"] == 0.5
        tokens = [*row["prompts"].tolist(), *row["responses"].tolist()]
        check_sampled(tokens, row["response_mask"].tolist(), prompts)


@pytest.mark.parametrize(
    ("agent", "replies", "expected"),
    [("praising", [3], [[1.0, 10.0, 100.0]]), ("relaying", RELAYING, [[0.0, PRAISED], [PRAISED]])],
)
async def test_verl_v1_rewards_turns_of_one_row_and_each_of_several(
    bench: Make, agent: str, replies: list[int], expected: list[list[float]]
) -> None:
    made = bench("v1", lambda *_: "good", loop={"envkit": {"agent": f"fakes.own_agents:{agent}"}})
    run = await made.run([Sample(envkit=ECHO)], n=2)
    rows = sorted(run.rows, key=lambda row: row["key"])

    assert [row["reward_score"] for row in rows] == [PRAISED] * 2 * len(replies)
    for row, rewards in zip(rows, expected * 2, strict=True):
        check_row(row)
        ends = [end - 1 for _, end in runs(row["response_mask"].tolist())]
        assert [float(row["rm_scores"][end]) for end in ends] == rewards
        assert float(row["rm_scores"].sum()) == PRAISED


async def test_verl_turn_estimator_refuses_agents(
    bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    loop = {"envkit": {"agent": "fakes.own_agents:praising"}}
    made = bench("v1", lambda *_: "good", loop=loop, algorithm__adv_estimator="envkit_turns")
    assert (await made.run([Sample(envkit=ECHO)])).rows == []
    assert "envkit_turns compares rows" in caplog.text


async def test_verl_v0_refuses_agents_by_name(bench: Make) -> None:
    made = bench("v0", lambda *_: "yes", loop={"envkit": {"agent": "fakes.own_agents:titled"}})
    with pytest.raises(ConfigurationError, match="use_v1"):
        await made.run([Sample(envkit=ECHO)])
