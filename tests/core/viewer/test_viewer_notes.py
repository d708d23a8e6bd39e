"""Notes and tags of runs: the file, changes by several people, and who may write."""

import json
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from fakes.budget import examples
from fakes.stored_runs import stored
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, StorageError
from envkit.viewer.folder import NOTES_FILE, Folder
from envkit.viewer.library import Library
from envkit.viewer.run_notes import (
    MAX_BYTES,
    MAX_NOTE,
    MAX_TAG,
    MAX_TAGS,
    ConflictError,
    RunNotes,
    change_notes,
)
from envkit.viewer.server import create_app

KEY = "a-key-for-these-tests"
EMPTY = RunNotes()
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x00\ud800"


def noted(note: str = "", *tags: str) -> RunNotes:
    return RunNotes(note=note, tags=tags)


texts = st.text(max_size=60)
tags = st.lists(st.text(min_size=1, max_size=MAX_TAG), max_size=5)
notes = st.fixed_dictionaries({"note": texts, "tags": tags}).map(RunNotes.checked)


@settings(max_examples=examples(200))
@given(notes)
def test_notes_survive_their_file(one: RunNotes) -> None:
    text = json.dumps({"schema": 1, **one.to_json()}).encode()
    assert RunNotes.parse(text) == one


@settings(max_examples=examples(400))
@given(notes, notes, notes)
def test_change_keeps_what_somebody_else_changed(
    before: RunNotes, mine: RunNotes, theirs: RunNotes
) -> None:
    if len({before.note, mine.note, theirs.note}) == 3:
        with pytest.raises(ConflictError) as caught:
            theirs.merged(before, mine)
        assert caught.value.notes is theirs
        return
    both = theirs.merged(before, mine)
    assert set(theirs.tags) - set(before.tags) <= set(both.tags)
    assert set(mine.tags) - set(before.tags) <= set(both.tags)
    gone = set(before.tags) - set(theirs.tags) - set(mine.tags)
    assert not gone & set(both.tags)
    assert both.note in {mine.note, theirs.note}
    if mine.note == before.note:
        assert both.note == theirs.note


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"note": "a"},
        {"note": 1, "tags": []},
        {"note": "a" * (MAX_NOTE + 1), "tags": []},
        {"note": "", "tags": "ab"},
        {"note": "", "tags": [1]},
        {"note": "", "tags": [["a"]]},
        {"note": "", "tags": [""]},
        {"note": "", "tags": ["a" * (MAX_TAG + 1)]},
        {"note": "", "tags": [str(n) for n in range(MAX_TAGS + 1)]},
    ],
    ids=str,
)
def test_notes_of_another_shape_are_refused(data: object) -> None:
    with pytest.raises(ConfigurationError, match="got "):
        RunNotes.checked(data)


def test_tags_have_single_spaces_and_an_order() -> None:
    one = RunNotes.checked({"note": "", "tags": [" b  c ", "a", "a", " "]})
    assert one.tags == ("a", "b c")


def test_changes_are_written_at_once_and_merged(tmp_path: Path) -> None:
    file = tmp_path / NOTES_FILE
    first = change_notes(file, EMPTY, noted("better", "a"))
    assert first == noted("better", "a")
    assert change_notes(file, EMPTY, noted("", "b")) == noted("better", "a", "b")
    with pytest.raises(ConflictError) as caught:
        change_notes(file, EMPTY, noted("worse"))
    assert caught.value.notes == noted("better", "a", "b")
    assert change_notes(file, noted("better", "b"), noted("worse")) == noted("worse", "a")
    assert RunNotes.parse(file.read_bytes()) == noted("worse", "a")
    assert os.listdir(tmp_path) == [NOTES_FILE]


def test_change_to_the_largest_notes_fits_the_file(tmp_path: Path) -> None:
    tags = [f"{n:02}" + "\U0001f600" * (MAX_TAG - 2) for n in range(MAX_TAGS)]
    most = RunNotes.checked({"note": "\U0001f600" * MAX_NOTE, "tags": tags})
    file = tmp_path / NOTES_FILE
    change_notes(file, EMPTY, most)
    assert file.stat().st_size < MAX_BYTES
    assert change_notes(file, most, noted("short")) == noted("short")


def test_threads_that_add_tags_at_once_lose_none(tmp_path: Path) -> None:
    file = tmp_path / NOTES_FILE
    start = threading.Barrier(4)

    def add(worker: int) -> None:
        start.wait()
        for number in range(5):
            change_notes(file, EMPTY, noted("", f"{worker}-{number}"))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = RunNotes.parse(file.read_bytes())
    assert set(found.tags) == {f"{w}-{n}" for w in range(4) for n in range(5)}


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"note": "mine", "tags": []}', b"\xff" * 9])
def test_file_of_another_program_stays_as_it_is(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / NOTES_FILE
    file.write_bytes(text)
    with pytest.raises(StorageError, match="rename it"):
        change_notes(file, EMPTY, noted("a"))
    assert file.read_bytes() == text


def test_link_and_pipe_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / NOTES_FILE).symlink_to(tmp_path / "target")
    with pytest.raises(StorageError):
        change_notes(tmp_path / NOTES_FILE, EMPTY, noted("a"))
    assert (tmp_path / "target").read_bytes() == b""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        change_notes(tmp_path / "pipe", EMPTY, noted("a"))


@asynccontextmanager
async def running(
    root: Path, *, takes_notes: bool = True, is_in: bool = True
) -> AsyncGenerator[aiohttp.ClientSession]:
    """Serve a folder that has the run "run"; give a client that has the key if it is in."""
    stored(root / "run")
    library = Library(Folder(root), takes_notes=takes_notes)
    library.step()
    server = TestServer(create_app(library, key=KEY))
    jar = aiohttp.CookieJar(unsafe=True)
    async with server, aiohttp.ClientSession(server.make_url("/"), cookie_jar=jar) as session:
        if is_in:
            async with session.get("/", params={"key": KEY}) as entered:
                assert entered.status == 200
        yield session


async def put(
    session: aiohttp.ClientSession,
    before: RunNotes | Any,
    after: RunNotes | Any,
    *,
    headers: Mapping[str, str | None] | None = None,
    name: str = "run",
) -> tuple[int, Any]:
    plain = [one.to_json() if isinstance(one, RunNotes) else one for one in (before, after)]
    url = str(session._build_url("/")).rstrip("/")
    usual = {"Origin": url, "Content-Type": "application/json", **(headers or {})}
    sent = {key: value for key, value in usual.items() if value is not None}
    body = json.dumps(dict(zip(("before", "after"), plain, strict=True))).encode()
    async with session.put("/api/notes", params={"name": name}, data=body, headers=sent) as got:
        is_json = got.content_type == "application/json"
        return got.status, await (got.json() if is_json else got.text())


async def test_server_writes_notes_where_it_may(tmp_path: Path) -> None:
    async with running(tmp_path) as session:
        status, made = await put(session, EMPTY, noted(HOSTILE, "<b>"))
        assert (status, made) == (200, {"note": HOSTILE, "tags": ["<b>"]})
        async with session.get("/api/runs") as got:
            overview = json.loads(await got.text())
        (run,) = overview["runs"]
        assert overview["takes_notes"] is True
        assert (run["note"], run["tags"]) == (HOSTILE, ["<b>"])
        assert overview["documents"] == []
        status, current = await put(session, EMPTY, noted("mine"))
        assert (status, current["note"]) == (409, HOSTILE)
        assert await put(session, noted(HOSTILE), noted("mine")) == (
            200,
            {"note": "mine", "tags": ["<b>"]},
        )


async def test_server_writes_nothing_unless_it_may(tmp_path: Path) -> None:
    async with running(tmp_path, takes_notes=False) as session:
        status, _ = await put(session, EMPTY, noted("a"))
        assert status == 404
        async with session.get("/api/runs") as got:
            assert (await got.json())["takes_notes"] is False
    assert NOTES_FILE not in os.listdir(tmp_path / "run")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
    ids=str,
)
async def test_server_refuses_notes_that_a_foreign_page_could_send(
    tmp_path: Path, headers: Mapping[str, str | None], expected: int
) -> None:
    async with running(tmp_path) as session:
        status, _ = await put(session, EMPTY, noted("a"), headers=headers)
        assert status == expected
    assert NOTES_FILE not in os.listdir(tmp_path / "run")


async def test_server_refuses_notes_without_the_key(tmp_path: Path) -> None:
    async with running(tmp_path, is_in=False) as session:
        assert (await put(session, EMPTY, noted("a")))[0] == 401
    assert NOTES_FILE not in os.listdir(tmp_path / "run")


@pytest.mark.parametrize("after", [None, {"note": "a" * (MAX_NOTE + 1), "tags": []}, [[[]]]])
async def test_server_refuses_notes_of_another_shape(tmp_path: Path, after: object) -> None:
    async with running(tmp_path) as session:
        assert (await put(session, EMPTY, after))[0] == 400
        assert (await put(session, EMPTY, noted("a" * MAX_BYTES)))[0] == 413
        assert (await put(session, EMPTY, noted("a"), name="../run"))[0] == 404
    assert NOTES_FILE not in os.listdir(tmp_path / "run")


async def test_server_does_not_write_through_a_link(tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with running(root) as session:
        (root / "run").rename(tmp_path / "outside")
        (root / "run").symlink_to(tmp_path / "outside")
        status, text = await put(session, EMPTY, noted("a"))
        assert status == 507
        assert "outside the folder" in text
    assert NOTES_FILE not in os.listdir(tmp_path / "outside")


def test_library_reads_notes_that_another_process_wrote(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    library = Library(Folder(tmp_path))
    library.step()
    version = library.version
    change_notes(tmp_path / "run" / NOTES_FILE, EMPTY, noted("seen", "a"))
    library._next_scan = 0.0
    library.step()
    assert library.version > version
    (run,) = library.overview()["runs"]
    assert (run["note"], run["tags"]) == ("seen", ["a"])
    (tmp_path / "run" / NOTES_FILE).write_bytes(b"{")
    library._next_scan = 0.0
    library.step()
    (run,) = library.overview()["runs"]
    assert (run["note"], run["tags"]) == ("", [])
