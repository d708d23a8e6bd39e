"""The client against servers made of OpenEnv's own classes."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from fakes.openenv_real import counter_app, register_here, serving, tools_app

import envkit
from envkit.errors import EnvFault, FaultKind
from envkit_openenv import OpenEnvEnv

register_here()


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def made(address: str, **options: Any) -> OpenEnvEnv:
    env: Any = envkit.make("openenv-v0", base_url=address, **options)
    return env


async def test_client_plays_a_real_environment() -> None:
    with serving(counter_app()) as address:
        env = made(address)
        task = {"start": 3, "unknown": 1}
        observation, _ = await env.areset(seed=7, options={"task": task})
        assert observation["text"] == "seed 7, sum 3"
        (tool,) = env.tools
        assert set(tool.parameters["properties"]) == {"number", "pixels"}
        assert tool.description == "Add to the sum."
        step = await env.astep(call("act", number=4, pixels=True))
        assert step.observation["text"] == "text: sum 7\nscreenshot: [image 1]"
        expected = [[[x, y, 9] for x in range(12)] for y in range(10)]
        assert np.array_equal(step.observation["images"][0].array(), np.array(expected))
        assert (await env.state())["step_count"] == 1
        assert (await env.astep(call("act", number="4"))).info["parse_error"]
        last = await env.astep(call("act", number=3))
        assert last.observation["text"] == "sum 10"  # its metadata is not for the model
        assert (last.reward, last.terminated, last.truncated) == (1.0, True, False)


async def test_client_types_the_failures_of_a_real_server() -> None:
    with serving(counter_app(max_sessions=1)) as address:
        env = made(address)
        await env.areset(seed=0)
        other = made(address, limits={"open_attempts": 2})
        with pytest.raises(EnvFault, match="CAPACITY_REACHED") as caught:
            await other.areset(seed=0)
        assert caught.value.kind is FaultKind.TRANSIENT
        with pytest.raises(EnvFault, match="no negative numbers") as caught:
            await env.astep(call("act", number=-1))
        assert caught.value.kind is FaultKind.PERMANENT
        await asyncio.sleep(0.3)
        await other.areset(seed=0)  # the failed session released its slot
        await other.aclose()


async def test_client_plays_real_mcp_tools() -> None:
    with serving(tools_app()) as address:
        env = made(address, calls_per_turn=2, max_turns=4)
        observation, _ = await env.areset(seed=0, options={"task": {"prompt": "Add."}})
        assert observation["text"] == "Add."
        (tool,) = env.tools
        assert (tool.name, tool.description) == ("add", "Add two numbers.")
        step = await env.astep(call("add", first=2, second=3) + call("add", first=1, second=1))
        assert step.observation["text"] == "5\n\n2"
        assert step.info["tool_error"] is None
        wrong = await env.astep(call("add", first=1))
        assert "'second' is a required property" in (wrong.info["parse_error"] or "")
        failed = await env.astep(call("add", first=-1, second=3))
        assert "no negative numbers" in (failed.info["tool_error"] or "")
        assert failed.observation["text"].startswith("Error: add: ")
        await env.aclose()


def test_checker_passes_on_a_real_server() -> None:
    with serving(counter_app(max_sessions=8)) as address:
        env = made(address, max_turns=4, is_repeatable=True)
        assert {"determinism", "replay"} <= set(envkit.check_env(env).passed)
        env.close()
