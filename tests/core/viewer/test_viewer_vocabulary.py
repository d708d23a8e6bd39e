"""`vocabulary.json`: written within its bounds, read as foreign, and shown instead of ids."""

import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.budget import examples
from fakes.trajectories import example
from fakes.viewer_page import Page
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import StorageError
from envkit.rollout import vocabulary_file
from envkit.rollout.vocabulary_file import (
    MAX_BYTES,
    MAX_CHARACTERS,
    VOCABULARY_FILE,
    StoredTexts,
    VocabularyWriter,
    merge_vocabularies,
    read_texts,
)
from envkit.trajectory import save
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer import write_diff, write_report
from envkit.viewer.episodes import used_ids
from envkit.viewer.folder import Folder
from envkit.viewer.library import Library
from envkit.viewer.live_run import LiveRun

IDS = st.integers(0, 2**62)
TEXTS = st.text(st.characters(), max_size=8)
"""Lone surrogates too, which a tokenizer's decoder may return."""
NAMES = st.sampled_from(("schema", "texts", "left_out", "1"))
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
)
BUILTIN = {"name": None, "model": None, "base_url": None, "policy": "oracle", "chat": None}


def read(path: Path) -> StoredTexts:
    with path.open("rb") as stream:
        return read_texts(stream)


def write(path: Path, texts: Mapping[int, str], *, is_new: bool = True) -> None:
    writer = VocabularyWriter(path, is_new=is_new)
    writer.token_text = texts.__getitem__
    writer.add(texts)
    writer.write()


def store(run: Path, text: Callable[[int], str] = "<{}>".format) -> None:
    """Write a run of one episode with the texts of its ids."""
    save(example(), run / FILE_NAME)
    write(run / VOCABULARY_FILE, {one: text(one) for one in used_ids(example())})


def settings_file(run: Path, engine: Mapping[str, Any]) -> None:
    (run / "run.json").write_text(json.dumps({"settings": {"engine": engine}}))


def live(root: Path, name: str) -> LiveRun:
    run = LiveRun(name, root / name, Folder(root))
    run.refresh(10.0)
    return run


def shown(run: Path) -> dict[str, Any]:
    """Return what the server says of a run's tokens, which the single file says too."""
    served = live(run.parent, run.name).episode(1)
    assert served is not None
    found = {name: served[name] for name in ("vocabulary", "vocabulary_note")}
    block = Page(write_report(run, run / "report.html")).unpack("vocabulary-0")
    assert block["vocabulary"] == json.loads(json.dumps(found["vocabulary"]))
    assert block["vocabulary_note"][:24] == found["vocabulary_note"][:24]  # systems' words differ
    return found


@given(st.lists(st.dictionaries(IDS, TEXTS, max_size=12), max_size=4), st.integers(1, 20))
@settings(max_examples=examples(200))
def test_written_texts_are_read_back_and_counted(
    tmp_path_factory: pytest.TempPathFactory, commands: list[dict[int, str]], most: int
) -> None:
    path = tmp_path_factory.mktemp("run") / VOCABULARY_FILE
    known: dict[int, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary_file, "MAX_IDS", most)
        for number, new in enumerate(commands):
            known = {**new, **known}
            writer = VocabularyWriter(path, is_new=not number)
            writer.token_text = known.__getitem__
            for one in new:
                writer.add([one])
            writer.write()
        if not known:
            assert not path.exists()
            return
        found = read(path)
    assert len(found.texts) == min(most, len(known))
    assert found.left_out >= (len(known) > most)
    for token_id, text in found.texts.items():
        assert text == known[token_id].encode("utf-8", "replace").decode()


@given(st.binary(max_size=60) | st.text().map(str.encode) | DATA.map(json.dumps).map(str.encode))
@settings(max_examples=examples(300))
def test_reader_of_any_bytes_returns_texts_or_a_storage_error(data: bytes) -> None:
    try:
        found = read_texts(io.BytesIO(data))
    except StorageError:
        return
    assert all(type(one) is int and type(text) is str for one, text in found.texts.items())
    assert found.left_out >= 0


def test_file_stays_within_its_bytes_and_says_how_many_texts_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / VOCABULARY_FILE
    write(path, dict.fromkeys(range(6_000), "\U0001f600" * 400))
    found = read(path)
    assert MAX_BYTES - 2_000 < path.stat().st_size <= MAX_BYTES
    assert found.left_out == 6_000 - len(found.texts) > 0
    assert set(map(len, found.texts.values())) == {MAX_CHARACTERS}
    assert found.texts[0].endswith("…")


def test_file_is_written_as_ids_grow_and_not_for_ids_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    replace_file = vocabulary_file.replace_file

    def counted(path: Path, content: bytes) -> None:
        writes.append(len(content))
        replace_file(path, content)

    monkeypatch.setattr(vocabulary_file, "replace_file", counted)
    writer = VocabularyWriter(tmp_path / VOCABULARY_FILE, is_new=True)
    writer.token_text = str
    for one in range(3_000):
        writer.add([one, one // 2])
    assert len(writes) < 25
    assert len(read(tmp_path / VOCABULARY_FILE).texts) > 1_900
    for _ in range(3):
        writer.write()
    assert len(writes) < 26
    assert len(read(tmp_path / VOCABULARY_FILE).texts) == 3_000


def test_resumed_run_keeps_ids_but_takes_texts_from_its_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / VOCABULARY_FILE
    write(path, {1: "forged", 2: "two"})
    write(path, {1: "one", 2: "two", 3: "three"}, is_new=False)
    assert read(path).texts == {1: "one", 2: "two", 3: "three"}


def test_tokenizer_that_fails_costs_only_the_text(tmp_path: Path) -> None:
    def text(token_id: int) -> str:
        if token_id < 0:
            raise OverflowError("no token")
        return "fine"

    writer = VocabularyWriter(tmp_path / VOCABULARY_FILE, is_new=True)
    writer.token_text = text
    writer.add([-1, 2])
    writer.write()
    assert read(tmp_path / VOCABULARY_FILE).texts == {-1: "", 2: "fine"}


def test_run_whose_folder_cannot_be_written_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "gone" / VOCABULARY_FILE, {1: "one"})
    assert not (tmp_path / "gone").exists()


def test_command_without_an_episode_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / VOCABULARY_FILE
    write(path, {2: "two", 1: "one"})
    before = path.read_bytes()
    writer = VocabularyWriter(path, is_new=False)
    writer.token_text = str
    writer.write()
    assert path.read_bytes() == before


def test_run_without_a_tokenizer_has_no_file(tmp_path: Path) -> None:
    writer = VocabularyWriter(tmp_path / VOCABULARY_FILE, is_new=True)
    writer.add([1, 2])
    writer.write()
    assert list(tmp_path.iterdir()) == []


def test_pages_show_the_stored_texts(tmp_path: Path) -> None:
    store(tmp_path / "run")
    found = shown(tmp_path / "run")
    assert found["vocabulary"] == {one: f"<{one}>" for one in used_ids(example())}
    assert found["vocabulary_note"] == ""


def test_model_of_the_command_wins_over_the_stored_texts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    store(run)
    page = Page(write_report(run, run / "report.html", token_text="[{}]".format))
    assert page.unpack("vocabulary-0")["vocabulary"]["101"] == "[101]"
    served = live(tmp_path, "run").episode(1, "[{}]".format)
    assert served is not None
    assert served["vocabulary"][101] == "[101]"


def test_file_of_trajectories_without_a_run_keeps_its_ids(tmp_path: Path) -> None:
    save(example(), tmp_path / "other.jsonl")
    write(tmp_path / VOCABULARY_FILE, {101: "not of this file"})
    page = Page(write_report(tmp_path / "other.jsonl", tmp_path / "report.html"))
    assert page.unpack("vocabulary-0") == {"vocabulary": None, "vocabulary_note": ""}


def test_comparison_shows_each_run_by_its_own_texts(tmp_path: Path) -> None:
    store(tmp_path / "a", "a{}".format)
    store(tmp_path / "b", "b{}".format)
    page = Page(write_diff(tmp_path / "a", tmp_path / "b", tmp_path / "diff.html"))
    texts = [page.unpack(f"vocabulary-{n}")["vocabulary"]["101"] for n in range(2)]
    assert texts == ["a101", "b101"]


def damaged(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
    elif damage == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    elif damage == "deep":
        path.write_bytes(b'{"texts":' + b"[" * 200_000)
    else:
        changed = {
            "cut": data[:-4],
            "empty": b"",
            "huge": data + b" " * MAX_BYTES,
            "type": b'{"texts":{"101":["x"]}}',
            "schema": data.replace(b'"schema":1', b'"schema":2'),
            "count": data.replace(b'"left_out":0', b'"left_out":-1'),
            "many": json.dumps({"texts": dict.fromkeys(range(65_537), "")}).encode(),
            "bytes": data.replace(b"<101>", b"\xff\xfe"),
            "surrogate": data.replace(b"<101>", b"\\ud800"),
        }
        path.write_bytes(changed[damage])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes and links")
@pytest.mark.parametrize(
    "damage",
    ["link", "pipe", "folder", "deep", "cut", "empty", "huge", "type", "schema", "count", "many",
     "bytes", "surrogate"],
)  # fmt: skip
def test_damaged_file_costs_the_texts_and_says_so(tmp_path: Path, damage: str) -> None:
    store(tmp_path / "run")
    damaged(tmp_path / "run" / VOCABULARY_FILE, damage)
    found = shown(tmp_path / "run")
    assert found["vocabulary"] is None
    assert found["vocabulary_note"].startswith("Tokens are shown as ids: ")
    assert VOCABULARY_FILE in found["vocabulary_note"]
    assert str(tmp_path) not in found["vocabulary_note"]


def test_page_says_how_many_texts_a_run_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_file, "MAX_IDS", 3)
    store(tmp_path / "run")
    found = shown(tmp_path / "run")
    assert len(found["vocabulary"]) == 3
    count = len(used_ids(example())) - 3
    assert found["vocabulary_note"].startswith(f"{count} tokens of this run have no stored text")


@pytest.mark.parametrize("engine", [BUILTIN, {**BUILTIN, "model": "builtin-half"}])
def test_run_of_the_built_in_model_needs_no_file(tmp_path: Path, engine: dict[str, Any]) -> None:
    run = tmp_path / "run"
    save(example(), run / FILE_NAME)
    settings_file(run, engine)
    assert shown(run)["vocabulary"][13] == "."


@pytest.mark.parametrize(
    "engine",
    [
        {**BUILTIN, "model": "some/model"},
        {**BUILTIN, "model": "builtin-nothing"},
        {**BUILTIN, "model": "builtin/../../x"},
        {**BUILTIN, "model": ["builtin"]},
        {**BUILTIN, "base_url": "http://127.0.0.1:1"},
        {**BUILTIN, "model": "builtin", "chat": "http://127.0.0.1:1"},
        {**BUILTIN, "model": "builtin", "base_url": "http://127.0.0.1:1"},
        {"name": None},
        "builtin",
        None,
    ],
)
def test_run_of_another_model_without_the_file_keeps_its_ids(tmp_path: Path, engine: Any) -> None:
    run = tmp_path / "run"
    save(example(), run / FILE_NAME)
    settings_file(run, engine)
    assert shown(run) == {"vocabulary": None, "vocabulary_note": ""}


def test_built_in_tokenizer_is_not_loaded_before_an_episode_is_opened() -> None:
    from envkit.viewer import token_texts

    token_texts._text_of_model.cache_clear()
    live(Path(__file__).parent, "none")
    assert token_texts._text_of_model.cache_info().currsize == 0


def test_vocabulary_is_not_listed_as_a_document(tmp_path: Path) -> None:
    store(tmp_path / "run")
    (tmp_path / "run" / "other.json").write_text("{}")
    found = Folder(tmp_path).find()
    assert list(found.documents) == ["run/other.json"]
    assert Library(Folder(tmp_path)).overview()["documents"] == []


def test_merged_vocabulary_holds_what_its_parts_hold(tmp_path: Path) -> None:
    parts = [tmp_path / f"{n}.json" for n in range(4)]
    write(parts[0], {1: "one", 2: "two"})
    write(parts[1], {2: "other", 3: "three"})
    parts[2].write_bytes(b"{")
    target = tmp_path / VOCABULARY_FILE
    merge_vocabularies(parts, target)
    assert read(target).texts == {1: "one", 2: "two", 3: "three"}
    merge_vocabularies(parts[2:], tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_ids_of_an_episode_are_all_of_its_train_ids() -> None:
    trajectory = replace(example(2), episode_id="x")
    assert used_ids(trajectory) == {i for s in trajectory.segments for i in s.train_ids}
