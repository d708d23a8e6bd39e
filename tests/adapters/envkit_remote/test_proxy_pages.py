"""A 200 that is not the server's: a proxy's page, or nothing. Every engine tries again."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from fakes.remote_requests import ask, reply
from fakes.search_server import running
from fakes.sglang_server import FakeSGLang
from fakes.vllm_server import FakeVLLM

from envkit.errors import EngineFault, FaultKind
from envkit_remote import RemoteEngine
from envkit_sglang import SGLangEngine
from envkit_trl import DiskWeightTransfer
from envkit_vllm import VLLMEngine

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
