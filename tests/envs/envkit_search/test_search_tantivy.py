"""An index on disk: ranked like the one in memory, whole or not there."""

import asyncio
import builtins
import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.search_backend import DOCUMENTS, tasks

import envkit
from envkit.errors import (
    ConfigurationError,
    DatasetError,
    EnvFault,
    MissingDependencyError,
    StorageError,
)
from envkit_search.document import Document
from envkit_search.fact_pages import fact_documents, fact_index
from envkit_search.opening import open_corpus
from envkit_search.questions import FactQuestions
from envkit_search.tantivy_backend import TantivyBackend, build_index, open_index


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
