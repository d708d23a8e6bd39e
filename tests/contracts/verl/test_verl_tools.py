"""envkit's tools in verl's own tool loop, registered as functions."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.envs import AdderEnv, register_toys
from fakes.verl_worker import Bench, Sample
from verl.tools import function_tool as registry
from verl.tools.tool_registry import load_all_tools

import envkit_geo3k.tools
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.registration import register
from envkit.registration import registry as known
from envkit_verl import function_tools, tools

Make = Callable[..., Bench]
TURN = "actor_rollout_ref__rollout__multi_turn__"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    register_toys()
    monkeypatch.setattr(registry, "FUNCTION_TOOL_REGISTRY", {})
    monkeypatch.setattr(registry, "_LOADED_FUNCTION_TOOL_PATHS", {})


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
