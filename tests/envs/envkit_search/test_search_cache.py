"""The cache in front of a backend, backends that environments share, and Serper's contract."""

import asyncio
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.search_backend import MemoryBackend
from fakes.search_server import Failure, FakeSearchServer, served
from fakes.virtual_time import skip
from fakes.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.rollout.limits import Backoff
from envkit_search.cache import CachedBackend
from envkit_search.document import Hit
from envkit_search.leases import SERPER_KEY_VARIABLE, lease
from envkit_search.serper import SerperBackend, read_answer
from envkit_search.transport import HttpLimits


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def titles(found: list[list[Hit]]) -> list[str]:
    return [hits[0].document.title for hits in found]


async def test_cache_asks_once() -> None:
    inner = MemoryBackend()
    cache = CachedBackend(inner)
    assert titles(await cache.search(["Tindel", "Quill"], topk=1)) == ["Tindel", "Quill"]
    assert titles(await cache.search(["Quill", "Brack", "Quill"], topk=1)) == [
        "Quill",
        "Brack",
        "Quill",
    ]
    assert inner.calls == [["Tindel", "Quill"], ["Brack"]]
    await cache.search(["Quill"], topk=2)
    assert inner.calls[-1] == ["Quill"]
    await cache.aclose()
    assert inner.closed == 1


async def test_cache_remembers_that_nothing_was_found_but_never_a_failure() -> None:
    inner = MemoryBackend()
    cache = CachedBackend(inner)
    assert await cache.search(["zzz"], topk=1) == [[]]
    assert await cache.search(["zzz"], topk=1) == [[]]
    assert len(inner.calls) == 1
    inner.faults.append(EnvFault("down", kind=FaultKind.TRANSIENT))
    with pytest.raises(EnvFault, match="down"):
        await cache.search(["Tindel"], topk=1)
    assert titles(await cache.search(["Tindel"], topk=1)) == ["Tindel"]


async def test_cache_forgets_the_oldest_and_the_least_used() -> None:
    inner, clock = MemoryBackend(), Clock()
    cache = CachedBackend(inner, capacity=2, ttl_s=10, clock=clock)
    for query in ("Tindel", "Quill", "Tindel", "Brack", "Tindel", "Quill"):
        await cache.search([query], topk=1)
    assert inner.calls == [["Tindel"], ["Quill"], ["Brack"], ["Quill"]]
    clock.now = 10.0
    await cache.search(["Tindel"], topk=1)
    assert len(inner.calls) == 5


async def test_cache_sends_one_request_for_concurrent_callers() -> None:
    inner = MemoryBackend()
    inner.gate = asyncio.Event()
    cache = CachedBackend(inner)
    searches = [
        asyncio.ensure_future(cache.search(["Tindel", f"q{n % 2}"], topk=1)) for n in range(6)
    ]
    await asyncio.sleep(0.01)
    inner.gate.set()
    for found in await asyncio.gather(*searches):
        assert found[0][0].document.title == "Tindel"
    assert inner.calls == [["Tindel", "q0"], ["q1"]]


async def test_cache_gives_a_failure_to_all_waiters() -> None:
    inner = MemoryBackend()
    inner.gate = asyncio.Event()
    inner.faults.append(EnvFault("down", kind=FaultKind.TIMEOUT))
    cache = CachedBackend(inner)
    searches = [asyncio.ensure_future(cache.search(["Tindel"], topk=1)) for _ in range(3)]
    await asyncio.sleep(0.01)
    inner.gate.set()
    outcomes = await asyncio.gather(*searches, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["down"] * 3
    assert titles(await cache.search(["Tindel"], topk=1)) == ["Tindel"]


async def test_cache_continues_until_the_last_caller_leaves() -> None:
    inner = MemoryBackend()
    inner.gate = asyncio.Event()
    cache = CachedBackend(inner)
    first, second = (asyncio.ensure_future(cache.search(["Tindel"], topk=1)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    assert not second.done()
    second.cancel()
    await asyncio.sleep(0.01)
    third = asyncio.ensure_future(cache.search(["Tindel"], topk=1))
    await asyncio.sleep(0.01)
    inner.gate.set()
    assert titles(await third) == ["Tindel"]
    assert inner.calls == [["Tindel"], ["Tindel"]]


async def test_cache_closed_during_a_search_is_a_fault() -> None:
    inner = MemoryBackend()
    inner.gate = asyncio.Event()
    cache = CachedBackend(inner)
    search = asyncio.ensure_future(cache.search(["Tindel"], topk=1))
    await asyncio.sleep(0.01)
    await cache.aclose()
    with pytest.raises(EnvFault, match="closed"):
        await search


async def test_cache_refuses_a_backend_that_answers_too_little() -> None:
    class Short(MemoryBackend):
        async def search(self, queries: object, *, topk: int) -> list[list[Hit]]:
            return []

    with pytest.raises(EnvFault, match="0 lists for 1 queries"):
        await CachedBackend(Short()).search(["Tindel"], topk=1)


async def test_cached_hits_cannot_be_changed_by_a_caller() -> None:
    cache = CachedBackend(MemoryBackend())
    (hits,) = await cache.search(["Tindel"], topk=1)
    hits.clear()
    assert titles(await cache.search(["Tindel"], topk=1)) == ["Tindel"]


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=4), max_size=12), st.data())
def test_cache_answers_as_its_backend_does(calls: list[list[str]], data: st.DataObject) -> None:
    distinct = len({query for queries in calls for query in queries})
    capacity = data.draw(st.integers(1, 4) | at_limit(max(distinct, 1), least=1))

    async def play() -> None:
        inner = MemoryBackend()
        cache = CachedBackend(inner, capacity=capacity)
        for queries in calls:
            assert await cache.search(queries, topk=2) == await inner.search(queries, topk=2)

    asyncio.run(play())


@pytest.mark.parametrize("arguments", [{"capacity": 0}, {"ttl_s": 0.0}])
def test_cache_refuses_a_bad_argument(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        CachedBackend(MemoryBackend(), **arguments)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_leases_of_one_address_share_a_client_until_the_last_is_back() -> None:
    server = FakeSearchServer()
    async with served(server) as address:
        first, second = lease(address), lease(f"{address}/")
        assert first.backend is second.backend
        await first.search(["Tindel"], topk=1)
        await first.aclose()
        await first.aclose()
        with pytest.raises(ConfigurationError, match="closed"):
            await first.search(["Tindel"], topk=1)
        assert titles(await second.search(["Tindel"], topk=1)) == ["Tindel"]
        assert len(server.requests) == 1
        await second.aclose()
        third = lease(address)
        assert third.backend is not second.backend
        await third.aclose()


async def test_lease_of_serper_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERPER_KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigurationError, match=SERPER_KEY_VARIABLE):
        lease("serper")
    monkeypatch.setenv(SERPER_KEY_VARIABLE, "secret")
    await lease("serper").aclose()


QUICK = HttpLimits(
    attempt_s=60, deadline_s=600, max_attempts=3, backoff=Backoff(initial_s=0.01, maximum_s=0.05)
)


async def test_serper_pages_become_hits() -> None:
    server = FakeSearchServer()
    async with served(server) as address:
        backend = SerperBackend("secret", address=address, limits=QUICK, country="ch")
        found = await backend.search(["Tindel", "zzz"], topk=2)
        await backend.aclose()
    assert found[0][0].document.title == "Tindel"
    assert [hit.score for hit in found[0]] == [1.0, 0.5]
    assert found[0][0].document.id.startswith("https://example.org/")
    assert found[1] == []
    assert server.complaints == []
    assert {request["gl"] for request in server.requests} == {"ch"}


@pytest.mark.parametrize("failure", [Failure.WRONG_TOP, Failure.WRONG_LIST, Failure.E400])
async def test_serper_answer_that_is_wrong_is_a_fault(failure: Failure) -> None:
    server = FakeSearchServer(script=[failure])
    async with served(server) as address:
        backend = SerperBackend("secret", address=address, limits=QUICK)
        with pytest.raises(EnvFault) as caught:
            await backend.search(["Tindel"], topk=1)
        await backend.aclose()
    assert caught.value.kind is FaultKind.PERMANENT


async def test_serper_key_is_sent_and_never_shown() -> None:
    async with served(FakeSearchServer()) as address:
        backend = SerperBackend("hush-hush", address=address, limits=QUICK)
        with pytest.raises(EnvFault, match="403") as caught:
            await backend.search(["Tindel"], topk=1)
        await backend.aclose()
    assert "hush-hush" not in f"{caught.value!r} {backend!r}"
    with pytest.raises(ConfigurationError):
        SerperBackend(" ")


async def test_serper_queries_run_at_once() -> None:
    server = FakeSearchServer(delay_s=30)
    async with served(server) as address:
        backend = SerperBackend("secret", address=address, limits=QUICK)
        searches = asyncio.gather(*(backend.search(["a", "b"], topk=1) for _ in range(3)))
        await until(lambda: server.at_once == 6)
        skip(30)
        await searches
        await backend.aclose()


BOXED: dict[str, Any] = {
    "searchParameters": {"q": "mouth of the Vessa"},
    "answerBox": {
        "title": "Vessa",
        "answer": "Tindel",
        "snippet": "The Vessa ends at Tindel.",
        "link": "https://example.org/vessa",
    },
    "knowledgeGraph": {
        "title": "Tindel",
        "type": "Town",
        "website": "https://example.org/tindel",
        "description": "Tindel is a town on the Vessa.",
        "descriptionLink": "https://example.org/about",
        "attributes": {"Population": "12,400", "Mayor": "Ada Orne"},
    },
    "organic": [{"title": "Rivers", "link": "https://example.org/rivers", "snippet": "A list."}],
}


def test_serper_boxes_come_before_the_pages() -> None:
    hits = read_answer(BOXED, 3)

    assert [hit.document.title for hit in hits] == ["Vessa", "Tindel", "Rivers"]
    assert [hit.document.id for hit in hits] == [
        "https://example.org/vessa",
        "https://example.org/tindel",
        "https://example.org/rivers",
    ]
    assert hits[0].document.text == "Tindel\nThe Vessa ends at Tindel."
    assert hits[1].document.text == (
        "Town\nTindel is a town on the Vessa.\nPopulation: 12,400\nMayor: Ada Orne"
    )
    assert [hit.score for hit in hits] == [1.0, 1 / 2, 1 / 3]
    assert [hit.document.title for hit in read_answer(BOXED, 1)] == ["Vessa"]


@pytest.mark.parametrize(
    "box", [None, [], "Tindel", 5, {}, {"title": "Vessa"}, {"title": 3, "answer": ["x"]}]
)
def test_serper_box_that_says_nothing_is_left_out(box: Any) -> None:
    answer = {**BOXED, "answerBox": box, "knowledgeGraph": box}

    assert [hit.document.title for hit in read_answer(answer, 3)] == ["Rivers"]


def test_serper_box_without_a_title_or_link_still_says_its_answer() -> None:
    (hit,) = read_answer({"searchParameters": {}, "answerBox": {"answer": "42"}}, 3)

    assert (hit.document.title, hit.document.text) == ("Answer box", "42")


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["searchParameters", "organic", "title", "link", "snippet", "attributes"]
                ),
                inner,
            )
        ),
    )
)
def test_serper_any_answer_is_read_or_is_a_permanent_fault(answer: Any) -> None:
    kinds: set[FaultKind] = set()
    boxes = {"answerBox": answer, "knowledgeGraph": answer, "searchParameters": {}}
    for candidate in (answer, boxes, {"searchParameters": {}, "organic": answer}):
        try:
            assert len(read_answer(candidate, 2)) <= 2
        except EnvFault as fault:
            kinds.add(fault.kind)
    assert kinds <= {FaultKind.PERMANENT}
