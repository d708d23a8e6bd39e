"""Corpora that ship, your own, and search in every script."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.oracles import steps_of
from hypothesis import given
from hypothesis import strategies as st

import envkit
from envkit.errors import ConfigurationError, DatasetError, UnknownNameError
from envkit_search import SearchEnv
from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document, contents_of, split_contents
from envkit_search.opening import fingerprint, open_corpus, read_documents
from envkit_search.words import title_key, tokenise


def solve(env: SearchEnv, seed: int) -> tuple[float, bool]:
    """Play the oracle; return its reward, and whether its searches showed the answer."""
    last = steps_of(env, seed=seed)[-1]
    assert last.terminated
    return last.reward, last.info["verdict"]["has_gold"]


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["world", "facts"])
def test_search_oracle_finds_every_answer_by_searching(corpus: str) -> None:
    env = SearchEnv(corpus=corpus, reward="format", max_turns=16)
    outcomes = [solve(env, seed) for seed in range(200)]
    assert outcomes == [(1.0, True)] * 200


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["world", "facts"])
@pytest.mark.parametrize("protocol", ["tags", "tools"])
def test_search_passes_the_checker_over_its_corpora(corpus: str, protocol: str) -> None:
    report = envkit.check_env(envkit.make("search-v0", corpus=corpus, protocol=protocol))
    assert {"determinism", "snapshot", "replay", "oracle"} <= set(report.passed)


def test_search_makes_its_own_small_world() -> None:
    env = envkit.make("search-v0", corpus_options={"seed": 3, "size": 200}, hops=2)
    assert isinstance(env, SearchEnv)
    for seed in range(5):
        assert solve(env, seed)[0] == 1.0
        assert env.task["hops"] == 2
        assert env.task["world"]["size"] == 200


def test_search_answers_a_task_from_the_corpus_that_it_was_made_for() -> None:
    small = {"seed": 4, "size": 200}
    task = SearchEnv(corpus_options=small).tasks.task(0)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    env = SearchEnv(corpus_options={"seed": 5, "size": 200})
    env.reset(options={"task": task})
    step = env.step(f"<search>{task['gold_titles'][0]}</search>")
    assert step.info["titles"][0] == task["gold_titles"][0]


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_lines_of_both_kinds_are_documents(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"id": "a", "title": "Tindel", "text": "A town.", "more": 1},
        {"id": 7, "contents": '"River Vessa"\nIt passes Tindel.'},
        {"id": "c", "text": "No title."},
    )
    path.write_text(path.read_text() + "\n  \n")

    assert list(read_documents(path)) == [
        Document(id="a", title="Tindel", text="A town."),
        Document(id="7", title="River Vessa", text="It passes Tindel."),
        Document(id="c", title="", text="No title."),
    ]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "7", '{"id": 1}', '{"text": "a"}', '{"id": true, "text": "a"}',
     '{"id": 1, "text": 2}', '{"id": 1, "text": "a", "title": 3}', "[" * 100_000],
)  # fmt: skip
def test_line_that_is_not_a_document_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 0, "text": "good"}\n' + line + "\n")

    with pytest.raises(DatasetError, match="line 2 of"):
        list(read_documents(path))


def test_progress_ends_with_the_number_of_documents(tmp_path: Path) -> None:
    path = write(tmp_path, *({"id": n, "text": "word " * (n % 9)} for n in range(2500)))
    told: list[tuple[int, int]] = []

    assert len(list(read_documents(path, lambda done, total: told.append((done, total))))) == 2500
    assert [done for done, _ in told] == [1000, 2000, 2500]
    assert told[-1] == (2500, 2500)
    assert all(2400 < total < 2700 for _, total in told)


def test_fingerprint_distinguishes_corpora(tmp_path: Path) -> None:
    first = fingerprint(write(tmp_path, {"id": 1, "text": "a"}))
    assert fingerprint(write(tmp_path, {"id": 1, "text": "b"})) != first
    assert fingerprint(write(tmp_path, {"id": 1, "text": "a"})) == first
    with pytest.raises(DatasetError):
        fingerprint(tmp_path / "none.jsonl")


@given(st.text(max_size=60), st.text(max_size=200))
def test_contents_keep_a_title_on_its_line(title: str, text: str) -> None:
    document = Document(id="1", title=title, text=text)

    assert split_contents(contents_of(document)) == (" ".join(title.split()), text)


async def test_corpus_is_opened_by_name_or_place(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": 1, "title": "Tindel", "text": "A town."})
    ((hit,),) = await open_corpus(str(path)).search(["Tindel town"], topk=3)
    assert hit.document.title == "Tindel"
    ((hit, *_),) = await open_corpus("facts").search(["Oslo"], topk=3)
    assert hit.document.title.startswith("Oslo")


def test_unknown_corpus_and_useless_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'facts'"):
        open_corpus("fact")
    with pytest.raises(ConfigurationError, match="options"):
        open_corpus("facts", {"seed": 1})
    with pytest.raises(ConfigurationError, match="options"):
        open_corpus(str(write(tmp_path, {"id": 1, "text": "a"})), {"seed": 1})


ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("search_scripts.jsonl").read_text("utf-8").splitlines()
]

PAGES = [
    Document(id=f"{number:02d}", title=row["title"], text=row["text"])
    for number, row in enumerate(ROWS)
]

SCRIPTS = sorted({row["script"] for row in ROWS})

Search = Callable[[str, int], list[str]]

"""Returns the titles found for a query."""


@pytest.fixture(scope="module", params=["memory", "disk"])
def search(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Search:
    if request.param == "memory":
        index = Bm25Index.build(PAGES)
        return lambda query, topk: [hit.document.title for hit in index.search(query, topk)]
    pytest.importorskip("tantivy")
    from envkit_search.tantivy_backend import build_index

    disk = build_index(tmp_path_factory.mktemp("scripts") / "index", PAGES)
    return lambda query, topk: [hit.document.title for hit in disk.search_now([query], topk)[0]]


@pytest.mark.parametrize("script", SCRIPTS)
def test_question_finds_its_page(search: Search, script: str) -> None:
    rows = [row for row in ROWS if row["script"] == script]
    assert len(rows) >= 6
    for row in rows:
        assert search(row["question"], 1) == [row["title"]], row["question"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_title_is_found_exactly_and_inside_a_sentence(search: Search, script: str) -> None:
    for row in ROWS:
        if row["script"] == script:
            assert search(row["title"], 1) == [row["title"]]
            assert row["title"] in search(f"{row['title']}?  « {row['title']}。", 3)


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("北京的人口是多少", "北京"),
        ("首都北京市", "北京"),
        ("茶", "茶"),
        ("東京の人口", "東京"),
        ("かれーらいす カレー", "カレーライス"),
        ("ｶﾚｰﾗｲｽ", "カレーライス"),
        ("か\u3099んの治療", "がん"),
        ("กรุงเทพ", "กรุงเทพมหานคร"),
        ("ประชากรกรุงเทพมหานคร", "กรุงเทพมหานคร"),
        ("서울은 인구가 몇 명입니까", "서울"),
        ("서울에서", "서울"),
        ("\u1109\u1165\u110b\u116e\u11af", "서울"),
        ("दिल्ली की आबादी", "दिल्ली"),
        ("नदी गंगा", "गंगा"),
        ("بالقاهرة", "القاهرة"),
        ("اَلقَاهِرَة", "القاهرة"),
        ("القـــاهرة", "القاهرة"),
        ("Население Москвы", "Москва"),
        ("елка", "Ёлка"),
        ("στην Αθήνας", "Αθήνα"),
        ("ΟΛΥΜΠΟΣ", "Όλυμπος"),
    ],
)
def test_other_forms_of_a_name_find_its_page(search: Search, query: str, title: str) -> None:
    assert search(query, 1) == [title]


def test_words_of_no_page_find_nothing(search: Search) -> None:
    for query in ("龍", "ဪ", "ഊഷ്മളം", "ẞ", "😀", "、。「」", "\u0301", "।"):
        assert search(query, 3) == []


@pytest.mark.parametrize(
    ("text", "terms", "key"),
    [
        ("北京、上海", "北 京 北京 上 海 上海", "北京 上海"),
        ("PM2.5浓度", "pm2 5 浓 度 浓度", "pm2 5 浓度"),
        ("ﾃﾞｰﾀの１２", "デ ー タ の デー ータ タの 12", "データの 12"),
        ("한국은", "한 국 은 한국 국은", "한국은"),
        ("น้ำ", "น้\u0e4d า น้\u0e4dา", "น้\u0e4dา"),
        ("ភ្នំ", "ភ្ នំ ភ្នំ", "ភ្នំ"),
        ("क्या २५", "क्या क्य ्या 25", "क्या 25"),
        ("שָׁלוֹם", "שלום שלו לום", "שלום"),
        ("مُحَمَّد", "محمد محم حمد", "محمد"),
        ("می\u200cرود", "میرود میر یرو رود", "میرود"),
        ("Straße of Łódź", "strasse łodz", "strasse łodz"),
    ],
)
def test_tokenise_follows_the_script(text: str, terms: str, key: str) -> None:
    assert sorted(tokenise(text)) == sorted(unicodedata.normalize("NFC", terms).split())
    assert title_key(text) == unicodedata.normalize("NFC", key)
