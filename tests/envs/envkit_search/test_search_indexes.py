"""The index in memory and the one on disk: formula, ties, ranks, and what they refuse."""

import asyncio
import builtins
import json
import math
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.boundaries import at_limit
from fakes.search_backend import DOCUMENTS, tasks
from hypothesis import given, settings
from hypothesis import strategies as st

import envkit
from envkit.errors import (
    ConfigurationError,
    DatasetError,
    EnvFault,
    MissingDependencyError,
    StorageError,
)
from envkit_search.bm25 import EXACT_TITLE_BONUS, MAX_QUERY_CHARACTERS, Bm25Index, EmbeddedBackend
from envkit_search.document import Document
from envkit_search.fact_pages import fact_documents, fact_index
from envkit_search.opening import open_corpus
from envkit_search.questions import FactQuestions
from envkit_search.tantivy_backend import TantivyBackend, build_index, open_index
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


@pytest.fixture
def small(tmp_path: Path) -> TantivyBackend:
    return build_index(tmp_path / "index", DOCUMENTS, corpus="pages")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> TantivyBackend:
    return build_index(tmp_path_factory.mktemp("facts") / "index", fact_documents())


def test_index_gives_documents_back_as_they_were(tmp_path: Path) -> None:
    odd = [
        Document(id="b", title="A\n\ttitle \ud800", text="\x00 \u2028 café <|im_end|> " * 9),
        Document(id="a", title="", text="café"),
        Document(id="c", title="Empty", text=""),
    ]
    backend = build_index(tmp_path / "index", odd)
    assert {hit.document.id: hit.document for hit in backend.search_now(["cafe"], 9)[0]} == {
        document.id: document for document in odd[:2]
    }
    assert backend.search_now(["empty"], 9)[0][0].document == odd[2]


@pytest.mark.parametrize("query", ["", "  ", "the of and", "\x00\x01", "\ud800", "zzzz", '()":*~^'])
def test_query_without_a_known_word_finds_nothing(small: TantivyBackend, query: str) -> None:
    assert small.search_now([query], 3) == [[]]


def test_words_of_query_languages_are_words(small: TantivyBackend) -> None:
    for query in (
        "Tindel AND",
        "title:Tindel",
        "+Tindel -town",
        '"Tindel',
        "Tindel~2^9 OR (",
        "[a TO",
    ):
        small.search_now([query], 3)
    assert small.search_now(["Tindel -town"], 1)[0][0].document.title == "Tindel"
    assert small.search_now(["Tindel " * 100_000], 1)[0][0].document.title == "Tindel"


def test_exact_title_comes_first_and_once(small: TantivyBackend) -> None:
    (hits,) = small.search_now(["river vessa"], 20)
    assert hits[0].document.title == "River Vessa"
    assert hits[0].score > 1000 > hits[1].score
    assert len({hit.document.id for hit in hits}) == len(hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert small.search_now(["river vessa"], 2)[0] == hits[:2]


def test_ranking_is_that_of_the_index_in_memory(facts: TantivyBackend) -> None:
    source = FactQuestions(split="all")
    picked = random.Random(3).sample(range(source.size or 0), 300)
    queries = [source.task(index)["question"] for index in picked]
    shared = same = 0
    for query, found in zip(queries, facts.search_now(queries, 3), strict=True):
        expected = [hit.document.id for hit in fact_index().search(query, 3)]
        got = [hit.document.id for hit in found]
        shared += len({*expected} & {*got})
        same += expected[0] == got[0]
    assert shared / 900 > 0.9
    assert same / 300 > 0.9


def test_titles_of_the_facts_are_found_first(facts: TantivyBackend) -> None:
    titles = [page.title for page in random.Random(4).sample(fact_documents(), 300)]
    found = facts.search_now(titles, 1)
    assert [hits[0].document.title for hits in found] == titles


async def test_search_leaves_the_loop_free(facts: TantivyBackend) -> None:
    searching = asyncio.ensure_future(
        facts.search([page.title for page in fact_documents()[:3000]], topk=20)
    )
    wakes = 0
    while not searching.done():
        await asyncio.sleep(0.001)
        wakes += 1
    assert len(await searching) == 3000
    assert wakes > 10  # a search on the loop would leave one


def test_index_of_another_corpus_or_none_is_refused(tmp_path: Path, small: TantivyBackend) -> None:
    place = tmp_path / "index"
    assert open_index(place, corpus="pages").size == small.size == len(DOCUMENTS)
    with pytest.raises(StorageError, match="another corpus"):
        open_index(place, corpus="others")
    with pytest.raises(StorageError, match="it exists"):
        build_index(place, DOCUMENTS)
    with pytest.raises(StorageError, match="not a search index"):
        open_index(tmp_path)
    manifest = json.loads((place / "envkit.json").read_text())
    (place / "envkit.json").write_text(json.dumps({**manifest, "documents": 21}))
    with pytest.raises(StorageError, match="damaged"):
        open_index(place)
    (place / "envkit.json").write_text("[]")
    with pytest.raises(StorageError, match="not a search index"):
        open_index(place)


@pytest.mark.parametrize("error", [KeyboardInterrupt, DatasetError])
def test_interrupted_build_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def documents() -> Iterator[Document]:
        yield from DOCUMENTS
        raise error

    with pytest.raises(error):
        build_index(tmp_path / "index", documents())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DatasetError, match="at least one"):
        build_index(tmp_path / "index", [])
    assert list(tmp_path.iterdir()) == []


def test_interrupted_build_removes_a_lock_that_appears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree
    removals: list[Path] = []

    def racing(folder: Path, *, ignore_errors: bool = False) -> None:
        removals.append(folder)
        if len(removals) == 1:  # as tantivy's garbage collection does after the writer is closed
            (folder / ".tantivy-meta.lock").touch()
        else:
            remove(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", racing)
    with pytest.raises(DatasetError, match="at least one"):
        build_index(tmp_path / "index", [])
    assert len(removals) == 2
    assert list(tmp_path.iterdir()) == []


ENDLESS = """
import itertools, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from envkit_search.document import Document
from envkit_search.tantivy_backend import build_index
def documents():
    for number in itertools.count():
        if number == 5000:
            print("going", flush=True)
        yield Document(id=str(number), title=f"Page {number}", text="word " * 50)
build_index(sys.argv[1], documents())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_killed_build_leaves_no_index_that_looks_whole(tmp_path: Path, number: int) -> None:
    place = tmp_path / "index"
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=90)
    assert not place.exists()
    assert number == signal.SIGKILL or list(tmp_path.iterdir()) == []
    assert build_index(place, DOCUMENTS).size == len(DOCUMENTS)


def test_missing_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "tantivy":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    for attempt in (
        lambda: build_index(tmp_path / "index", DOCUMENTS),
        lambda: open_index(tmp_path / "index"),
        lambda: open_corpus("facts", index=tmp_path / "index"),
    ):
        with pytest.raises(MissingDependencyError, match=r"pip install 'envkit-rl\[search\]'"):
            attempt()


def test_index_that_loses_its_files_is_a_fault(tmp_path: Path) -> None:
    backend = build_index(tmp_path / "index", DOCUMENTS)
    assert backend.search_now(["Tindel"], 1)
    with pytest.raises(ConfigurationError):
        backend.search_now(["Tindel"], 0)
    shutil.rmtree(tmp_path / "index")
    assert backend.search_now(["Tindel"], 1)  # open files stay until they are closed
    backend._searcher = _Gone()
    with pytest.raises(EnvFault, match="failed: gone"):
        backend.search_now(["Tindel"], 1)


class _Gone:
    def search(self, *_: Any, **__: Any) -> Any:
        raise ValueError("gone")


@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_environment_plays_over_an_index_by_its_place(tmp_path: Path, protocol: str) -> None:
    build_index(tmp_path / "index", DOCUMENTS)

    def make() -> envkit.Env:
        place = f"tantivy:{tmp_path / 'index'}"
        return envkit.make("search-v0", backend=place, tasks=tasks(), protocol=protocol).unwrapped  # type: ignore[return-value]

    report = envkit.check_env(make(), factory=make)
    assert {"determinism", "snapshot", "replay", "oracle"} <= set(report.passed)


def test_shipped_world_is_indexed_with_its_shape(tmp_path: Path) -> None:
    options = {"seed": 5, "size": 60}
    open_corpus("world", options, index=tmp_path / "index")
    assert isinstance(open_corpus("world", options, index=tmp_path / "index"), TantivyBackend)
    with pytest.raises(StorageError, match="another corpus"):
        open_corpus("world", {**options, "seed": 6}, index=tmp_path / "index")
    with pytest.raises(ConfigurationError, match="already an index"):
        open_corpus(str(tmp_path / "index"), index=tmp_path / "other")
