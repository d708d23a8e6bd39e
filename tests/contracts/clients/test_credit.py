"""Hand-offs and steps of real clients: which turn the reward is on."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")
pytest.importorskip("openai")

import agents
from fakes.agent_runs import played
from fakes.client_scripts import gateway
from fakes.installed import ROOT, install_metadata
from openai import AsyncOpenAI

from envkit.trajectory import StopReason

HAND_OFF = '<tool_call>\n{"name": "transfer_to_expert", "arguments": {}}\n</tool_call>'


@agents.function_tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("tools", [[], [add]], ids=["no tools", "tools"])
@pytest.mark.parametrize("kind", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
async def test_reward_of_an_openai_agents_hand_off_is_on_the_experts_turn(
    kind: Any, tools: list[Any]
) -> None:
    agents.set_tracing_disabled(True)
    script = lambda context: HAND_OFF if "Route it." in context else "The sum is three."  # noqa: E731
    async with (
        gateway(script) as run,
        AsyncOpenAI(base_url=f"{run.gateway.url}/v1", api_key=run.session.key) as client,
    ):
        model = kind(model="m", openai_client=client)
        expert = agents.Agent(name="expert", instructions="Add exactly.", model=model, tools=tools)
        router = agents.Agent(
            name="router", instructions="Route it.", model=model, handoffs=[expert]
        )
        result = await agents.Runner.run(router, "What is 1 + 2?")
    assert result.last_agent is expert
    trajectory = run.trajectory()
    kind_of_expert = "sub-agent" if tools else None  # without tools it quotes the router's reply
    assert [turn.info.get("agent") for turn in trajectory.turns] == [None, kind_of_expert]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]


@pytest.mark.parametrize("env", ["canary-v0", "computer-use-v0"])
async def test_page_s_player_with_an_openai_client_records_what_the_loop_records(
    tmp_path: Path, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install_metadata(tmp_path)))
    page = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(# my_player\.py\n.*?)```", page, re.S)
    path = tmp_path / "my_player.py"
    path.write_text(program, encoding="utf-8")
    agent = {"command": [sys.executable, str(path)], "steps": True}
    found, loop = [await played(one, env=env) for one in (agent, None)]

    assert found.stop_reason is StopReason.TERMINATED, (found.fault, found.turns[-1].info)
    assert len(found.turns) > 1
    for name in ("train_ids", "loss_mask", "logprobs", "images"):
        assert getattr(found, name)() == getattr(loop, name)(), name
    assert [turn.reward for turn in found.turns] == [turn.reward for turn in loop.turns]
