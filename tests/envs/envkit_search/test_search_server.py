"""Our server of `/retrieve` and its command: right for any number of queries, never empty."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fakes.command import run_envkit, start_envkit
from fakes.oracles import steps_of
from fakes.search_backend import DOCUMENTS, MemoryBackend, tasks
from fakes.search_server import running
from fakes.strangers import connected
from fakes.virtual_time import outlast, skip

import envkit
from envkit.access import Access, bearer
from envkit.errors import ConfigurationError, EnvFault, FaultKind, ServiceError
from envkit_search.document import Document
from envkit_search.leases import SERVER_KEY_VARIABLE
from envkit_search.remote import RetrieveClient
from envkit_search.server import (
    MAX_QUERY_CHARACTERS,
    MAX_REQUEST_QUERIES,
    ServerLimits,
    create_app,
    serve,
)
from envkit_search.transport import HttpLimits

KEY = "a-key-for-these-tests"

ACCESS = Access(key=KEY)


async def ask(
    payload: Any,
    backend: MemoryBackend | None = None,
    body: bytes | None = None,
    *,
    limits: ServerLimits | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    content = json.dumps(payload).encode() if body is None else body
    sent = bearer(KEY) if headers is None else headers
    async with (
        running(create_app(backend or MemoryBackend(), access=ACCESS, limits=limits)) as address,
        aiohttp.ClientSession(headers=sent) as session,
        session.post(f"{address}/retrieve", data=content) as response,
    ):
        return response.status, await response.json(content_type=None)


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
        {"queries": ["q" * (MAX_QUERY_CHARACTERS + 1)]},
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
async def test_server_refuses_invalid_json(body: bytes) -> None:
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
    async with running(create_app(MemoryBackend(pages), access=ACCESS)) as address:
        client = RetrieveClient(address, headers=bearer(KEY))
        ((hit,),) = await client.search(["word"], topk=3)
        await client.aclose()
    assert (hit.document.title, hit.document.text) == ('A "quoted" title', "word\n\nmore")


async def test_server_and_client_agree_under_load() -> None:
    backend = MemoryBackend()
    async with running(create_app(backend, access=ACCESS)) as address:
        client = RetrieveClient(
            address, limits=HttpLimits(max_concurrent=8), max_batch=5, headers=bearer(KEY)
        )
        wanted = [document.title for document in DOCUMENTS] * 20
        found = await asyncio.gather(*(client.search([title], topk=1) for title in wanted))
        await client.aclose()
    assert [hits[0].document.title for (hits,) in found] == wanted


@asynccontextmanager
async def serving(
    backend: MemoryBackend | None = None, limits: ServerLimits | None = None
) -> AsyncGenerator[str]:
    """Serve as the command does, until the context ends."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve(
            backend or MemoryBackend(),
            access=ACCESS,
            port=0,
            limits=limits,
            on_ready=ready.set_result,
        )
    )
    yield await ready
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_serve_listens_until_it_is_cancelled() -> None:
    async with (
        serving() as address,
        aiohttp.ClientSession() as session,
        session.get(f"{address}/health") as response,
    ):
        assert await response.json() == {"status": "ok"}


async def test_serve_says_when_the_port_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: int = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"{port}"):
            await serve(MemoryBackend(), access=ACCESS, port=port)
    with pytest.raises(ConfigurationError):
        await serve(MemoryBackend(), access=ACCESS, port=99_999)
    with pytest.raises(ConfigurationError):
        create_app(MemoryBackend(), access=ACCESS, default_topk=0)
    with pytest.raises(ConfigurationError, match="must be positive"):
        ServerLimits(answer_bytes=0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (bearer(KEY + "x"), 401),
        ({"Authorization": KEY}, 401),
        (bearer(KEY, {"Origin": "http://evil.example"}), 403),
        (bearer(KEY, {"Origin": "null"}), 403),
        (bearer(KEY), 200),
    ],
)
async def test_server_refuses_strangers_and_other_sites(
    headers: dict[str, str], status: int
) -> None:
    backend = MemoryBackend()
    answered, answer = await ask({"queries": ["Tindel"]}, backend, headers=headers)
    assert answered == status
    assert len(backend.calls) == (status == 200)
    assert KEY not in json.dumps(answer)


async def test_wrong_key_is_a_permanent_fault_of_the_client() -> None:
    async with running(create_app(MemoryBackend(), access=ACCESS)) as address:
        client = RetrieveClient(address, headers=bearer("another key"))
        with pytest.raises(EnvFault, match=r"answered 401.*Is the key right") as caught:
            await client.search(["Tindel"], topk=1)
        assert (caught.value.kind, client.requests) == (FaultKind.PERMANENT, 1)
        await client.aclose()
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{address}/health") as response:
                assert response.status == 200
            page = {"Origin": "http://evil.example"}
            async with session.get(f"{address}/health", headers=page) as response:
                assert response.status == 403


async def test_enormous_request_is_refused_before_anything_is_searched() -> None:
    """4,096 queries for 1,000 pages each made an answer of 956 MB out of 4 GB of memory."""
    backend = MemoryBackend()
    status, answer = await ask({"queries": ["river"] * 4096, "topk": 1000}, backend)
    assert (status, backend.calls) == (422, [])
    assert "ask for fewer" in answer["detail"]


async def test_answer_stays_within_its_bytes() -> None:
    pages = [Document(id=str(n), title=f"t{n}", text=f"word {'x' * 10_000}") for n in range(50)]
    backend = MemoryBackend(pages)
    limits = ServerLimits(answer_bytes=200_000)
    status, answer = await ask({"queries": ["word"] * 9, "topk": 10}, backend, limits=limits)
    assert status == 413
    assert "200000 bytes" in answer["detail"]
    status, answer = await ask({"queries": ["word"], "topk": 10}, backend, limits=limits)
    assert (status, len(answer["result"][0])) == (200, 10)
    escaped = MemoryBackend([Document(id="1", title="t", text="word " + "\u00e9" * 1000)])
    status, _ = await ask({"queries": ["word"]}, escaped, limits=ServerLimits(answer_bytes=3000))
    assert status == 413  # a character may take six bytes


async def test_client_splits_a_batch_whose_answer_would_be_too_large() -> None:
    pages = [Document(id=str(n), title=f"t{n}", text=f"word {'x' * 10_000}") for n in range(10)]
    limits = ServerLimits(answer_bytes=250_000)
    app = create_app(MemoryBackend(pages), access=ACCESS, limits=limits)
    async with running(app) as address:
        client = RetrieveClient(address, headers=bearer(KEY))
        found = await client.search(["word"] * 5, topk=10)
        await client.aclose()
    assert [len(hits) for hits in found] == [10] * 5


async def test_request_beyond_its_bytes_is_refused() -> None:
    backend = MemoryBackend()
    body = json.dumps({"queries": ["x" * 3000]}).encode()
    async with (
        running(create_app(backend, access=ACCESS, limits=ServerLimits(request_bytes=2000))) as url,
        aiohttp.ClientSession(headers=bearer(KEY)) as session,
        session.post(f"{url}/retrieve", data=body) as response,
    ):
        assert response.status == 413
    assert backend.calls == []


async def test_request_that_takes_too_long_is_abandoned() -> None:
    backend = MemoryBackend()
    backend.gate = asyncio.Event()
    asking = ask({"queries": ["Tindel"]}, backend, limits=ServerLimits(request_s=60))
    status, answer = await outlast(asking, 60, begun=lambda: backend.calls)
    assert status == 503
    assert "60 s" in answer["detail"]


def post(body: str, length: int | None = None) -> str:
    head = f"POST /retrieve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n{body}"


QUERY = json.dumps({"queries": ["word"]})

LONG = [Document(id="1", title="t", text="word " + "x" * 8_000_000)]


async def test_endless_body_is_abandoned() -> None:
    async with (
        serving(limits=ServerLimits(request_s=0.05)) as address,
        connected(address, post("{", length=100)) as (reader, _),
    ):
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 120)


async def test_body_too_large_is_refused_before_it_arrives() -> None:
    async with serving() as address, connected(address, post("{", length=5 << 20)) as (reader, _):
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 120)


@pytest.mark.parametrize(
    "said", [post("{", length=100), post(QUERY), "POST /retrieve HTTP/1.1\r\n"]
)
async def test_slow_clients_do_not_hold_up_an_honest_one(said: str) -> None:
    """They send no more of their request, or read no more of their answer."""
    async with AsyncExitStack() as stack:
        limits = ServerLimits(at_once=1)
        address = await stack.enter_async_context(serving(MemoryBackend(LONG), limits))
        for _ in range(10):
            reader, _ = await stack.enter_async_context(connected(address, said))
            if said == post(QUERY):
                assert b" 200 " in await asyncio.wait_for(reader.readline(), 120)
        client = RetrieveClient(address, headers=bearer(KEY))
        assert await asyncio.wait_for(client.search(["nothing"], topk=1), 120) == [[]]
        await client.aclose()


async def test_unread_answer_is_abandoned() -> None:
    async with (
        serving(MemoryBackend(LONG), ServerLimits(request_s=60)) as address,
        connected(address, post(QUERY)) as (reader, writer),
    ):
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 120)
        for _ in range(500):
            writer.write(b"\r\n")  # fails once the server has dropped the connection
            skip(60)
            await asyncio.sleep(0.02)
            if writer.transport.is_closing():
                break
        assert writer.transport.is_closing()


@pytest.mark.parametrize("said", ["", "POST /retrieve HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_silent_connection_is_closed(said: str) -> None:
    async with (
        serving(limits=ServerLimits(idle_s=0.1)) as address,
        connected(address, said) as (reader, _),
    ):
        assert await asyncio.wait_for(reader.read(), 120) == b""


@contextmanager
def command_serving(*arguments: object) -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """Run the command on a free port; gives its address and its process.

    The environments of this test search it by the key that it prints.
    """
    process = start_envkit("serve-search", *arguments, "--port", 0)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"serving .+ at (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line or (process.stderr and process.stderr.read())
        made = re.fullmatch(r"key (\S{32})\n", process.stdout.readline())
        assert made
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SERVER_KEY_VARIABLE, made.group(1))
            yield found.group(1), process
    finally:
        process.kill()
        process.communicate()


def interrupt(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Press Ctrl-C; return the exit code and standard error."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    return process.returncode, errors


def play(env: Any, seed: int) -> tuple[float, str]:
    """Play the oracle; return the reward and all that it read."""
    steps = steps_of(env, seed=seed)
    return steps[-1].reward, "".join(step.observation["text"] for step in steps)


def corpus(folder: Path) -> Path:
    path = folder / "corpus.jsonl"
    rows = [{"id": d.id, "contents": f'"{d.title}"\n{d.text}'} for d in DOCUMENTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("protocol", ["tags", "tools"])
@pytest.mark.slow
def test_environment_searches_a_served_file_until_ctrl_c(tmp_path: Path, protocol: str) -> None:
    with command_serving(corpus(tmp_path), "--topk", 1) as (address, process):
        env = envkit.make("search-v0", backend=address, tasks=tasks(), protocol=protocol)
        for seed in range(5):
            reward, read = play(env, seed)
            assert reward == 1.0
            assert any(document.text in read for document in DOCUMENTS)
        env.close()
        code, errors = interrupt(process)
    assert code == 0
    assert errors.splitlines() == ["Ctrl-C ends it", "ended"]


@pytest.mark.slow
def test_key_is_the_servers_and_goes_by_argument_or_variable(tmp_path: Path) -> None:
    with command_serving(corpus(tmp_path)) as (address, _):
        key = os.environ.pop(SERVER_KEY_VARIABLE)
        right = envkit.make("search-v0", backend=address, backend_key=key, tasks=tasks())
        wrong = envkit.make("search-v0", backend=address, tasks=tasks())
        assert play(right, 1)[0] == 1.0
        with pytest.raises(EnvFault, match="Is the key right"):
            play(wrong, 1)
        right.close()
        wrong.close()


@pytest.mark.slow
def test_given_key_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER_KEY_VARIABLE, "a-key-of-the-variable")
    process = start_envkit("serve-search", corpus(tmp_path), "--port", 0)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        env = envkit.make("search-v0", backend=address, tasks=tasks())
        assert play(env, 1)[0] == 1.0
        env.close()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=90) == ("", "Ctrl-C ends it\nended\n")
    finally:
        process.kill()


@pytest.mark.slow
def test_shipped_corpus_is_served_with_its_questions() -> None:
    with command_serving("world", "--corpus-option", "seed=3", "--corpus-option", "size=60") as (
        address,
        _,
    ):
        options = {"seed": 3, "size": 60}
        env = envkit.make("search-v0", backend=address, corpus_options=options)
        assert [play(env, seed)[0] for seed in range(4)] == [1.0] * 4
        env.close()


@pytest.mark.slow
def test_index_on_disk_is_built_once_and_served(tmp_path: Path) -> None:
    place = tmp_path / "index"
    for corpus_argument in (corpus(tmp_path), corpus(tmp_path), place):
        more = [] if corpus_argument == place else ["--index", place]
        with command_serving(corpus_argument, *more) as (address, _):
            env = envkit.make("search-v0", backend=address, tasks=tasks())
            assert play(env, 1)[0] == 1.0
            env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wrld"], "no search corpus 'wrld' is registered. Did you mean 'world'?"),
        (["world", "--key", "short"], "at least 16 printable"),
        (["world", "--no-key", "--host", "0.0.0.0"], "--allow-remote"),
        (["world", "--no-key", "--key", "k" * 20], "contradict"),
        (["facts", "--corpus-option", "seed=1"], "takes no options"),
        (["world", "--corpus-option", "seed"], "--corpus-option takes KEY=VALUE"),
        (["world", "--corpus-option", "sise=60"], "no shape of a world"),
    ],
)
def test_wrong_arguments_end_in_one_line(arguments: list[str], said: str) -> None:
    done = run_envkit("serve-search", *arguments)
    assert done.code == 2
    assert said in done.last_error


def test_missing_corpus_is_an_error_that_names_what_was_typed() -> None:
    done = run_envkit("serve-search", "nosuch.jsonl")
    assert done.code == 1
    assert "there is no file of documents or index folder 'nosuch.jsonl'" in done.last_error


def test_taken_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: int = taken.getsockname()[1]
        done = run_envkit("serve-search", corpus(tmp_path), "--port", port)
    assert done.code == 1
    assert f"port {port} of 127.0.0.1 is in use" in done.last_error
