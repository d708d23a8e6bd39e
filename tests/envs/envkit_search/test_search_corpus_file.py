"""Your own corpus: what lines it may have, and what opens it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, DatasetError, UnknownNameError
from envkit_search.document import Document, contents_of, split_contents
from envkit_search.opening import fingerprint, open_corpus, read_documents


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
