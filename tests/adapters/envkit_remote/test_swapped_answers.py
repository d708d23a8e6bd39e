"""Routers that mix up answers, replace ids, or lead to another model."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from fakes.remote_engines import KINDS
from fakes.remote_requests import ask
from fakes.sglang_model import FakeRequest

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.rollout.engine import Generation
from envkit_remote import RemoteEngine, probe
from envkit_remote.transport import Answer


def reply(request: FakeRequest) -> list[int]:
    """Say what the prompt begins with, so that every reply belongs to one prompt."""
    return [request.wire_ids[0], 21, 22]


def running(kind: str, **options: Any) -> AbstractAsyncContextManager[tuple[Any, RemoteEngine]]:
    return KINDS[kind].serving(reply, options=options)


def swap(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each pair of requests each other's answers, as a faulty router does."""
    waiting: list[tuple[Answer, asyncio.Future[Answer]]] = []
    post = engine._http.post

    async def mixed(path: str, body: bytes, **options: Any) -> Answer:
        answer = await post(path, body, **options)
        if path != engine._dialect.generate_path:
            return answer
        if waiting:
            other, future = waiting.pop()
            future.set_result(answer)
            return other
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting.append((answer, future))
        return await future

    monkeypatch.setattr(engine._http, "post", mixed)


async def sampled(engine: RemoteEngine, pairs: int) -> list[Generation | BaseException]:
    """Sample pairs of prompts of equal length."""
    found: list[Generation | BaseException] = []
    for number in range(pairs):
        requests = [
            engine.generate(ask([4 + side, 5, 6], name=f"{number:016d}{side:016d}"))
            for side in (0, 1)
        ]
        found += await asyncio.gather(*requests, return_exceptions=True)
    return found


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_to_another_request_is_a_fault(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kind, compare_prompts=0) as (_, engine):
        await engine.generate(ask())
        swap(engine, monkeypatch)
        for fault in await sampled(engine, 4):
            assert isinstance(fault, EngineFault)
            assert "mixes up its answers" in str(fault)
            assert fault.kind is FaultKind.TRANSIENT


@pytest.mark.parametrize("kind", KINDS)
async def test_first_answers_are_compared_by_their_prompts(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kind) as (_, engine):
        swap(engine, monkeypatch)
        for fault in await sampled(engine, 4):
            assert isinstance(fault, LedgerFault)


def renaming(engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let every answer name an id of the proxy's own; return how many prompts were compared."""
    compared: list[int] = []
    prompt_ids = engine._dialect.prompt_ids

    def noted(answer: Any) -> Any:
        found = prompt_ids(answer)
        compared.extend([1] if found is not None else [])
        return found

    def own(_answer: Any) -> str:
        return "proxy-7"

    monkeypatch.setattr(engine._dialect, "answered", own)
    monkeypatch.setattr(engine._dialect, "prompt_ids", noted)
    return lambda: len(compared)


@pytest.mark.parametrize("kind", KINDS)
async def test_ids_of_a_proxy_leave_a_share_of_prompts_to_compare(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kind, compare_prompts=2) as (_, engine):
        compared = renaming(engine, monkeypatch)
        found = await sampled(engine, 33)
        assert all(isinstance(one, Generation) for one in found)
        assert compared() == 2 + 4


@pytest.mark.parametrize("kind", KINDS)
async def test_share_finds_a_router_that_mixes_up_nameless_answers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(kind, compare_prompts=0) as (_, engine):
        renaming(engine, monkeypatch)
        swap(engine, monkeypatch)
        faults = [one for one in await sampled(engine, 16) if isinstance(one, LedgerFault)]
        assert len(faults) == 2


async def test_model_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(probe.time, "monotonic", lambda: now[0])
    async with running("sglang") as (server, engine):
        await engine.generate(ask())
        server.settings.served_model_name = "another"
        now[0] += 299.0
        await engine.generate(ask())
        now[0] += 2.0
        with pytest.raises(ConfigurationError, match="came back as another model"):
            await engine.generate(ask())
        assert server.info_requests == 2


async def test_slow_page_of_facts_delays_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(probe.time, "monotonic", lambda: now[0])
    async with running("sglang") as (_, engine):
        await engine.generate(ask())
        fetch, asked, gate = engine._probe.fetch_info, asyncio.Event(), asyncio.Event()

        async def slow(timeout_s: float) -> Any:
            asked.set()
            await gate.wait()
            return await fetch(timeout_s)

        monkeypatch.setattr(engine._probe, "fetch_info", slow)
        now[0] += 301.0
        delayed = asyncio.create_task(engine.generate(ask(name="b" * 32)))
        await asked.wait()
        assert (await engine.generate(ask(name="c" * 32))).token_ids
        assert not delayed.done()
        gate.set()
        assert (await delayed).token_ids


async def test_known_facts_stay_if_the_server_stops_reporting_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(probe.time, "monotonic", lambda: now[0])
    async with running("sglang", timeout_s=5) as (server, engine):
        server.settings.context_length = 8
        await engine.generate(ask(max_new_tokens=3))
        server._has_server_info = False
        for _ in range(2):
            now[0] += 301.0
            with pytest.raises(EngineFault, match="context of 8"):
                await engine.generate(ask(range(4, 14)))
