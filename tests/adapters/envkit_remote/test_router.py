"""Several servers as one engine, and proxies: where sessions go, and what a 200 is worth."""

import asyncio
import gc
import gzip
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from fakes.codecs import text_codec
from fakes.faults import CountingEnv, World
from fakes.playing import collected
from fakes.remote_requests import ask, reply
from fakes.search_server import running
from fakes.sglang_failures import Failure, FailurePlan
from fakes.sglang_server import FakeSGLang
from fakes.virtual_time import skip
from fakes.vllm_process import server_process
from fakes.vllm_server import FakeVLLM
from fakes.waiting import until

from envkit.errors import ConfigurationError, EngineFault, FaultKind
from envkit.faults import FaultPlan
from envkit.rollout import Backoff, RetryBudget
from envkit.rollout.engine import FinishReason, GenerateRequest, Sampling
from envkit_remote import RemoteEngine, RoutedEngine
from envkit_sglang import SGLangEngine
from envkit_trl import DiskWeightTransfer
from envkit_vllm import VLLMEngine, create_engine

PATIENT = RetryBudget(backoff=Backoff(initial_s=0.02, maximum_s=0.05))


def build() -> CountingEnv:
    return CountingEnv(World(), FaultPlan(0.0))


def turn_of(session: int, ids: Sequence[int] = (4, 5, 6), turn: int = 0) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"{session:024x}{turn:08x}",
        session_id=f"episode-{session}",
        wire_ids=tuple(ids),
        images=(),
        train_length=len(ids),
        sampling=Sampling(),
    )


@asynccontextmanager
async def routed(*servers: FakeVLLM, **options: Any) -> AsyncGenerator[RoutedEngine]:
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        engine = RoutedEngine([VLLMEngine(server.url, **options) for server in servers])
        stack.push_async_callback(engine.aclose)
        yield engine


async def test_session_stays_on_its_server() -> None:
    servers = [FakeVLLM(reply) for _ in range(3)]
    async with routed(*servers) as engine:
        for turn in range(4):
            await asyncio.gather(
                *(engine.generate(turn_of(n, (4, n, *range(turn)), turn)) for n in range(30))
            )
    places = [set(server.sessions) for server in servers]
    assert sum(map(len, places)) == 30  # no session was on two
    assert {len(place) for place in places} == {10}


async def test_members_of_a_group_share_a_server_and_groups_spread() -> None:
    servers = [FakeVLLM(reply) for _ in range(2)]
    async with routed(*servers) as engine:
        for group in range(8):
            await asyncio.gather(
                *(engine.generate(turn_of(10 * group + n, (4, group, 6))) for n in range(4))
            )
    groups = [Counter(b["token_ids"][1] for b in server.requests) for server in servers]
    assert all(set(counter.values()) == {4} for counter in groups)  # each group whole
    assert {len(counter) for counter in groups} == {4}


async def test_one_prompt_for_all_does_not_overload_a_server() -> None:
    servers = [FakeVLLM(reply) for _ in range(2)]
    async with routed(*servers) as engine:
        await asyncio.gather(*(engine.generate(turn_of(n)) for n in range(200)))
    least = min(len(server.requests) for server in servers)
    assert least >= 70


async def test_ended_sessions_free_their_place() -> None:
    servers = [FakeVLLM(reply) for _ in range(2)]
    async with routed(*servers) as engine:
        for number in range(20):
            await engine.generate(turn_of(number, (4, number)))
            await engine.end_session(f"episode-{number}")
        await engine.end_session("unknown")
    # Every one found both servers empty, and the first wins a tie.
    assert len(servers[0].requests) == 20


@pytest.mark.parametrize(
    ("fake", "engine_type"), [(FakeVLLM, VLLMEngine), (FakeSGLang, SGLangEngine)], ids=str
)
async def test_request_of_a_dead_server_is_answered_by_another(fake: Any, engine_type: Any) -> None:
    async with fake(reply) as first, fake(reply) as second:
        engine = RoutedEngine([engine_type(first.url), engine_type(second.url)])
        before = await engine.generate(turn_of(0))
        await first.stop()
        after = await engine.generate(turn_of(0, (4, 5, 6, *before.token_ids, 7), 1))
        assert after.prompt_tokens == 8
        await first.start()
        await engine.probe()
        await engine.generate(turn_of(1, (9,)))  # the first has no session now
        await engine.aclose()
        sent = first.requests if isinstance(first, FakeVLLM) else first.payloads()
        assert [9] in [body.get("token_ids", body.get("input_ids")) for body in sent]


async def test_busy_server_gets_no_requests_until_its_health_page_answers() -> None:
    busy = FakeVLLM(reply, failures=FailurePlan(script=[Failure.UNAVAILABLE]))
    free = FakeVLLM(reply)
    async with routed(busy, free) as engine:
        busy.is_healthy = False
        for number in range(10):
            assert (await engine.generate(turn_of(number, (4, number)))).token_ids
        assert len(busy.requests) == 1
        busy.is_healthy = True
        await until(lambda: True)
        await engine.probe()
        await engine.generate(turn_of(11, (8,)))
        assert len(busy.requests) == 2


async def test_engine_faults_while_all_servers_are_unavailable() -> None:
    servers = [FakeVLLM(reply), FakeVLLM(reply)]
    async with routed(*servers) as engine:
        for server in servers:
            await server.stop()
        with pytest.raises(EngineFault) as caught:
            await engine.generate(turn_of(0))
        assert caught.value.is_unavailable
        with pytest.raises(EngineFault, match="none of the 2 servers"):
            await engine.probe()
        await servers[1].start()
        await engine.probe()
        assert (await engine.generate(turn_of(0))).token_ids
        assert len(servers[1].requests) == 1


async def test_refused_request_is_not_a_server_failure() -> None:
    servers = [FakeVLLM(reply), FakeVLLM(reply)]
    async with routed(*servers, context_length=10**6) as engine:
        with pytest.raises(EngineFault, match="maximum model length") as caught:
            await engine.generate(turn_of(0, (5,) * 9000))
        assert caught.value.kind is FaultKind.PERMANENT
        assert sum(len(server.requests) for server in servers) == 1


async def test_session_of_a_stuck_server_goes_elsewhere_at_the_next_attempt() -> None:
    stuck = FakeVLLM(reply, failures=FailurePlan(rates={Failure.HANG: 1.0}))
    free = FakeVLLM(reply)
    async with stuck, free, AsyncExitStack() as stack:
        engine = RoutedEngine([VLLMEngine(stuck.url, timeout_s=0.2), VLLMEngine(free.url)])
        stack.push_async_callback(engine.aclose)
        stuck.is_healthy = False
        with pytest.raises(EngineFault) as caught:
            await engine.generate(turn_of(0))
        assert caught.value.kind is FaultKind.TIMEOUT
        # At once: nothing is known about the stuck server's health yet.
        assert (await engine.generate(turn_of(0))).token_ids
        assert len(free.requests) == 1


@pytest.mark.slow
async def test_abort_reaches_the_server_that_runs_the_request() -> None:
    servers = [FakeVLLM(reply, token_s=30) for _ in range(2)]
    async with routed(*servers) as engine:
        tasks = [asyncio.create_task(engine.generate(turn_of(n, (4, n)))) for n in range(2)]
        await until(lambda: all(server.running for server in servers))
        await engine.abort(turn_of(1).request_id)
        assert (await tasks[1]).finish_reason is FinishReason.ABORT
        for server in servers:
            server.settings.token_s = 0.0
        skip(30)
        assert (await tasks[0]).finish_reason is FinishReason.STOP


async def test_health_finds_a_dead_server_and_another_model() -> None:
    servers = [FakeVLLM(reply, model="a"), FakeVLLM(reply, model="b")]
    async with routed(*servers) as engine:
        health = await engine.health()
        assert not health.healthy
        assert "the same model, got ['a', 'b']" in health.detail
        servers[1].settings.model = "a"
        assert (await engine.health()).healthy
        await servers[1].stop()
        health = await engine.health()
        assert not health.healthy
        assert health.url == servers[1].url


def test_router_refuses_servers_that_do_not_belong_together() -> None:
    with pytest.raises(ConfigurationError, match="same kind"):
        RoutedEngine([VLLMEngine("http://host:1"), SGLangEngine("http://host:2")])
    with pytest.raises(ConfigurationError, match="different server addresses"):
        RoutedEngine([])


@pytest.mark.slow
async def test_killed_server_processes_take_no_episode_with_them() -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(server_process()) for _ in range(3)]
        engine = create_engine(base_url=[url for url, _ in started])
        finished = 0
        trajectories: list[Any] = []
        episodes = collected(
            build, engine, text_codec(), episodes=64, group_size=4, concurrency=32,
            retries=PATIENT,
        )  # fmt: skip
        async for trajectory in episodes:
            trajectories.append(trajectory)
            finished += 1
            if finished in (10, 30):
                started[finished // 30][1].kill()
        await engine.aclose()
    assert [one.reward for one in trajectories] == [1.0] * 64
    assert all(one.fault is None and one.env_restarts == 0 for one in trajectories)
    gc.collect()  # an unclosed connection would warn here, and warnings are errors


async def test_fork_goes_to_the_server_of_its_tree() -> None:
    servers = [FakeVLLM(reply) for _ in range(3)]
    async with routed(*servers) as engine:
        for tree in range(6):
            await engine.generate(turn_of(10 * tree, (4, tree)))
        for tree in range(6):  # other episodes would go to the least busy server
            for fork in range(1, 4):
                request = turn_of(10 * tree + fork, (4, tree, 20, 21, fork), 1)
                await engine.generate(replace(request, root_id=f"episode-{10 * tree}"))
    places = [Counter(body["token_ids"][1] for body in server.requests) for server in servers]
    assert all(set(place.values()) == {4} for place in places)  # each tree whole
    assert sum(map(len, places)) == 6
    assert {len(set(server.sessions)) for server in servers} == {2}  # the header names the tree


SERVERS: list[tuple[Any, type[RemoteEngine]]] = [(FakeSGLang, SGLangEngine), (FakeVLLM, VLLMEngine)]

PAGE = "<html><body>We will be back soon.</body></html>"

PAGES: Mapping[str, tuple[str, str]] = {
    "page": (PAGE, "text/html"),
    "page called JSON": (PAGE, "application/json"),
    "page as the data of an event": (f"data: {PAGE}\n\n", "text/event-stream"),
    "events without data": ("data: [DONE]\n\n", "text/event-stream"),
    "nothing": ("", "application/json"),
    "nothing of no kind": ("", "application/octet-stream"),
    "white space": ("\n", "text/plain"),
    "half an answer": ('{"choices": [', "application/json"),
}


async def generate(engine: RemoteEngine) -> object:
    return await engine.generate(ask())


async def generate_with_a_probe(engine: RemoteEngine) -> object:
    return await engine.generate(ask(temperature=0.5))


async def stream(engine: RemoteEngine) -> object:
    return await engine.stream(replace(ask()), lambda _: None)


async def score(engine: RemoteEngine) -> object:
    return await engine.score((4, 5, 6))


@asynccontextmanager
async def proxied(server: Any, page: tuple[str, str]) -> AsyncGenerator[tuple[str, list[str]]]:
    """Give the address of a proxy that answers the first POST itself, and the passed-on paths."""
    passed: list[str] = []
    is_back = False

    async def answer(request: web.Request) -> web.Response:
        nonlocal is_back
        if request.method == "POST" and not is_back:
            is_back = True
            return web.Response(text=page[0], content_type=page[1])
        passed.append(request.path)
        async with (
            ClientSession() as client,
            client.request(
                request.method, server.url + request.path, data=await request.read(),
                headers={"Content-Type": "application/json"},
            ) as response,
        ):  # fmt: skip
            body, kind = await response.read(), response.content_type
            return web.Response(body=body, status=response.status, content_type=kind)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with running(app) as address:
        yield address, passed


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("call", [generate, generate_with_a_probe, stream, score])
@pytest.mark.parametrize(("fake", "kind"), SERVERS)
async def test_page_of_a_proxy_is_a_fault_that_may_pass(
    fake: Any,
    kind: type[RemoteEngine],
    call: Callable[[RemoteEngine], Coroutine[Any, Any, object]],
    page: tuple[str, str],
) -> None:
    async with fake(reply) as server, proxied(server, page) as (address, passed):
        engine = kind(address)
        with pytest.raises(EngineFault) as caught:
            await call(engine)
        assert (caught.value.kind, caught.value.retryable) == (FaultKind.TRANSIENT, True)
        assert await call(engine)
        assert passed
        await engine.aclose()


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("call", [generate, stream])
@pytest.mark.parametrize("kind", [SGLangEngine, VLLMEngine])
async def test_answer_that_its_tokens_cannot_fill_is_refused_before_it_is_read_whole(
    kind: type[RemoteEngine],
    call: Callable[[RemoteEngine], Coroutine[Any, Any, object]],
    is_packed: bool,
) -> None:
    sent, size = 0, 1 << 20

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if is_packed:
            response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(200):
                await response.write(b" " * size)
                sent += size
        return response

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with running(app) as address:
        engine = kind(address, context_length=1000, check_logprobs=False)
        with pytest.raises(EngineFault, match="more than 1 MiB"):
            await call(engine)
        await engine.aclose()
    assert sent < 200 * size or is_packed  # 200 MB of spaces are packed before anybody reads them


async def test_answer_with_extras_may_be_long() -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=" " * (3 << 20), content_type="application/json")

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with running(app) as address:
        engine = SGLangEngine(address, context_length=1000, check_logprobs=False)
        with pytest.raises(EngineFault, match="must answer 200 with JSON"):
            await engine.generate(ask(extras={"return_routed_experts": True}))
        await engine.aclose()


@pytest.mark.parametrize("call", [generate, stream])
async def test_long_error_keeps_its_status(
    call: Callable[[RemoteEngine], Coroutine[Any, Any, object]],
) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=503, text="overloaded" + " " * (8 << 20))

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with running(app) as address:
        engine = SGLangEngine(address, context_length=1000, check_logprobs=False)
        with pytest.raises(EngineFault, match="answered 503: overloaded") as caught:
            await call(engine)
        await engine.aclose()
    assert caught.value.is_unavailable


async def test_compressed_events_break_the_connection() -> None:
    async def answer(_request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
        return web.Response(body=gzip.compress(bytes(1 << 26)), headers=headers)

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with running(app) as address:
        engine = SGLangEngine(address, context_length=1000, check_logprobs=False)
        with pytest.raises(EngineFault, match="must not be compressed"):
            await stream(engine)
        await engine.aclose()


class Model:
    """Saves nothing."""

    def save_pretrained(self, folder: object) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("server", "body", "kind"),
    [
        ("sglang", '{"success": true, "message": "ok"}', None),
        ("sglang", '{"success": false, "message": "no such file"}', FaultKind.PERMANENT),
        ("sglang", PAGE, FaultKind.TRANSIENT),
        ("sglang", "", FaultKind.TRANSIENT),
        ("vllm", '{"results": [null]}', None),
        ("vllm", "", None),  # vLLM's own answer to /reset_prefix_cache
        ("vllm", PAGE, FaultKind.TRANSIENT),
        ("vllm", f"\n<!DOCTYPE html>{PAGE}", FaultKind.TRANSIENT),
    ],
)
async def test_weights_are_not_loaded_by_a_page(
    tmp_path: Any, server: str, body: str, kind: FaultKind | None
) -> None:
    requests = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return web.Response(text=body, content_type="text/html" if "<" in body else "text/plain")

    app = web.Application()
    app.router.add_route("POST", "/{path:.*}", answer)
    async with running(app) as address:
        send = DiskWeightTransfer(address, tmp_path, server=server)
        if kind is None:
            await send(Model(), "1")
            return
        with pytest.raises(EngineFault) as caught:
            await send(Model(), "1")
    assert caught.value.kind is kind
    assert requests == (4 if kind is FaultKind.TRANSIENT else 1)


async def test_weights_are_sent_again_after_a_page(tmp_path: Any) -> None:
    answers = ['{"success": true}', PAGE, ""]
    statuses = [200, 502, 200]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=answers.pop(), status=statuses.pop())

    app = web.Application()
    app.router.add_post("/update_weights_from_disk", answer)
    async with running(app) as address:
        await DiskWeightTransfer(address, tmp_path)(Model(), "1")
    assert answers == []
