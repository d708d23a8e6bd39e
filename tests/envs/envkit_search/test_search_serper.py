"""Serper's contract, against a local stand-in that is as strict."""

import asyncio
from typing import Any

import pytest
from fakes.search_server import Failure, FakeSearchServer, served
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, EnvFault, FaultKind
from envkit.rollout.limits import Backoff
from envkit_search.serper import SerperBackend, read_answer
from envkit_search.transport import HttpLimits

QUICK = HttpLimits(
    attempt_s=0.4, deadline_s=5, max_attempts=3, backoff=Backoff(initial_s=0.01, maximum_s=0.05)
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
    server = FakeSearchServer(delay_s=0.05)
    async with served(server) as address:
        backend = SerperBackend("secret", address=address, limits=QUICK)
        await asyncio.gather(*(backend.search(["a", "b"], topk=1) for _ in range(3)))
        await backend.aclose()
    assert server.most_at_once == 6


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
