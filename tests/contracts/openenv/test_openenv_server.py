"""Environments here behind OpenEnv's own server, by its clients and by ours."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes.hearing import Hearing
from fakes.openenv_real import register_here, serving
from fakes.strangers import AMBIGUOUS, answers_to_ambiguous, connected
from openenv.core.generic_client import GenericEnvClient

import envkit
from envkit.access import Access, bearer
from envkit.checker.under_test import row
from envkit.env import Env, PolicyContext, Step
from envkit.errors import ConfigurationError, EnvFault, FaultKind, ServiceError, UnknownNameError
from envkit.reply import FinishReason, Reply
from envkit.rollout import Backoff, EpisodeSpec, RetryBudget
from envkit.rollout.host import EnvHost
from envkit.rollout.recovery import RecoveringEnv
from envkit.threads.pool import WorkerPool
from envkit_openenv import OpenEnvEnv
from envkit_openenv.guard import ServerLimits
from envkit_openenv.server import EnvkitAction, EnvkitEnvironment, Served, make_app, serve

register_here()
KEY = "a-key-for-these-tests"
ACCESS = Access(key=KEY)
HANDSHAKE = (
    "GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Authorization: Bearer {KEY}\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PLAYED: list[tuple[str, dict[str, Any], int]] = [
    ("canary-v0", {}, 4),
    ("geo3k-v0", {}, 4),
    ("computer-use-v0", {}, 3),
    ("search-v0", {}, 2),
    ("gymnasium-v0", {"env": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}, 2),
]


def made(address: str, **options: Any) -> OpenEnvEnv:
    env: Any = envkit.make("openenv-v0", base_url=address, key=KEY, **options)
    return env


def codes(seed: int) -> list[str]:
    """Return the answers of a canary's episode, which no client is told."""
    env: Any = envkit.make("canary-v0")
    env.reset(seed=seed)
    found: list[str] = env.task["codes"]
    env.close()
    return found


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
    """Texts, image bytes, rewards, ends, info, tools and prompt, step by step."""
    direct: Any = envkit.make(env_id, **options)
    with serving(make_app(env_id, options, access=ACCESS)) as address:
        env = made(address)
        for seed in range(seeds):
            said = replies(direct, seed)
            start, info = direct.reset(seed=seed)
            far, far_info = env.reset(seed=seed)
            assert far == start  # images compare by their pixels
            assert json.loads(json.dumps(info)) == far_info
            assert env.task == {}
            assert (env.system_prompt, env.tools) == (direct.system_prompt, direct.tools)
            assert env.max_turns == direct.max_turns
            assert env.reward_threshold == direct.reward_threshold
            for reply in said:
                assert row(Step(*env.step(reply))) == row(Step(*direct.step(reply)))
        env.close()
    direct.close()


def test_served_task_is_played_and_checked() -> None:
    with serving(make_app("canary-v0", access=ACCESS)) as address:
        env = made(address, is_repeatable=True)
        task = {"codes": ["K7MX"], "look": 1}
        env.reset(seed=0, options={"task": task})
        assert env.task == task
        step = env.step("K7MX")
        assert (step.reward, step.terminated) == (1.0, True)
        assert {"determinism", "independence", "replay"} <= set(envkit.check_env(env).passed)
        with pytest.raises(EnvFault, match="a canary task must have a list"):
            env.reset(seed=0, options={"task": {"codes": 3}})
        env.close()


async def test_real_client_plays_a_served_environment() -> None:
    with serving(make_app("canary-v0", access=ACCESS)) as address:
        client: Any = GenericEnvClient(base_url=address.replace("://", f"://:{KEY}@"))
        async with client:
            start = await client.reset(seed=4)
            assert start.observation["images"][0].startswith("data:image/png;base64,")
            rewards = [(await client.step({"response_text": code})) for code in codes(4)]
            assert sum(result.reward for result in rewards) == pytest.approx(1.0)
            assert rewards[-1].done
            assert rewards[-1].observation["terminated"] is True
            with pytest.raises(RuntimeError, match="the episode is over"):
                await client.step({"response_text": "more"})


async def test_real_client_without_the_key_is_refused_unless_none_is_needed() -> None:
    with serving(make_app("canary-v0", access=ACCESS)) as address:
        for base_url in (address, address.replace("://", "://:another-key@")):
            client: Any = GenericEnvClient(base_url=base_url)
            with pytest.raises(ConnectionError, match="401"):
                await client.connect()
    with serving(make_app("canary-v0", access=Access(key=None))) as address:
        async with GenericEnvClient(base_url=address) as client:
            assert (await client.reset(seed=4)).done is False


async def test_wrong_key_is_a_permanent_fault() -> None:
    with serving(make_app("canary-v0", access=ACCESS)) as address:
        env: Any = envkit.make("openenv-v0", base_url=address, key="another-key")
        with pytest.raises(EnvFault, match=r"answered 401.*Is the key right") as caught:
            await env.areset(seed=0)
        assert caught.value.kind is FaultKind.PERMANENT


@pytest.mark.parametrize(("env_id", "options", "seeds"), PLAYED)
def test_state_never_holds_the_task(env_id: str, options: dict[str, Any], seeds: int) -> None:
    async def states(address: str) -> list[dict[str, Any]]:
        async with GenericEnvClient(base_url=address.replace("://", f"://:{KEY}@")) as client:
            found = [await client.state()]
            for seed in range(seeds):
                await client.reset(seed=seed)
                found.append(await client.state())
            return found

    with serving(make_app(env_id, options, access=ACCESS)) as address:
        found = asyncio.run(states(address))
    told = {"episode_id", "step_count", "env_id", "system_prompt", "tools", "max_turns"}
    told |= {"reward_threshold"}
    assert [set(state) for state in found] == [told] * (seeds + 1)


async def test_answer_beyond_its_bytes_is_a_permanent_fault() -> None:
    limits = ServerLimits(answer_bytes=500)
    with serving(make_app("canary-v0", access=ACCESS, limits=limits)) as address:
        with pytest.raises(EnvFault, match="at most 500 bytes") as caught:
            await made(address).areset(seed=0)
        assert caught.value.kind is FaultKind.PERMANENT


async def test_sessions_are_bounded_and_separate() -> None:
    limits = ServerLimits(max_sessions=2)
    with serving(make_app("canary-v0", access=ACCESS, limits=limits)) as address:
        first, second, third = (made(address, limits={"open_attempts": 1}) for _ in range(3))
        start, _ = await first.areset(seed=0)
        other, _ = await second.areset(seed=1)
        assert start != other
        with pytest.raises(EnvFault, match="CAPACITY_REACHED") as caught:
            await third.areset(seed=2)
        assert caught.value.kind is FaultKind.TRANSIENT
        assert (await first.astep(codes(0)[0])).reward > 0
        await first.aclose()
        await asyncio.sleep(0.3)
        await third.areset(seed=2)
        for env in (second, third):
            await env.aclose()


async def test_idle_session_ends_and_says_so() -> None:
    limits = ServerLimits(session_timeout_s=0.5)
    with serving(make_app("canary-v0", access=ACCESS, limits=limits)) as address:
        env = made(address)
        await env.areset(seed=0)
        await asyncio.sleep(1.5)
        with pytest.raises(EnvFault, match=r"code 1001: idle for 0\.5 s") as caught:
            await env.astep("K7MX")
        assert caught.value.kind is FaultKind.CRASHED


async def test_fault_of_a_served_environment_keeps_its_kind() -> None:
    with serving(make_app("crashy-v0", access=ACCESS)) as address:
        for kind in FaultKind:
            env = made(address)
            await env.areset(seed=0)
            with pytest.raises(EnvFault, match=f"as told: {kind.value}") as caught:
                await env.astep(kind.value)
            assert (caught.value.kind, caught.value.retryable) == (kind, kind == "timeout")


def test_what_cannot_be_served_is_refused_before_it_listens() -> None:
    with pytest.raises(UnknownNameError):
        make_app("canari-v0", access=ACCESS)
    with pytest.raises(ConfigurationError):
        make_app("canary-v0", {"turns": 0}, access=ACCESS)


COMMAND = """
import typer
from fakes.hearing import Hearing
from fakes.openenv_real import register_here
from envkit_openenv.command import serve_openenv
register_here()
app = typer.Typer()
app.command()(serve_openenv)
app()
"""


@asynccontextmanager
async def commanded(
    *options: str, before: str = ""
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """Run the command; gives its process and address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", before + COMMAND, *options, "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 300)).decode()
        yield process, line.rpartition(" ")[2].strip()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_command_serves_until_interrupted() -> None:
    options = ["canary-v0", "--env-kwargs", "turns=2", "--max-sessions", "2", "--key", KEY]
    async with commanded(*options) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        env = made(address)
        await env.areset(seed=0)
        assert env.max_turns == 2
        await env.aclose()
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 0


def test_address_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"port {port} of 127.0.0.1 is in use"):
            serve("canary-v0", access=ACCESS, port=port)


async def test_silent_connection_is_closed() -> None:
    before = "import envkit_openenv.server as s\ns._IDLE_S = 0.2\n"
    async with commanded("canary-v0", "--no-key", before=before) as (_, address):
        for said in (b"", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: "):
            async with connected(address, said) as (reader, _):
                assert await asyncio.wait_for(reader.read(), 10) == b""


async def session(stack: AsyncExitStack, address: str, *steps: str) -> str:
    """Open a session whose client sends all at once; return the status of its handshake."""
    reader, writer = await stack.enter_async_context(connected(address, HANDSHAKE))
    status = (await asyncio.wait_for(reader.readline(), 30)).decode().split()[1]
    if status == "101":
        data = [("reset", {"seed": 0}), *(("step", {"response_text": text}) for text in steps)]
        for kind, fields in data:
            said = json.dumps({"type": kind, "data": fields}).encode()
            writer.write(bytes([0x81, 0x80 | len(said)]) + bytes(4) + said)  # a mask of zeros
    return status


async def health(address: str) -> int:
    async with aiohttp.ClientSession() as client, client.get(f"{address}/health") as response:
        return response.status


def memory_mb(process: asyncio.subprocess.Process) -> int:
    found = Path(f"/proc/{process.pid}/status").read_text().partition("VmRSS:")[2]
    return int(found.split()[0]) // 1024


@pytest.mark.slow
async def test_clients_that_stop_reading_are_dropped_with_their_answers() -> None:
    """Each has answers of 20 MB that it does not read, and leaves its session to the next."""
    options = ["long-v0", "--key", KEY, "--max-sessions", "2", "--step-timeout", "1"]
    async with commanded(*options) as (process, address), AsyncExitStack() as stack:
        descriptors = Path(f"/proc/{process.pid}/fd")
        before, at_first = memory_mb(process), len(list(descriptors.iterdir()))
        for _ in range(8):
            assert await session(stack, address, *["20000000"] * 3) == "101"
        async with asyncio.timeout(60):
            while len(list(descriptors.iterdir())) > at_first:
                await asyncio.sleep(0.1)
        assert await health(address) == 200
        assert memory_mb(process) < before + 40
        env = made(address)
        await env.areset(seed=0)
        await env.aclose()
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")


async def test_sessions_connections_are_bounded() -> None:
    before = "import envkit_openenv.server as s\ns._SPARE_CONNECTIONS = 2\n"
    options = ["canary-v0", "--key", KEY, "--max-sessions", "1"]
    async with commanded(*options, before=before) as (_, address):
        async with AsyncExitStack() as stack:
            found = [await session(stack, address) for _ in range(6)]
        assert sorted(found) == ["101"] * 3 + ["503"] * 3
        async with asyncio.timeout(30):
            while await health(address) != 200:
                await asyncio.sleep(0.1)


async def test_clients_that_leave_or_break_the_protocol_are_not_logged() -> None:
    async with commanded("long-v0", "--key", KEY) as (process, address):
        for number in range(12):
            async with AsyncExitStack() as stack:
                await session(stack, address, *["9"] * (number % 3))
                await asyncio.sleep(0.01 * (number % 4))
        for broken in (b"\x81\x85" + bytes(4) + b"\xff" * 5, b"\xff" * 9, b"\x81\x05hello"):
            async with connected(address, HANDSHAKE) as (reader, writer):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(broken)
                await asyncio.wait_for(reader.read(), 30)
        assert await health(address) == 200
        for name in AMBIGUOUS:
            assert await answers_to_ambiguous(address, name, path="/health") == 1
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")


async def test_message_of_another_form_gets_one_error_and_the_session_goes_on() -> None:
    with serving(make_app("canary-v0", access=ACCESS)) as address:
        async with (
            aiohttp.ClientSession(headers=bearer(KEY)) as client,
            client.ws_connect(f"{address}/ws") as socket_,
        ):
            await socket_.send_str("null")
            refused = await socket_.receive_json(timeout=30)
            assert (refused["type"], refused["data"]["code"]) == ("error", "INVALID_JSON")
            assert "got null" in refused["data"]["message"]
            await socket_.send_json({"type": "reset", "data": {"seed": 0, "episode_id": [1]}})
            assert (await socket_.receive_json(timeout=30))["type"] == "observation"
            await socket_.send_json({"type": "state"})
            assert (await socket_.receive_json(timeout=30))["data"]["episode_id"] == "[1]"


def test_a_served_environment_hears_how_a_reply_ended() -> None:
    envkit.register("hearing-v0", Hearing)
    served = EnvkitEnvironment(Served(env_id="hearing-v0"))
    served.reset(seed=0)
    cut = served.step(EnvkitAction(response_text="gold and", finish="length", opened="<think>"))
    whole = served.step(EnvkitAction(response_text="gold"))

    assert (cut.info["finish"], cut.info["thinking"], cut.reward) == ("length", "gold and", 0.0)
    assert (whole.info["finish"], whole.reward) == ("stop", 1.0)


SAID = [
    Reply(text="gold", finish=FinishReason.STOP),
    Reply(text="gold and", finish=FinishReason.LENGTH),
    Reply(text="gold</think>gold", opened="<think>"),
    Reply(text="gold and", finish=FinishReason.ABORT, opened="<think>"),
]


@asynccontextmanager
async def recovering(make: Callable[[], Any]) -> AsyncGenerator[tuple[RecoveringEnv, str]]:
    """Give the rollout's view of a reset environment, and the hash of its start."""
    pool, budget = WorkerPool(), RetryBudget(backoff=Backoff(initial_s=0))
    host = EnvHost(pool, factory=make)
    env = RecoveringEnv(host, budget, EpisodeSpec(episode_id="e", seed=1))
    try:
        yield env, (await env.reset()).hash
    finally:
        await host.close()
        pool.close()


@pytest.mark.parametrize("turn", range(4))
async def test_a_cut_turn_of_a_served_environment_has_the_outcome_of_the_direct_one(
    turn: int,
) -> None:
    """Played, replayed after a fault of the turn, and taken over before it."""
    envkit.register("hearing-v0", Hearing)
    async with recovering(Hearing) as (env, start):
        expected = [await env.step(reply) for reply in SAID]
    assert [one.step.info["parse_error"] for one in expected] == [None, "cut"] * 2
    assert [one.step.reward for one in expected] == [1.0, 0.0] * 2
    hashes = [one.hash for one in expected]

    with serving(make_app("hearing-v0", access=ACCESS)) as address:

        def make() -> Any:
            return made(address, is_repeatable=True)

        Hearing.failing.add(turn)
        async with recovering(make) as (env, far_start):
            replayed = [await env.step(reply) for reply in SAID]
            assert env.spent == 1
        async with recovering(make) as (env, _):
            await env.take_over(SAID[:turn], hashes[:turn], None, start)
            rest = [await env.step(reply) for reply in SAID[turn:]]

    assert far_start == start
    assert [(one.hash, one.step) for one in replayed] == [(one.hash, one.step) for one in expected]
    assert [(one.hash, one.step) for one in rest] == [
        (one.hash, one.step) for one in expected[turn:]
    ]
