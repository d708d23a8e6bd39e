"""Several agents, agents behind the gateway and envkit's tools through verl's real workers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.agent_rows import DELEGATING, PRAISED, RELAYING, TITLED, check_sampled, runs
from fakes.agents import register_agents
from fakes.envs import AdderEnv, register_toys
from fakes.verl_checks import check_row
from fakes.verl_worker import Bench, Sample
from verl.tools import function_tool as registry
from verl.tools.tool_registry import load_all_tools

import envkit_geo3k.tools
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.registration import register
from envkit.registration import registry as known
from envkit.rollout import EpisodeRequest
from envkit_verl import function_tools, tools

Make = Callable[..., Bench]


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the environments, and let verl know no function tools yet."""
    register_agents()
    register_toys()
    monkeypatch.setattr(registry, "FUNCTION_TOOL_REGISTRY", {})
    monkeypatch.setattr(registry, "_LOADED_FUNCTION_TOOL_PATHS", {})


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


ECHO = EpisodeRequest(env_id="toy-echo-v0").to_column()


@pytest.mark.usefixtures("installed")
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


@pytest.mark.usefixtures("installed")
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


@pytest.mark.usefixtures("installed")
async def test_verl_turn_estimator_refuses_agents(
    bench: Make, caplog: pytest.LogCaptureFixture
) -> None:
    loop = {"envkit": {"agent": "fakes.own_agents:praising"}}
    made = bench("v1", lambda *_: "good", loop=loop, algorithm__adv_estimator="envkit_turns")
    assert (await made.run([Sample(envkit=ECHO)])).rows == []
    assert "envkit_turns compares rows" in caplog.text


@pytest.mark.usefixtures("installed")
async def test_verl_v0_refuses_agents_by_name(bench: Make) -> None:
    made = bench("v0", lambda *_: "yes", loop={"envkit": {"agent": "fakes.own_agents:titled"}})
    with pytest.raises(ConfigurationError, match="use_v1"):
        await made.run([Sample(envkit=ECHO)])


TURN = "actor_rollout_ref__rollout__multi_turn__"


def call(name: str, **arguments: Any) -> str:
    text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{text}\n</tool_call>"


def test_verl_function_tool_file_is_loaded_by_verl(tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    path.write_text("from envkit_verl import function_tools\nfunction_tools('toy-adder-v0')\n")
    (found,) = load_all_tools(tool_config_path=None, function_tool_path=str(path))
    assert found.name == "add"
    sent = found.tool_schema.model_dump(exclude_unset=True, exclude_none=True)
    assert sent == AdderEnv.tools[0].to_json()
    assert asyncio.run(found.call({"a": 1, "b": 2})).text == "3"
    assert "is not of type 'integer'" in asyncio.run(found.call({"a": "x", "b": 2})).text


def test_verl_function_tools_refuse_what_has_no_function() -> None:
    if "geo3k-v0" not in known():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)
    with pytest.raises(ConfigurationError, match="EnvAgentLoop"):
        function_tools("geo3k-v0")
    with pytest.raises(UnknownNameError, match="add"):
        function_tools("toy-adder-v0", names=["ad"])


def test_verl_schemas_keep_items_and_choices() -> None:
    """verl's own schema drops everything of a property but type, description and enum."""
    made = tools.ExactToolSchema.of(envkit_geo3k.tools.ZOOM)
    sent = made.model_dump(exclude_unset=True, exclude_none=True)
    assert sent["function"]["parameters"]["properties"]["region"]["items"] == {"type": "number"}


async def test_verl_stock_tool_loop_plays_our_function_tool(bench: Make, tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    path.write_text("from envkit_verl import function_tools\nfunction_tools('toy-adder-v0')\n")
    replies = iter([call("add", a=20, b=22), "It is 42."])
    made = bench("v0", lambda *_: next(replies), **{f"{TURN}function_tool_path": str(path)})
    await made.run_stock([Sample(agent_name="tool_agent")])
    assert "42" in made.server.tokenizer.decode(made.server.calls[1].prompt_ids)
