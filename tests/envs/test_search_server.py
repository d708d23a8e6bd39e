"""Our server of `/retrieve`: right for any number of queries, and never empty for a failure."""

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest
from fakes.search_backend import DOCUMENTS, MemoryBackend
from fakes.search_server import running

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit_search.document import Document
from envkit_search.remote import RetrieveClient
from envkit_search.server import MAX_REQUEST_QUERIES, create_app, serve
from envkit_search.transport import HttpLimits


async def ask(
    payload: Any, backend: MemoryBackend | None = None, body: bytes | None = None
) -> tuple[int, Any]:
    content = json.dumps(payload).encode() if body is None else body
    async with (
        running(create_app(backend or MemoryBackend())) as address,
        aiohttp.ClientSession() as session,
        session.post(f"{address}/retrieve", data=content) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17])
@pytest.mark.parametrize("has_scores", [True, False])
async def test_server_answers_any_number_of_queries(count: int, has_scores: bool) -> None:
    queries = [DOCUMENTS[number].title for number in range(count)]
    status, answer = await ask({"queries": queries, "topk": 2, "return_scores": has_scores})
    assert status == 200
    assert len(answer["result"]) == count
    for hits, query in zip(answer["result"], queries, strict=True):
        first = hits[0]["document"] if has_scores else hits[0]
        assert set(hits[0]) == ({"document", "score"} if has_scores else {"id", "contents"})
        assert first["contents"].startswith(f'"{query}"\n')
        assert len(hits) == 2


@pytest.mark.parametrize("topk", [None, 0])
async def test_server_takes_its_own_topk_where_none_is_given(topk: int | None) -> None:
    status, answer = await ask({"queries": ["mayor of the town"], "topk": topk})
    assert (status, len(answer["result"][0])) == (200, 3)
    status, answer = await ask({"queries": ["mayor of the town"]})
    assert (status, len(answer["result"][0])) == (200, 3)


@pytest.mark.parametrize(
    "payload",
    [
        [],
        {},
        {"queries": "Tindel"},
        {"queries": [1]},
        {"queries": ["q"] * (MAX_REQUEST_QUERIES + 1)},
        {"queries": ["q"], "topk": -1},
        {"queries": ["q"], "topk": "3"},
        {"queries": ["q"], "topk": 2.5},
        {"queries": ["q"], "topk": True},
        {"queries": ["q"], "topk": 10**9},
        {"queries": ["q"], "return_scores": 1},
    ],
)
async def test_server_refuses_another_shape(payload: Any) -> None:
    status, answer = await ask(payload)
    assert status == 422
    assert answer["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
async def test_server_refuses_what_is_no_json(body: bytes) -> None:
    status, answer = await ask(None, body=body)
    assert status == 422
    assert "JSON" in answer["detail"]


@pytest.mark.parametrize(
    ("kind", "status"), [(FaultKind.TRANSIENT, 503), (FaultKind.PERMANENT, 500)]
)
async def test_server_never_answers_a_failure_with_an_empty_list(
    kind: FaultKind, status: int
) -> None:
    backend = MemoryBackend()
    backend.faults.append(EnvFault("down", kind=kind))
    answered, answer = await ask({"queries": ["Tindel"]}, backend)
    assert answered == status
    assert "result" not in answer


async def test_server_keeps_titles_on_their_line() -> None:
    pages = [Document(id="1", title='A "quoted"\ntitle', text="word\n\nmore")]
    async with running(create_app(MemoryBackend(pages))) as address:
        client = RetrieveClient(address)
        ((hit,),) = await client.search(["word"], topk=3)
        await client.aclose()
    assert (hit.document.title, hit.document.text) == ('A "quoted" title', "word\n\nmore")


async def test_server_and_client_agree_under_load() -> None:
    backend = MemoryBackend()
    async with running(create_app(backend)) as address:
        client = RetrieveClient(address, limits=HttpLimits(max_concurrent=8), max_batch=5)
        wanted = [document.title for document in DOCUMENTS] * 20
        found = await asyncio.gather(*(client.search([title], topk=1) for title in wanted))
        await client.aclose()
    assert [hits[0].document.title for (hits,) in found] == wanted


async def test_serve_listens_until_it_is_cancelled() -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve(MemoryBackend(), port=0, on_ready=ready.set_result))
    address = await ready
    async with aiohttp.ClientSession() as session, session.get(f"{address}/health") as response:
        assert await response.json() == {"status": "ok"}
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_serve_says_when_the_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: int = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"{port}"):
            await serve(MemoryBackend(), port=port)
    with pytest.raises(ConfigurationError):
        await serve(MemoryBackend(), port=99_999)
    with pytest.raises(ConfigurationError):
        create_app(MemoryBackend(), default_topk=0)
