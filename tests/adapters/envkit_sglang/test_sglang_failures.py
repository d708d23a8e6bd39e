"""The SGLang engine when things go wrong: faults, deadlines, aborts, cancellation, clean-up."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_model import FakeRequest, Family
from fakes.sglang_server import FakeSGLang
from PIL import Image as PilImage

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.images import Image
from envkit.rollout.engine import FinishReason, GenerateRequest, Generation, Sampling
from envkit_sglang import SGLangEngine

NAME = "b" * 32


def reply(_request: FakeRequest) -> list[int]:
    return [20, 21, 22]


def ask(name: str = NAME, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        session_id="episode",
        wire_ids=(4, 5, 6),
        images=(),
        train_length=3,
        sampling=Sampling(**sampling),
    )


@asynccontextmanager
async def engine_for(server: FakeSGLang, **options: Any) -> AsyncGenerator[SGLangEngine]:
    engine = SGLangEngine(server.url, **options)
    try:
        yield engine
    finally:
        await engine.aclose()
        await engine.aclose()


async def generate_with(*failures: Failure | None, **options: Any) -> tuple[Generation, FakeSGLang]:
    async with (
        FakeSGLang(reply, failures=FailurePlan(script=failures)) as server,
        engine_for(server, **options) as engine,
    ):
        return await engine.generate(ask()), server


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("failure", "kind", "is_unavailable"),
    [
        (Failure.UNAVAILABLE, FaultKind.TRANSIENT, True),
        (Failure.BAD_GATEWAY, FaultKind.TRANSIENT, True),
        (Failure.GATEWAY_TIMEOUT, FaultKind.TRANSIENT, True),
        (Failure.INTERNAL, FaultKind.PERMANENT, False),
        (Failure.RESET, FaultKind.CRASHED, True),
        (Failure.RESET_MID_BODY, FaultKind.CRASHED, True),
    ],
)
async def test_temporary_failure_is_retryable_and_sent_once(
    failure: Failure, kind: FaultKind, is_unavailable: bool
) -> None:
    async with (
        FakeSGLang(reply, failures=FailurePlan(script=[failure])) as server,
        engine_for(server) as engine,
    ):
        with pytest.raises(EngineFault) as caught:
            await engine.generate(ask())
        assert (await engine.generate(ask())).token_ids == (20, 21, 22, 2)
        first, second = (body["rid"] for body in server.payloads())
    assert first != second
    assert (caught.value.kind, caught.value.is_unavailable, caught.value.retryable) == (
        kind,
        is_unavailable,
        True,
    )


async def test_slow_answer_is_not_a_failure() -> None:
    generation, _ = await generate_with(Failure.SLOW)
    assert generation.token_ids == (20, 21, 22, 2)


async def test_fault_says_what_the_server_said() -> None:
    with pytest.raises(EngineFault, match="answered 503: injected"):
        await generate_with(Failure.UNAVAILABLE)


async def test_bad_request_is_never_retried() -> None:
    async with FakeSGLang(reply) as server, engine_for(server) as engine:
        with pytest.raises(EngineFault, match="top_p must be in") as caught:
            await engine.generate(ask(top_p=2.0))
        assert len(server.payloads()) == 1
    assert caught.value.kind is FaultKind.PERMANENT
    assert not caught.value.retryable


@pytest.mark.parametrize("failure", [Failure.WRONG_PROMPT_TOKENS, Failure.MISSING_LOGPROB])
async def test_answer_that_contradicts_itself_is_a_ledger_fault(failure: Failure) -> None:
    with pytest.raises(LedgerFault):
        await generate_with(failure)


async def test_unreachable_server_is_one_clear_fault() -> None:
    async with FakeSGLang(reply) as server:
        url = server.url
    engine = SGLangEngine(url)
    with pytest.raises(EngineFault, match="no SGLang server could be reached") as caught:
        await engine.generate(ask())
    assert url in str(caught.value)
    assert "Check that it is running" in str(caught.value)
    assert caught.value.kind is FaultKind.TRANSIENT
    health = await engine.health()
    assert not health.healthy
    assert url in health.detail
    with pytest.raises(EngineFault, match="could be reached"):
        await engine.server_info()
    await engine.aclose()


async def test_server_that_stops_between_requests_is_unavailable_until_it_returns() -> None:
    # Whether the client notices the closed connection first depends on the version of Python.
    async with FakeSGLang(reply) as server, engine_for(server) as engine:
        await engine.generate(ask())
        await engine.probe()
        await server.stop()
        with pytest.raises(EngineFault, match="probably crashed or was stopped") as caught:
            await engine.generate(ask())
        with pytest.raises(EngineFault, match="probably crashed or was stopped"):
            await engine.probe()
        await server.start()
        await engine.probe()
        assert (await engine.generate(ask())).token_ids
    assert caught.value.retryable
    assert caught.value.is_unavailable


async def test_server_that_comes_back_with_another_model_is_refused() -> None:
    async with FakeSGLang(reply) as server, engine_for(server) as engine:
        await engine.generate(ask())
        await server.stop()
        with pytest.raises(EngineFault, match="probably crashed or was stopped"):
            await engine.generate(ask())
        server.settings.served_model_name = "another"
        await server.start()
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="came back as another model, 'another'"):
                await engine.generate(ask())
        server.settings.served_model_name = "fake"
        assert (await engine.generate(ask())).token_ids


async def test_out_of_vocabulary_id_that_slips_through_is_a_crash_and_not_a_hang() -> None:
    async with (
        FakeSGLang(reply, vocabulary_size=5) as server,
        engine_for(server) as engine,
    ):
        with pytest.raises(EngineFault) as caught:
            await engine.generate(ask())
    assert caught.value.kind is FaultKind.CRASHED


async def test_request_without_an_answer_times_out_and_is_aborted() -> None:
    plan = FailurePlan(rates={Failure.HANG: 1.0})
    async with FakeSGLang(reply, failures=plan) as server:
        async with engine_for(server, timeout_s=0.2) as engine:
            with pytest.raises(EngineFault, match=r"no answer in 0\.2 s") as caught:
                await engine.generate(ask())
        rid = server.payloads()[0]["rid"]
        assert server.payloads("/abort_request") == [{"rid": rid}]
    assert caught.value.kind is FaultKind.TIMEOUT


async def test_paused_server_times_out() -> None:
    async with FakeSGLang(reply) as server, engine_for(server, timeout_s=0.3) as engine:
        async with aiohttp.ClientSession() as session:
            await session.post(f"{server.url}/pause_generation", json={"mode": "abort"})
            with pytest.raises(EngineFault, match="paused") as caught:
                await engine.generate(ask())
            await session.post(f"{server.url}/continue_generation", json={})
        assert (await engine.generate(ask())).token_ids
    assert caught.value.kind is FaultKind.TIMEOUT


async def test_expanded_placeholders_are_a_typed_fault_for_both_families() -> None:
    picture = Image.from_pil(PilImage.new("RGB", (56, 56), "red"))
    request = GenerateRequest(
        request_id=NAME,
        session_id="episode",
        wire_ids=(4, 9, 9, 9, 9),
        images=(picture,),
        train_length=5,
        sampling=Sampling(),
    )
    kinds: dict[Family, FaultKind] = {}
    for family in (Family.QWEN2_5_VL, Family.QWEN3_VL):
        async with (
            FakeSGLang(reply, image_token_id=9, family=family) as server,
            engine_for(server, timeout_s=0.5) as engine,
        ):
            with pytest.raises(EngineFault) as caught:
                await engine.generate(request)
            kinds[family] = caught.value.kind
            assert (await engine.generate(ask())).prompt_tokens == 3
    async with (
        FakeSGLang(reply, image_token_id=9, family=Family.RETOKENISES) as server,
        engine_for(server) as engine,
    ):
        with pytest.raises(LedgerFault):
            await engine.generate(request)
    assert kinds == {Family.QWEN2_5_VL: FaultKind.TIMEOUT, Family.QWEN3_VL: FaultKind.PERMANENT}


async def test_abort_of_a_running_request_keeps_its_tokens() -> None:
    async with FakeSGLang(reply, token_s=0.1) as server, engine_for(server) as engine:
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: server.worker.sampled_tokens >= 2)
        await engine.abort(NAME)
        generation = await running
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.token_ids in ((20, 21), (20, 21, 22))
    assert len(generation.logprobs) == len(generation.token_ids)
    assert generation.prompt_tokens == 3


async def test_abort_of_a_queued_request_has_no_tokens_and_no_prompt_count() -> None:
    async with FakeSGLang(reply, max_running=1, first_token_s=0.3) as server:
        async with engine_for(server) as engine:
            first = asyncio.create_task(engine.generate(ask("c" * 32)))
            await until(lambda: server.worker.running == 1)
            second = asyncio.create_task(engine.generate(ask("d" * 32)))
            await until(lambda: server.worker.waiting == 1)
            await engine.abort("d" * 32)
            queued = await second
            assert (await first).finish_reason is FinishReason.STOP
        assert (await _again(server)).token_ids
    assert queued.finish_reason is FinishReason.ABORT
    assert queued.token_ids == ()
    assert queued.prompt_tokens is None


async def _again(server: FakeSGLang) -> Generation:
    async with engine_for(server) as engine:
        return await engine.generate(ask())


async def test_abort_that_the_server_ignores_ends_after_the_grace() -> None:
    plan = FailurePlan(rates={Failure.HANG: 1.0})
    async with (
        FakeSGLang(reply, failures=plan) as server,
        engine_for(server, abort_grace_s=0.1) as engine,
    ):
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: len(server.payloads()) == 1)
        await engine.abort(NAME)
        generation = await asyncio.wait_for(running, 3)
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.token_ids == ()
    assert generation.prompt_tokens is None


async def test_abort_does_not_wait_for_a_free_connection() -> None:
    async with (
        FakeSGLang(reply, first_token_s=30) as server,
        engine_for(server, max_connections=1) as engine,
    ):
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: server.worker.running == 1)
        await engine.abort(NAME)
        generation = await asyncio.wait_for(running, 5)
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.prompt_tokens == 3


async def test_abort_of_an_unknown_request_is_ignored() -> None:
    async with FakeSGLang(reply) as server, engine_for(server) as engine:
        await engine.abort("unknown")
        await engine.end_session("unknown")
        assert server.log == []


async def test_cancelled_request_is_freed_on_the_server() -> None:
    async with FakeSGLang(reply, first_token_s=30) as server, engine_for(server) as engine:
        running = asyncio.create_task(engine.generate(ask()))
        await until(lambda: server.worker.running == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: server.worker.running == 0)
        await until(lambda: len(server.payloads("/abort_request")) == 1)


async def test_engine_leaves_no_task_and_no_connection() -> None:
    before = asyncio.all_tasks()
    plan = FailurePlan(seed=3, rates={Failure.RESET: 0.2, Failure.UNAVAILABLE: 0.2})
    async with FakeSGLang(reply, failures=plan, first_token_s=0.01) as server:
        async with engine_for(server, max_connections=8) as engine:
            tasks = [asyncio.create_task(engine.generate(ask(f"{n:032x}"))) for n in range(60)]
            await asyncio.sleep(0.05)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: server.worker.running == 0 and server.worker.waiting == 0)
    kept = [result for result in results if not isinstance(result, BaseException)]
    assert all(generation.token_ids == (20, 21, 22, 2) for generation in kept)
    assert len(kept) >= 10
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
    gc.collect()  # an unclosed connection would warn here, and warnings are errors


def test_engine_works_in_one_event_loop_after_another() -> None:
    engine = SGLangEngine("http://127.0.0.1:1")

    async def fail() -> None:
        with pytest.raises(EngineFault, match="could be reached"):
            await engine.generate(ask())

    asyncio.run(fail())
    asyncio.run(fail())
    asyncio.run(engine.aclose())
    gc.collect()


async def test_many_requests_share_a_bounded_pool() -> None:
    async with (
        FakeSGLang(reply, first_token_s=0.05) as server,
        engine_for(server, max_connections=4) as engine,
    ):
        tasks = [asyncio.create_task(engine.generate(ask(f"{n:032x}"))) for n in range(12)]
        await asyncio.sleep(0.03)
        assert server.worker.running <= 4
        generations = await asyncio.gather(*tasks)
    assert all(generation.token_ids for generation in generations)


async def test_health_reports_version_and_model() -> None:
    async with FakeSGLang(reply) as server, engine_for(server) as engine:
        health = await engine.health()
        assert health.healthy
        assert "0.5.23" in health.detail
        assert health.info is not None
        assert health.info.context_length == 8192
        server.is_healthy = False
        sick = await engine.health()
    assert not sick.healthy
    assert "503" in sick.detail
