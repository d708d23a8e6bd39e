"""Search in every script: questions and pages of eight, the same for both indexes."""

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit_search.bm25 import Bm25Index
from envkit_search.document import Document
from envkit_search.words import title_key, tokenise

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
