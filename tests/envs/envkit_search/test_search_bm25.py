"""The index: its formula, its ties and what it refuses."""

import asyncio
import math
import random
from collections import Counter

import pytest
from fakes.boundaries import at_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, DatasetError
from envkit_search.bm25 import EXACT_TITLE_BONUS, MAX_QUERY_CHARACTERS, Bm25Index, EmbeddedBackend
from envkit_search.document import Document
from envkit_search.words import STOP_WORDS, title_key, tokenise

WORDS = ["amber", "bell", "canal", "dune", "eagle", "fjord"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


def documents(*texts: str) -> list[Document]:
    return [
        Document(id=f"d{number}", title=f"Page {number}", text=text)
        for number, text in enumerate(texts)
    ]


def found(index: Bm25Index, query: str, topk: int = 10) -> list[str]:
    return [hit.document.id for hit in index.search(query, topk)]


def reference_scores(corpus: list[Document], query: str) -> dict[str, float]:
    """Score by the textbook formula, one document at a time; the title counts twice."""
    bags = {
        document.id: tokenise(document.title) * 2 + tokenise(document.text) for document in corpus
    }
    mean = sum(map(len, bags.values())) / len(bags)
    scores: dict[str, float] = {}
    for name, bag in bags.items():
        counts = Counter(bag)
        for word in set(tokenise(query)) & set(counts):
            holders = sum(word in other for other in bags.values())
            idf = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
            damping = 1.2 * (0.25 + 0.75 * len(bag) / mean)
            share = idf * counts[word] * 2.2 / (counts[word] + damping)
            scores[name] = scores.get(name, 0.0) + share
    return scores


@settings(deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=8), TEXTS, st.data())
def test_search_agrees_with_the_textbook_formula(
    texts: list[str], query: str, data: st.DataObject
) -> None:
    corpus = documents(*texts)
    expected = reference_scores(corpus, query)
    topk = data.draw(at_limit(max(len(expected), 1), least=1))

    hits = Bm25Index.build(corpus).search(query, topk)

    assert len(hits) == min(topk, len(expected))
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.document.id], abs=1e-3)
    best = sorted(expected.values(), reverse=True)[:topk]
    assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-3)


@settings(deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=8), TEXTS, st.integers(1, 9), st.randoms())
def test_ranking_does_not_depend_on_the_order_of_documents(
    texts: list[str], query: str, topk: int, draws: random.Random
) -> None:
    corpus = documents(*texts)
    shuffled = draws.sample(corpus, len(corpus))
    one, other = Bm25Index.build(corpus), Bm25Index.build(shuffled)

    assert one.corpus_hash == other.corpus_hash
    assert one.search(query, topk) == other.search(query, topk)


@pytest.mark.parametrize("topk", [1, 2, 5, 9, 40])
def test_equal_scores_go_by_document_id(topk: int) -> None:
    corpus = [Document(id=f"{n:02d}", title="Same", text="amber bell") for n in range(20)]
    index = Bm25Index.build(reversed(corpus))

    assert found(index, "amber", topk) == [f"{n:02d}" for n in range(min(topk, 20))]


def test_exact_title_comes_first_and_a_longer_query_gets_no_bonus() -> None:
    index = Bm25Index.build(
        [
            Document(id="a", title="The Amber Canal", text="dune"),
            Document(id="b", title="Bell", text="amber canal amber canal amber canal"),
        ]
    )

    assert index.search("amber canal", 1)[0].document.id == "a"
    assert index.search("  AMBER, canal!", 1)[0].score > EXACT_TITLE_BONUS
    assert index.search("amber canal dune", 1)[0].score < EXACT_TITLE_BONUS


@pytest.mark.parametrize(
    "query",
    ["", "   ", "\x00\x01\x1b\n", "of the", "the THE the", "?!...", "unheard", "\ud800", "\u200b"],
    ids=ascii,
)
def test_a_query_without_known_words_finds_nothing(query: str) -> None:
    assert Bm25Index.build(documents("amber", "bell")).search(query, 3) == []


def test_query_is_cut_at_512_characters() -> None:
    index = Bm25Index.build(documents("amber", "bell"))
    padding = "x" * (MAX_QUERY_CHARACTERS - 6)

    assert found(index, f"amber {padding} bell") == ["d0"]
    assert found(index, " " * MAX_QUERY_CHARACTERS + "amber") == []


@settings(deadline=None)
@given(st.text(max_size=2000), st.integers(1, 5))
def test_any_text_is_a_query(query: str, topk: int) -> None:
    index = Bm25Index.build(documents("amber bell", "canal 12", "São Paulo"))

    hits = index.search(query, topk)

    assert len(hits) <= topk
    assert all(hit.score > 0 for hit in hits)
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.document.id))


@settings(deadline=None)
@given(st.text(max_size=300))
def test_words_are_lower_case_and_tokenising_them_again_keeps_them_searchable(text: str) -> None:
    words = tokenise(text)

    assert all(word == word.strip() and word for word in words)
    assert not STOP_WORDS & {word for word in words if len(word) <= 3}
    assert bool(title_key(text)) == bool(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Cities of São Paulo", ["citie", "sao", "paulo"]),
        ("population: 1,234,567", ["population", "1", "234", "567"]),
        ("Côte d'Ivoire's glass", ["cote", "d", "ivoire", "s", "glass"]),
        ("Who is it?", []),
        ("İstanbul ﬁsh", ["istanbul", "fish"]),
    ],
)
def test_tokenise_folds_and_stems(text: str, words: list[str]) -> None:
    assert tokenise(text) == words


def test_index_refuses_what_it_cannot_rank() -> None:
    with pytest.raises(DatasetError, match="at least one document"):
        Bm25Index.build([])
    with pytest.raises(DatasetError, match="'d0' twice"):
        Bm25Index.build(documents("amber") + documents("bell"))
    with pytest.raises(ConfigurationError, match="topk must be at least 1, got 0"):
        Bm25Index.build(documents("amber")).search("amber", 0)


def test_corpus_hash_sees_every_field() -> None:
    plain = Document(id="a", title="b", text="c")
    others = [
        Document(id="aa", title="b", text="c"),
        Document(id="a", title="bb", text="c"),
        Document(id="a", title="b", text="cc"),
        Document(id="a", title="bc", text=""),
    ]

    hashes = {Bm25Index.build([document]).corpus_hash for document in [plain, *others]}

    assert len(hashes) == 5


async def test_backend_answers_each_query_and_lets_the_loop_run_between() -> None:
    backend = EmbeddedBackend(Bm25Index.build(documents("amber bell", "bell canal")))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    answers = await backend.search(["amber", "of the", "bell"] * 10, topk=1)
    counter.cancel()
    await backend.aclose()

    assert [[hit.document.id for hit in hits] for hits in answers[:3]] == [["d0"], [], ["d0"]]
    assert len(answers) == 30
    assert turns >= 29


async def test_backend_of_no_queries_returns_no_answers() -> None:
    assert await EmbeddedBackend(Bm25Index.build(documents("amber"))).search([], topk=3) == []
