"""envkit's tools in verl's own tool loop, as function tools and as BaseTool."""

import asyncio
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.envs import AdderEnv, register_toys
from fakes.verl_worker import Bench, Sample
from omegaconf import OmegaConf
from verl.tools import function_tool as registry
from verl.tools.tool_registry import load_all_tools

from envkit.errors import ConfigurationError, UnknownNameError
from envkit_verl import EnvkitTool, function_tools, tools

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


def tool_yaml(folder: Path, **config: Any) -> str:
    path = folder / "tools.yaml"
    entry = {"class_name": "envkit_verl.EnvkitTool", "config": {"type": "native", **config}}
    path.write_text(OmegaConf.to_yaml(OmegaConf.create({"tools": [entry]})))
    return str(path)


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
    import envkit_geo3k
    from envkit.registration import register
    from envkit.registration import registry as known

    if "geo3k-v0" not in known():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)
    with pytest.raises(ConfigurationError, match="EnvkitTool"):
        function_tools("geo3k-v0")
    with pytest.raises(UnknownNameError, match="add"):
        function_tools("toy-adder-v0", names=["ad"])


def test_verl_schemas_keep_items_and_choices() -> None:
    """verl's own schema drops everything of a property but type, description and enum."""
    import envkit_geo3k
    from envkit.registration import register
    from envkit.registration import registry as known

    if "geo3k-v0" not in known():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)
    made = EnvkitTool(
        {"type": "native", "env_id": "geo3k-v0", "tool": "zoom", "env_kwargs": {"zoom": True}}
    )
    sent = made.tool_schema.model_dump(exclude_unset=True, exclude_none=True)
    assert sent["function"]["parameters"]["properties"]["region"]["items"] == {"type": "number"}


async def test_verl_stock_tool_loop_plays_our_function_tool(bench: Make, tmp_path: Path) -> None:
    path = tmp_path / "tools.py"
    path.write_text("from envkit_verl import function_tools\nfunction_tools('toy-adder-v0')\n")
    replies = iter([call("add", a=20, b=22), "It is 42."])
    made = bench("v0", lambda *_: next(replies), **{f"{TURN}function_tool_path": str(path)})
    await made.run_stock([Sample(agent_name="tool_agent")])
    assert "42" in made.server.tokenizer.decode(made.server.calls[1].prompt_ids)


async def test_verl_stock_tool_loop_steps_a_stateful_environment(
    bench: Make, tmp_path: Path
) -> None:
    """Calls of a trajectory share one episode, though verl makes and releases around each call."""
    path = tool_yaml(tmp_path, env_id="toy-adder-v0", tool="add", env_kwargs={"max_turns": 2})
    replies = iter([call("add", a=1, b=2), call("add", a=3, b=4), call("add", a=5, b=6), "bye"])
    made = bench("v0", lambda *_: next(replies), **{f"{TURN}tool_config_path": path})
    await made.run_stock([Sample(agent_name="tool_agent")])
    last = made.server.tokenizer.decode(made.server.calls[-1].prompt_ids)
    assert [text in last for text in ("3", "7", "The episode is over.")] == [True] * 3
    gc.collect()
    await asyncio.sleep(0.05)
    assert not tools._sessions  # the episode went with verl's trajectory


async def test_verl_base_tool_takes_task_and_seed_of_the_row(tmp_path: Path) -> None:
    class Trajectory:
        """Stands for verl's AgentData."""

    made = EnvkitTool({"type": "native", "env_id": "toy-adder-v0", "tool": "add"})
    owner = Trajectory()
    task = {"a": 5, "b": 6}
    name, _ = await made.create(create_kwargs={"task": task, "seed": 3})
    answer, reward, metrics = await made.execute(name, {"a": 5, "b": 6}, agent_data=owner)
    assert (answer.text, reward, metrics) == ("11", 0.0, {})
    (session,) = tools._sessions[owner].values()
    assert session.host.env.task == task
    await made.release(name)
    with pytest.raises(ConfigurationError, match="agent_data"):
        await made.execute(name, {"a": 1, "b": 1})


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"type": "native", "tool": "add"}, ConfigurationError),
        ({"type": "native", "env_id": "toy-adder-v0", "tool": "add", "x": 1}, ConfigurationError),
        ({"type": "native", "env_id": "toy-adder-v0", "tool": "sub"}, UnknownNameError),
    ],
)
def test_verl_base_tool_refuses_a_bad_config(
    config: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        EnvkitTool(config)
