"""Servers that stream, routers that mix up answers: the whole answer is checked as always."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from fakes import sglang_server
from fakes.remote_engines import KINDS
from fakes.remote_requests import ask, reply
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_model import FakeRequest
from fakes.sglang_server import FakeSGLang
from fakes.vllm_server import FakeVLLM

from envkit.errors import ConfigurationError, EngineFault, FaultKind, LedgerFault
from envkit.rollout.engine import GenerateRequest, Generation, StreamingEngine
from envkit_remote import RemoteEngine, RoutedEngine, probe
from envkit_remote.call import StreamedAnswer
from envkit_remote.transport import Answer, AnswerLimit
from envkit_sglang import SGLangEngine
from envkit_sglang.dialect import STREAM_EVENTS, SGLangDialect
from envkit_vllm import VLLMEngine
from envkit_vllm.dialect import VLLMDialect

SERVERS = [(FakeSGLang, SGLangEngine), (FakeVLLM, VLLMEngine)]


async def streamed(
    engine: StreamingEngine, request: GenerateRequest
) -> tuple[Generation, list[tuple[int, ...]]]:
    reports: list[tuple[int, ...]] = []
    generation = await engine.stream(request, lambda ids: reports.append(tuple(ids)))
    return generation, reports


def plain(generation: Generation) -> Generation:
    """Return a generation without what differs between two equal ones."""
    return replace(generation, extras={}, queue_seconds=0.0, cached_tokens=0)


@pytest.mark.parametrize(("fake", "kind"), SERVERS)
@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("limit", [2, 64])
async def test_streamed_answer_equals_the_whole_one(
    fake: Any, kind: Any, top: int, limit: int
) -> None:
    request = replace(ask(max_new_tokens=limit), top_logprobs=top)
    async with fake(reply) as server:
        engine = kind(server.url)
        whole = await engine.generate(request)
        generation, reports = await streamed(engine, request)
        await engine.aclose()
    assert sum(reports, ()) == whole.token_ids == generation.token_ids
    assert len(reports) == len(whole.token_ids)
    assert plain(generation) == plain(whole)


async def test_incremental_server_is_read_like_a_cumulative_one() -> None:
    request = replace(ask(max_new_tokens=64), top_logprobs=2)
    found: list[Generation] = []
    for is_incremental in (False, True):
        async with FakeSGLang(reply, is_incremental=is_incremental) as server:
            engine = SGLangEngine(server.url)
            generation, reports = await streamed(engine, request)
            await engine.aclose()
        assert reports == [(20,), (21,), (22,), (2,)]
        found.append(plain(generation))
    assert found[0] == found[1]


async def test_events_of_a_long_budget_are_rare_because_each_repeats_all_before() -> None:
    long = [*range(20, 120)] * 20
    async with FakeSGLang(lambda _: long) as server:
        engine = SGLangEngine(server.url)
        generation, reports = await streamed(engine, ask(max_new_tokens=2048))
        await engine.aclose()
    assert sum(reports, ()) == generation.token_ids == (*long, 2)
    assert STREAM_EVENTS / 2 < len(reports) <= STREAM_EVENTS + 1


async def test_stream_that_breaks_is_a_crash_of_the_server() -> None:
    failures = FailurePlan(script=(Failure.RESET_MID_BODY,))
    async with FakeSGLang(reply, failures=failures) as server:
        engine = SGLangEngine(server.url)
        reports: list[Sequence[int]] = []
        with pytest.raises(EngineFault, match="broke the connection") as caught:
            await engine.stream(ask(max_new_tokens=64), reports.append)
        await engine.aclose()
    assert (caught.value.kind, caught.value.is_unavailable) == (FaultKind.CRASHED, True)
    assert reports == [[20], [21]]


async def test_stream_without_its_end_is_a_crash_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unended(request: web.Request, events: Any, **_: Any) -> web.Response:
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=body, content_type="text/event-stream")

    monkeypatch.setattr(sglang_server, "stream_events", unended)
    async with FakeSGLang(reply) as server:
        engine = SGLangEngine(server.url)
        with pytest.raises(EngineFault, match="ended without"):
            await streamed(engine, ask())
        await engine.aclose()


@pytest.mark.parametrize(("code", "status"), [(400, 400), (503, 503), ("x", 500), (None, 500)])
def test_error_inside_a_stream_is_an_answer_with_its_status(code: Any, status: int) -> None:
    answer = StreamedAnswer(SGLangDialect(), "a", lambda _: None)
    data = json.dumps({"error": {"message": "too long", "code": code}}).encode()
    answer.add(answer.read(data))
    assert answer.answer().status == status
    assert json.loads(answer.answer().body) == json.loads(data)


async def test_refusal_inside_a_stream_is_a_fault_with_the_servers_words() -> None:
    async with FakeSGLang(reply, context_length=16) as server:
        engine = SGLangEngine(server.url, context_length=8192)
        with pytest.raises(EngineFault, match=r"answered 400: .*context") as caught:
            await streamed(engine, ask([4] * 40))
        await engine.aclose()
    assert not caught.value.retryable


async def test_prompt_of_a_streamed_answer_is_compared() -> None:
    async with FakeSGLang(reply) as server:
        server.changed_prompt = [4, 5, 7]
        engine = SGLangEngine(server.url)
        with pytest.raises(LedgerFault):
            await streamed(engine, ask())
        await engine.aclose()


async def test_router_asks_no_other_server_after_the_first_ids() -> None:
    failures = FailurePlan(script=(Failure.RESET_MID_BODY,))
    async with FakeSGLang(reply, failures=failures) as first, FakeSGLang(reply) as second:
        router = RoutedEngine([SGLangEngine(first.url), SGLangEngine(second.url)])
        with pytest.raises(EngineFault, match="broke the connection"):
            await streamed(router, ask(max_new_tokens=64))
        assert not second.payloads()
        assert (await streamed(router, ask()))[0].token_ids == (20, 21, 22, 2)
        await router.aclose()


async def test_router_asks_another_server_before_the_first_ids() -> None:
    failures = FailurePlan(script=(Failure.UNAVAILABLE,))
    async with FakeSGLang(reply, failures=failures) as first, FakeSGLang(reply) as second:
        router = RoutedEngine([SGLangEngine(first.url), SGLangEngine(second.url)])
        generation, reports = await streamed(router, ask())
        await router.aclose()
    assert sum(reports, ()) == generation.token_ids == (20, 21, 22, 2)


def test_tokens_of_another_requests_answer_are_not_reported() -> None:
    reports: list[Sequence[int]] = []
    answer = StreamedAnswer(SGLangDialect(), "ours", reports.append)
    answer.add(
        answer.read(b'{"output_ids": [1], "meta_info": {"id": "theirs", "completion_tokens": 1}}')
    )
    assert not reports
    answer.add(
        answer.read(b'{"output_ids": [1, 2], "meta_info": {"id": "ours", "completion_tokens": 2}}')
    )
    assert reports == [[2]]


@pytest.mark.parametrize("dialect", [SGLangDialect(), VLLMDialect()])
@pytest.mark.parametrize(
    "event",
    [b"[]", b"{}", b'{"choices": [1]}', b'{"output_ids": 1, "meta_info": {}}'],
)
def test_malformed_event_is_a_fault(dialect: Any, event: bytes) -> None:
    answer = StreamedAnswer(dialect, "a", lambda _: None)
    with pytest.raises(EngineFault, match="must have JSON objects with tokens"):
        answer.add(answer.read(event))


def own_reply(request: FakeRequest) -> list[int]:
    """Say what the prompt begins with, so that every reply belongs to one prompt."""
    return [request.wire_ids[0], 21, 22]


def running(kind: str, **options: Any) -> AbstractAsyncContextManager[tuple[Any, RemoteEngine]]:
    return KINDS[kind].serving(own_reply, options=options)


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


@pytest.mark.parametrize(
    "event",
    [
        b'{"output_ids": ["a"], "meta_info": {}}',
        b'{"output_ids": [-1], "meta_info": {}}',
        b'{"output_ids": [4294967296], "meta_info": {}}',
        b'{"output_ids": [[1]], "meta_info": {}}',
    ],
)
def test_ids_that_no_tokenizer_has_are_not_reported(event: bytes) -> None:
    reports: list[Sequence[int]] = []
    answer = StreamedAnswer(SGLangDialect(), "a", reports.append)
    with pytest.raises(EngineFault, match="must have JSON objects with tokens"):
        answer.add(answer.read(event))
    assert not reports


def test_error_of_a_stream_may_have_any_text() -> None:
    answer = StreamedAnswer(SGLangDialect(), "a", lambda _: None)
    answer.add(answer.read(b'{"error": {"message": "\\ud800", "code": 503}, "more": 1%030d}' % 0))
    assert answer.answer().status == 503


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (SGLangDialect(), {"output_ids": [7] * 50, "meta_info": {"completion_tokens": 1}}),
        (VLLMDialect(), {"choices": [{"token_ids": [7] * 50}]}),
        (VLLMDialect(), {"choices": [{"logprobs": {"content": [{}] * 50}}]}),
        (VLLMDialect(), {"choices": [{"sampling_mask": [1] * 50}]}),
    ],
)
def test_stream_that_never_ends_is_a_fault_before_it_fills_the_memory(
    dialect: Any, event: dict[str, Any]
) -> None:
    limit = AnswerLimit(max_bytes=1 << 20, max_values=1000)
    answer = StreamedAnswer(dialect, "a", lambda _: None, limit)
    first = {**event, "output_ids": [1]} if "output_ids" in event else event
    answer.add(answer.read(json.dumps(first).encode()))

    def endless() -> None:
        for _ in range(30):
            answer.add(answer.read(json.dumps(event).encode()))

    with pytest.raises(EngineFault, match="more than the 1000 that the tokens"):
        endless()
