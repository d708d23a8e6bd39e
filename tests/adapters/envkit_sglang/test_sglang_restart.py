"""SGLang servers that restart or ask for time, under whole rollouts."""

import asyncio
import json
from typing import Any

import pytest
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, World
from fakes.playing import collected
from fakes.remote_requests import reply
from fakes.sglang_hostile import good, hostile_server, http
from fakes.sglang_server import FakeSGLang

from envkit.faults import FaultPlan
from envkit.rollout import Backoff, GenerateRequest, Generation, RetryBudget, play
from envkit_sglang import SGLangEngine

PATIENT = RetryBudget(backoff=Backoff(initial_s=0.02, maximum_s=0.05))


def build() -> CountingEnv:
    return CountingEnv(World(), FaultPlan(0.0))


class CountedEngine(SGLangEngine):
    """Counts what is sent while the server is down."""

    is_down = False
    requests = 0
    probes = 0
    running = 0
    most_probes_at_once = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        self.requests += self.is_down
        return await super().generate(request)

    async def probe(self) -> None:
        self.probes += self.is_down
        self.running += 1
        self.most_probes_at_once = max(self.most_probes_at_once, self.running)
        try:
            await super().probe()
        finally:
            self.running -= 1


async def restart(server: FakeSGLang, engine: CountedEngine, *, after: int) -> float:
    """Restart the server after so many requests; return the seconds that it was away."""
    while len(server.payloads()) < after:
        await asyncio.sleep(0.005)
    now = asyncio.get_running_loop().time
    engine.is_down, stopped = True, now()
    await server.stop()
    await asyncio.sleep(0.5)
    await server.start()
    engine.is_down = False
    return now() - stopped


@pytest.mark.parametrize("episodes", [64, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_server_restart_faults_no_running_episode(episodes: int) -> None:
    async with FakeSGLang(reply, token_s=0.002, context_length=8192) as server:
        engine = CountedEngine(server.url)
        restarting = asyncio.create_task(restart(server, engine, after=episodes + episodes // 6))
        trajectories = [
            trajectory
            async for trajectory in collected(
                build,
                engine,
                text_codec(),
                episodes=episodes,
                concurrency=episodes,
                retries=PATIENT,
            )
        ]
        down_s = await restarting
        await engine.aclose()
    assert [one.reward for one in trajectories] == [1.0] * episodes
    assert all(one.fault is None and one.env_restarts == 0 for one in trajectories)
    assert engine.requests <= episodes  # on their way when the server went down; no episode twice
    assert 1 <= engine.probes <= down_s / 0.016 + 10  # one prober, 16 ms apart at least
    assert engine.most_probes_at_once == 1
    assert sum(turn.engine_retries for one in trajectories for turn in one.turns) > 0


async def test_server_that_asks_for_time_gets_it() -> None:
    moments: list[float] = []

    def busy_twice(request: dict[str, Any]) -> bytes:
        moments.append(asyncio.get_running_loop().time())
        if len(moments) <= 2:
            return http(b"{}", status="429 Busy", headers="Retry-After-Ms: 200\r\n")
        return http(json.dumps(good(request)).encode())

    async with hostile_server(busy_twice) as url:
        engine = SGLangEngine(url)
        trajectory = await play(build, engine, text_codec(), retries=PATIENT, seed=5)
        await engine.aclose()
    assert trajectory.reward == 1.0
    assert trajectory.turns[0].engine_retries == 2
    assert trajectory.turns[0].queue_seconds >= 0.4
    assert min(moments[1] - moments[0], moments[2] - moments[1]) >= 0.2


async def test_failure_of_one_request_is_retried_by_the_rollout_and_counted() -> None:
    served = 0

    def fails_once(request: dict[str, Any]) -> bytes:
        nonlocal served
        served += 1
        if served == 2:
            return http(b"oops", status="500 Internal Server Error")
        return http(json.dumps(good(request)).encode())

    async with hostile_server(fails_once) as url:
        engine = SGLangEngine(url)
        trajectory = await play(build, engine, text_codec(), retries=PATIENT, seed=5)
        await engine.aclose()
    assert trajectory.reward == 1.0
    assert [turn.engine_retries for turn in trajectory.turns] == [0, 1, 0]
    assert served == 4
