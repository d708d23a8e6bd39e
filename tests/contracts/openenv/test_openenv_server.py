"""Environments here behind openenv-core's own server, by its clients and by ours."""

import asyncio
import json
import signal
import socket
import sys
from typing import Any

import pytest
from fakes.openenv_real import register_here, serving
from openenv.core.generic_client import GenericEnvClient

import envkit
from envkit.checker.subject import row
from envkit.env import Env, PolicyContext, Step
from envkit.errors import ConfigurationError, EnvFault, FaultKind, UnknownNameError
from envkit_openenv import OpenEnvEnv
from envkit_openenv.server import make_app, serve

register_here()
PLAYED: list[tuple[str, dict[str, Any], int]] = [
    ("canary-v0", {}, 4),
    ("geo3k-v0", {}, 4),
    ("computer-use-v0", {}, 3),
    ("search-v0", {}, 2),
    ("gymnasium-v0", {"env": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}, 2),
]


def made(address: str, **options: Any) -> OpenEnvEnv:
    env: Any = envkit.make("openenv-v0", base_url=address, **options)
    return env


def replies(env: Env, seed: int) -> list[str]:
    """Return the oracle's replies, with a bad one first."""
    env.reset(seed=seed)
    policy, found = env.oracle(), ["\x00 <tool_call>{"]
    done = env.step(found[0])[2]
    while not done and env.turn < env.max_turns:
        context = PolicyContext(env=env, task=env.task, turn=env.turn, messages=(), seed=seed)
        found.append(policy(context))
        step = Step(*env.step(found[-1]))
        done = step.terminated or step.truncated
    return found


@pytest.mark.parametrize(("env_id", "options", "seeds"), PLAYED)
def test_served_environment_is_the_direct_one(
    env_id: str, options: dict[str, Any], seeds: int
) -> None:
    """Texts, picture bytes, rewards, ends, info, task, tools and prompt, step by step."""
    direct: Any = envkit.make(env_id, **options)
    with serving(make_app(env_id, options)) as address:
        env = made(address)
        for seed in range(seeds):
            said = replies(direct, seed)
            start, info = direct.reset(seed=seed)
            far, far_info = env.reset(seed=seed)
            assert far == start  # pictures compare by their pixels
            assert json.loads(json.dumps(info)) == far_info
            assert env.task == json.loads(json.dumps(direct.task))
            assert (env.system_prompt, env.tools) == (direct.system_prompt, direct.tools)
            assert env.max_turns == direct.max_turns
            for reply in said:
                assert row(Step(*env.step(reply))) == row(Step(*direct.step(reply)))
        env.close()
    direct.close()


def test_served_task_is_played_and_checked() -> None:
    with serving(make_app("canary-v0")) as address:
        env = made(address, is_repeatable=True)
        env.reset(seed=0, options={"task": {"codes": ["K7MX"], "look": 1}})
        step = env.step("K7MX")
        assert (step.reward, step.terminated) == (1.0, True)
        assert {"determinism", "independence", "replay"} <= set(envkit.check_env(env).passed)
        with pytest.raises(EnvFault, match="a canary task must have a list"):
            env.reset(seed=0, options={"task": {"codes": 3}})
        env.close()


async def test_real_client_plays_a_served_environment() -> None:
    with serving(make_app("canary-v0")) as address:
        client: Any = GenericEnvClient(base_url=address)
        async with client:
            start = await client.reset(seed=4)
            assert start.observation["images"][0].startswith("data:image/png;base64,")
            state = await client.state()
            codes = state["task"]["codes"]
            rewards = [(await client.step({"response_text": code})) for code in codes]
            assert sum(result.reward for result in rewards) == pytest.approx(1.0)
            assert rewards[-1].done
            assert rewards[-1].observation["terminated"] is True
            with pytest.raises(RuntimeError, match="the episode is over"):
                await client.step({"response_text": "more"})


async def test_sessions_are_bounded_and_apart() -> None:
    with serving(make_app("canary-v0", max_sessions=2)) as address:
        first, second, third = (made(address, limits={"open_attempts": 1}) for _ in range(3))
        await first.areset(seed=0)
        await second.areset(seed=1)
        assert first.task != second.task
        with pytest.raises(EnvFault, match="CAPACITY_REACHED") as caught:
            await third.areset(seed=2)
        assert caught.value.kind is FaultKind.TRANSIENT
        assert (await first.astep(first.task["codes"][0])).reward > 0
        await first.aclose()
        await asyncio.sleep(0.3)
        await third.areset(seed=2)
        for env in (second, third):
            await env.aclose()


async def test_idle_session_ends_and_says_so() -> None:
    with serving(make_app("canary-v0", session_timeout_s=1.0)) as address:
        env = made(address)
        await env.areset(seed=0)
        await asyncio.sleep(7.5)  # the reaper looks every five seconds
        with pytest.raises(EnvFault, match="idle for too long") as caught:
            await env.astep("K7MX")
        assert caught.value.kind is FaultKind.CRASHED


async def test_fault_of_a_served_environment_keeps_its_kind() -> None:
    with serving(make_app("crashy-v0")) as address:
        for kind in FaultKind:
            env = made(address)
            await env.areset(seed=0)
            with pytest.raises(EnvFault, match=f"as told: {kind.value}") as caught:
                await env.astep(kind.value)
            assert (caught.value.kind, caught.value.retryable) == (kind, kind == "timeout")


def test_what_cannot_be_served_is_refused_before_it_listens() -> None:
    with pytest.raises(UnknownNameError):
        make_app("canari-v0")
    with pytest.raises(ConfigurationError):
        make_app("canary-v0", {"turns": 0})
    for options in ({"max_sessions": 0}, {"session_timeout_s": 0.0}):
        with pytest.raises(ConfigurationError, match="max_sessions must be"):
            make_app("canary-v0", **options)  # type: ignore[arg-type]


COMMAND = """
import typer
from fakes.openenv_real import register_here
from envkit_openenv.command import serve_openenv
register_here()
app = typer.Typer()
app.command()(serve_openenv)
app()
"""


async def test_command_serves_until_interrupted() -> None:
    options = ["canary-v0", "--env-kwargs", "turns=2", "--port", "0", "--max-sessions", "2"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 300)).decode()
        assert line.startswith("serving canary-v0 at http://127.0.0.1:")
        env = made(line.rpartition(" ")[2].strip())
        await env.areset(seed=0)
        assert len(env.task["codes"]) == env.max_turns == 2
        await env.aclose()
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_address_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
            serve("canary-v0", port=port)
