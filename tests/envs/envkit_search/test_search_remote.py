"""The client of `/retrieve`: every failure of a server is survived or becomes a typed fault."""

import asyncio
import gc
import json
import queue
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from fakes.search_backend import DOCUMENTS, MemoryBackend, tasks
from fakes.search_server import HANG_S, Failure, FakeSearchServer, Shape, served
from fakes.virtual_time import skip
from fakes.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.rollout.limits import Backoff
from envkit_search import SearchEnv
from envkit_search.remote import DOCUMENT_CHARACTERS, RetrieveClient, read_answer
from envkit_search.transport import HttpLimits

QUICK = HttpLimits(
    attempt_s=HANG_S,
    deadline_s=10 * HANG_S,
    max_attempts=3,
    max_bytes=1 << 20,
    backoff=Backoff(initial_s=0.01, maximum_s=0.05, jitter=0.5),
)


@asynccontextmanager
async def client_of(
    server: FakeSearchServer, *, limits: HttpLimits = QUICK, **options: Any
) -> AsyncGenerator[RetrieveClient]:
    async with (
        served(server) as address,
        aclosing(RetrieveClient(address, limits=limits, **options)) as client,
    ):
        yield client


@pytest.mark.parametrize("shape", list(Shape))
async def test_client_reads_every_shape_of_a_right_answer(shape: Shape) -> None:
    server = FakeSearchServer(shape=shape)
    async with client_of(server) as client:
        found = await client.search(["River Vessa", "zzz", "Tindel"], topk=2)
    assert [[hit.document.title for hit in hits][:1] for hits in found] == [
        ["River Vessa"],
        [],
        ["Tindel"],
    ]
    assert found[0][0].document.text == DOCUMENTS[0].text
    assert [len(hits) for hits in found] == [2, 0, 2]
    assert found[0][0].score > found[0][1].score
    assert server.complaints == []


@pytest.mark.parametrize(
    "failure",
    [
        Failure.E500,
        Failure.E502,
        Failure.E503,
        Failure.E504,
        Failure.BUSY,
        Failure.RESET,
        Failure.RESET_MID_BODY,
        Failure.HANG,
        Failure.DRIP,
        Failure.NOT_JSON,
        Failure.HTML,
        Failure.EMPTY_BODY,
        Failure.DEEP,
    ],
)
@pytest.mark.slow
async def test_client_survives_a_temporary_failure(failure: Failure) -> None:
    server = FakeSearchServer(script=[failure, failure])
    async with client_of(server) as client:
        (hits,) = await client.search(["Tindel"], topk=1)
    assert hits[0].document.title == "Tindel"
    assert server.failed == [failure, failure]
    assert client.requests == 3


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure.E500, FaultKind.TRANSIENT),
        (Failure.E503, FaultKind.TRANSIENT),
        (Failure.BUSY, FaultKind.TRANSIENT),
        (Failure.RESET, FaultKind.TRANSIENT),
        (Failure.RESET_MID_BODY, FaultKind.TRANSIENT),
        (Failure.HTML, FaultKind.TRANSIENT),
        (Failure.HANG, FaultKind.TIMEOUT),
        (Failure.DRIP, FaultKind.TIMEOUT),
    ],
)
@pytest.mark.slow
async def test_client_fails_with_a_retryable_fault(failure: Failure, kind: FaultKind) -> None:
    server = FakeSearchServer(script=[failure] * 3)
    async with client_of(server) as client:
        with pytest.raises(EnvFault, match="the search server at") as caught:
            await client.search(["Tindel"], topk=1)
    assert caught.value.kind is kind
    assert caught.value.retryable
    assert client.requests == 3


@pytest.mark.parametrize(
    "failure",
    [
        Failure.E400,
        Failure.E401,
        Failure.E404,
        Failure.REDIRECT,
        Failure.WRONG_TOP,
        Failure.WRONG_LIST,
        Failure.WRONG_ITEM,
        Failure.NO_CONTENTS,
        Failure.NAN_SCORE,
        Failure.FEWER,
        Failure.NULL,
        Failure.HUGE,
    ],
)
async def test_client_does_not_repeat_what_would_fail_again(failure: Failure) -> None:
    server = FakeSearchServer(script=[failure])
    async with client_of(server) as client:
        with pytest.raises(EnvFault) as caught:
            await client.search(["Tindel"], topk=1)
    assert caught.value.kind is FaultKind.PERMANENT
    assert not caught.value.retryable
    assert client.requests == 1


@pytest.mark.slow
async def test_client_waits_as_long_as_a_busy_server_asks() -> None:
    server = FakeSearchServer(script=[Failure.BUSY_SECONDS])
    async with client_of(server) as client:
        started = time.monotonic()
        assert await client.search(["Tindel"], topk=1)
        assert time.monotonic() - started >= 1.0


async def test_client_does_not_wait_beyond_its_deadline() -> None:
    server = FakeSearchServer(script=[Failure.BUSY_LONG])
    async with client_of(server) as client:
        with pytest.raises(EnvFault, match="429") as caught:
            await client.search(["Tindel"], topk=1)
    assert caught.value.kind is FaultKind.TRANSIENT
    assert client.requests == 1


async def test_client_without_a_server_is_a_transient_fault() -> None:
    async with served(FakeSearchServer()) as address:
        pass
    client = RetrieveClient(address, limits=QUICK)
    with pytest.raises(EnvFault, match="cannot be reached") as caught:
        await client.search(["Tindel"], topk=1)
    await client.aclose()
    assert caught.value.kind is FaultKind.TRANSIENT
    assert client.requests == 3


async def test_concurrent_queries_go_out_in_one_request() -> None:
    server = FakeSearchServer()
    async with client_of(server, window_s=0.01) as client:
        wanted = [document.title for document in DOCUMENTS]
        found = await asyncio.gather(*(client.search([title], topk=1) for title in wanted))
    assert [hits[0].document.title for (hits,) in found] == wanted
    assert [len(request["queries"]) for request in server.requests] == [len(wanted)]


async def test_batches_are_bounded_and_split_by_topk() -> None:
    server = FakeSearchServer()
    async with client_of(server, max_batch=4, window_s=0.01) as client:
        await asyncio.gather(
            *(client.search([f"q{n}"], topk=1) for n in range(10)),
            *(client.search([f"q{n}"], topk=2) for n in range(2)),
        )
    asked = sorted((request["topk"], len(request["queries"])) for request in server.requests)
    assert asked == [(1, 2), (1, 4), (1, 4), (2, 2)]


async def test_a_refused_query_fails_alone() -> None:
    server = FakeSearchServer(poison="poison")
    async with client_of(server, window_s=0.01) as client:
        outcomes = await asyncio.gather(
            *(client.search([query], topk=1) for query in ("Tindel", "poison", "Quill", "Brack")),
            return_exceptions=True,
        )
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["list", "RefusedFault", "list", "list"]


async def test_requests_under_way_are_bounded() -> None:
    server = FakeSearchServer(delay_s=0.02)
    limits = HttpLimits(max_concurrent=3)
    async with client_of(server, limits=limits, max_batch=1) as client:
        await asyncio.gather(*(client.search([f"q{n}"], topk=1) for n in range(20)))
    assert server.most_at_once == 3


async def test_a_caller_that_leaves_does_not_affect_others() -> None:
    server = FakeSearchServer(delay_s=30)
    async with client_of(server, window_s=0.001) as client:
        leaving = asyncio.ensure_future(client.search(["Tindel"], topk=1))
        staying = asyncio.ensure_future(client.search(["Quill"], topk=1))
        await until(lambda: server.at_once == 1)
        leaving.cancel()
        skip(30)
        assert (await staying)[0][0].document.title == "Quill"
        alone = asyncio.ensure_future(client.search(["Brack"], topk=1))
        await until(lambda: server.at_once == 1)
        alone.cancel()
        await until(lambda: server.at_once == 0)


async def test_closing_ends_the_searches_under_way() -> None:
    server = FakeSearchServer(delay_s=30)
    async with client_of(server) as client:
        under_way = asyncio.ensure_future(client.search(["Tindel"], topk=1))
        await until(lambda: server.at_once == 1)
        waiting = asyncio.ensure_future(client.search(["Quill"], topk=1))
        await asyncio.sleep(0)
        await client.aclose()
        for search in (under_way, waiting):
            with pytest.raises(EnvFault, match="closed") as caught:
                await search
            assert caught.value.kind is FaultKind.TRANSIENT


def test_client_works_on_consecutive_loops() -> None:
    client = RetrieveClient("http://127.0.0.1:9", limits=HttpLimits(max_attempts=1))

    async def once() -> None:
        async with served(FakeSearchServer()) as address:
            client._service.url = f"{address}/retrieve"
            assert await client.search(["Tindel"], topk=1)
            await client.aclose()

    asyncio.run(once())
    asyncio.run(once())


async def test_huge_documents_are_cut_and_bad_bytes_replaced() -> None:
    server = FakeSearchServer()
    contents = json.dumps('"Title"\n' + "x" * 100_000).encode()
    server.body = b'{"result": [[{"id": 7, "contents": %s}, ' % contents
    server.body += b'{"id": "8", "contents": "\\"Caf\xe9\\"\\ncold"}]]}'
    async with client_of(server) as client:
        ((huge, latin),) = await client.search(["x"], topk=3)
        assert (huge.document.id, len(huge.document.text)) == ("7", DOCUMENT_CHARACTERS)
        assert latin.document.title == "Caf\ufffd"
        server.content_type = "application/json; charset=latin-1"
        ((_, latin),) = await client.search(["x"], topk=3)
        assert latin.document.title == "Caf\u00e9"
        server.content_type = "application/json; charset=klingon"
        assert len((await client.search(["x"], topk=3))[0]) == 2


async def test_a_large_answer_does_not_block_the_loop() -> None:
    server = FakeSearchServer()
    row = {"document": {"id": "1", "contents": '"t"\n' + "word " * 2000}, "score": 1.0}
    server.body = json.dumps({"result": [[row] * 90]}).encode()
    async with client_of(server) as client:
        ((first, *_),) = await client.search(["x"], topk=90)
        assert first.document.title == "t"


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Tindel"\nA town.\nSmall.', "Tindel", "A town.\nSmall."),
        ("Tindel\nA town.", "Tindel", "A town."),
        ('"Tindel"', "Tindel", ""),
        ("", "", ""),
        ('"', '"', ""),
        ("x" * 300, "", "x" * 300),
    ],
)
def test_contents_are_a_title_line_and_a_text(contents: str, title: str, text: str) -> None:
    ((hit,),) = read_answer({"result": [[{"contents": contents}]]}, queries=1, topk=3)
    assert (hit.document.title, hit.document.text) == (title, text)


def test_documents_with_title_and_text_are_read_too() -> None:
    ((hit,),) = read_answer({"result": [[{"title": "T", "text": "x"}]]}, queries=1, topk=3)
    assert (hit.document.title, hit.document.text) == ("T", "x")


@pytest.mark.parametrize(
    "scores", [(0.9, 0.5, 0.5), (0.1, 0.4, 3.0), (-3.0, -2.0, -1.0), (0, 0, 0), (1.0, 3.0, 2.0)]
)
def test_hits_keep_the_order_of_the_server(scores: tuple[float, ...]) -> None:
    pairs = zip("abc", scores, strict=True)
    rows = [{"document": {"id": name, "contents": name}, "score": score} for name, score in pairs]
    for topk in (1, 2, 3):
        (hits,) = read_answer({"result": [rows]}, queries=1, topk=topk)
        assert [hit.document.id for hit in hits] == ["a", "b", "c"][:topk]
    assert tuple(hit.score for hit in hits) == scores


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["result", "document", "contents", "score", "id", "title", "text"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, st.integers(1, 3))
def test_any_answer_is_read_or_is_a_permanent_fault(answer: Any, queries: int) -> None:
    kinds: set[FaultKind] = set()
    for candidate in (answer, {"result": answer}, {"result": [answer] * queries}):
        try:
            found = read_answer(candidate, queries=queries, topk=2)
        except EnvFault as fault:
            kinds.add(fault.kind)
        else:
            assert len(found) == queries
            assert all(len(hits) <= 2 for hits in found)
    assert kinds <= {FaultKind.PERMANENT}


@pytest.mark.parametrize(
    "limits",
    [{"attempt_s": 0}, {"deadline_s": -1}, {"max_attempts": 0}, {"max_concurrent": 0}],
)
def test_limits_under_which_nothing_could_be_sent_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        HttpLimits(**limits)


@pytest.mark.parametrize("address", ["", "127.0.0.1:8000", "ftp://x", "http://"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError):
        RetrieveClient(address)


async def test_a_storm_of_failures_gives_right_answers_or_faults_and_never_empty_results() -> None:
    rates = dict.fromkeys((Failure.E503, Failure.BUSY, Failure.RESET, Failure.HTML), 0.07)
    server = FakeSearchServer(rates={**rates, Failure.RESET_MID_BODY: 0.07}, seed=5)
    async with client_of(server, max_batch=3, window_s=0) as client:
        wanted = [document.title for document in DOCUMENTS] * 10
        outcomes = await asyncio.gather(
            *(client.search([title], topk=1) for title in wanted), return_exceptions=True
        )
    titles = [
        outcome[0][0].document.title if isinstance(outcome, list) else None for outcome in outcomes
    ]
    assert all(title in (None, right) for title, right in zip(titles, wanted, strict=True))
    assert all(isinstance(outcome, list | EnvFault) for outcome in outcomes)
    assert len(set(server.failed)) == 5
    assert titles.count(None) < len(wanted) / 4


async def test_search_env_plays_over_a_server() -> None:
    server = FakeSearchServer(script=[Failure.E502])
    async with served(server) as address:
        envs = [SearchEnv(tasks=tasks(), backend=address, max_turns=3) for _ in range(4)]
        for number, env in enumerate(envs):
            await env.areset(seed=number)
        steps = await asyncio.gather(*(env.astep("<search>Tindel</search>") for env in envs))
        assert all("Ada Renn" in step.observation["text"] for step in steps)
        assert [request["queries"] for request in server.requests] == [["Tindel"]]
        for env in envs:
            await env.aclose()
            await env.aclose()


async def test_memory_backend_and_client_give_the_same_hits() -> None:
    async with served(FakeSearchServer()) as address:
        client = RetrieveClient(address, limits=QUICK)
        queries = ["mayor of Tindel", "bridge metres", "river Lake Pell", ""]
        assert await client.search(queries, topk=5) == await MemoryBackend().search(queries, topk=5)
        await client.aclose()


@pytest.mark.slow
def test_search_env_plays_over_a_server_without_an_event_loop() -> None:
    address: queue.Queue[str] = queue.Queue()
    done = threading.Event()

    async def serve() -> None:
        async with served(FakeSearchServer()) as own:
            address.put(own)
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        where = address.get()
        envs = [SearchEnv(tasks=tasks(), backend=where) for _ in range(2)]
        for env in envs:
            env.reset(seed=0)
            assert "Ada Renn" in env.step("<search>Tindel</search>").observation["text"]
        for env in envs:
            env.close()
            env.close()
        gc.collect()
    finally:
        done.set()
        thread.join()
