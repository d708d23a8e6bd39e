"""Runs that grow while they are read: their index, their search, and what a folder holds."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fakes.marked_runs import grouped_run
from fakes.plain_search import find
from fakes.stored_runs import LONG_AGO, stored
from fakes.trajectories import Context, Reply, build, example

from envkit.errors import StorageError
from envkit.files import LineFile
from envkit.metrics import aggregate
from envkit.trajectory import load, save
from envkit.trajectory.storage import FILE_NAME, TrajectoryWriter
from envkit.viewer.figures import figures
from envkit.viewer.folder import Folder
from envkit.viewer.growing_file import is_locked
from envkit.viewer.live_run import LiveRun
from envkit.viewer.rows import COLUMNS
from envkit.viewer.search import SearchText, search_pieces


def opened(folder: Path) -> LiveRun:
    return LiveRun("run", folder, Folder(folder))


def read_all(run: LiveRun) -> None:
    run.refresh(60)
    assert not run.is_behind


def numbers(run: LiveRun) -> list[int]:
    at = COLUMNS.index("number")
    return [row[at] for row in run.index()["rows"]]


def test_run_is_read_as_the_file_holds_it(tmp_path: Path) -> None:
    save(grouped_run(), tmp_path / FILE_NAME)
    run = opened(tmp_path)
    read_all(run)
    index = run.index()
    assert numbers(run) == list(range(1, 13))
    assert dict(index["figures"]["metrics"]) == pytest.approx(
        aggregate(load(tmp_path)), nan_ok=True
    )
    assert run.episode(7) is not None
    assert (run.episode(7) or {})["id"] == "episode-1-2"
    assert run.episode(13) is None


def test_run_grows_with_its_writer(tmp_path: Path) -> None:
    run = opened(tmp_path)
    read_all(run)
    with TrajectoryWriter(tmp_path) as writer:
        run.refresh(60)
        assert (run.is_live, run.count) == (True, 0)
        for count in (1, 2, 3):
            writer.write(example(count))
            assert run.refresh(60)
            assert (run.is_live, run.count) == (True, count)
        assert not run.refresh(60)
    run.refresh(60)
    assert not run.is_live  # at once, however it ended
    assert run.index()["live"] is False


def test_run_of_a_writer_elsewhere_is_live_while_its_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlisted(found: os.stat_result, locked: frozenset[str] | None) -> bool:
        return False

    monkeypatch.setattr("envkit.viewer.live_run.is_locked", unlisted)
    run = opened(tmp_path)
    with TrajectoryWriter(tmp_path) as writer:
        writer.write(example(1))
        run.refresh(60)
        assert not run.is_live  # it may have ended just before
        writer.write(example(2))
        run.refresh(60)
        assert run.is_live
    os.utime(tmp_path / FILE_NAME, (LONG_AGO, LONG_AGO))
    run.refresh(60)
    assert not run.is_live


def test_run_says_that_it_is_read_although_its_last_line_used_up_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path, 1)
    run = opened(tmp_path)
    clock = iter((0.0, 0.0, 100.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock, 100.0))
    run.refresh(60)
    assert (run.count, run.is_behind) == (1, True)
    assert run.refresh(60)  # nothing new to read, but a different state
    assert not run.is_behind
    assert not run.refresh(60)


def test_run_gives_only_new_rows_of_the_same_file(tmp_path: Path) -> None:
    file = stored(tmp_path)
    run = opened(tmp_path)
    read_all(run)
    first = run.index()
    assert (first["from"], len(first["rows"])) == (0, 4)
    with TrajectoryWriter(tmp_path, mode="append") as writer:
        writer.write(example(9))
    read_all(run)
    more = run.index(since=4, epoch=first["epoch"])
    assert (more["from"], len(more["rows"]), more["figures"]["episodes"]) == (4, 1, 5)
    stored(tmp_path, 2)  # another file under the same name
    assert file.exists()
    read_all(run)
    anew = run.index(since=5, epoch=first["epoch"])
    assert (anew["from"], len(anew["rows"])) == (0, 2)
    assert anew["epoch"] != first["epoch"]


def test_run_rereads_a_file_overwritten_in_place(tmp_path: Path) -> None:
    stored(tmp_path, 2)
    run = opened(tmp_path)
    read_all(run)
    with TrajectoryWriter(tmp_path, mode="overwrite") as writer:
        for number in range(10, 15):  # the same inode, and longer than before
            writer.write(example(number))
    read_all(run)
    assert run.count == 5
    assert (run.episode(1) or {})["id"] == example(10).episode_id


def test_run_waits_for_the_end_of_a_cut_line(tmp_path: Path) -> None:
    file = stored(tmp_path, 3)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:300])
    os.utime(file, (LONG_AGO, LONG_AGO))
    run = opened(tmp_path)
    read_all(run)
    assert numbers(run) == [1]
    assert run.index()["notes"] == ["Line 2 is cut off: its writer was stopped."]
    with file.open("ab") as stream:
        stream.write(whole[len(lines[0]) + 300 :])
    os.utime(file, (LONG_AGO, LONG_AGO))
    read_all(run)
    assert numbers(run) == [1, 2, 3]
    assert run.index()["notes"] == []


def test_run_shows_a_whole_last_line_without_its_newline(tmp_path: Path) -> None:
    file = stored(tmp_path, 2)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    run = opened(tmp_path)
    read_all(run)
    assert numbers(run) == [1, 2]
    with TrajectoryWriter(tmp_path, mode="append") as writer:  # puts the newline back
        writer.write(example(7))
    read_all(run)
    assert numbers(run) == [1, 2, 3]
    assert (run.episode(3) or {})["id"] == example(7).episode_id


def test_run_names_damaged_lines_and_shows_the_others(tmp_path: Path) -> None:
    file = stored(tmp_path, 2)
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + b"garbage\n\n" + b'{"schema": 99}\n' + second)
    run = opened(tmp_path)
    read_all(run)
    assert numbers(run) == [1, 5]
    notes = run.index()["notes"]
    assert [note[:16] for note in notes] == [
        "Left out: line 2",
        "Left out: line 4",
    ]
    assert str(tmp_path) not in "".join(notes)
    assert (run.episode(5) or {})["number"] == 5
    assert run.episode(2) is None


def test_run_leaves_out_a_line_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(tmp_path, 2)
    first, second = file.read_bytes().splitlines(keepends=True)
    limit = 2 * max(len(first), len(second))
    monkeypatch.setattr("envkit.viewer.growing_file.MAX_LINE_BYTES", limit)
    file.write_bytes(first + b"x" * (3 * limit + 5) + b"\n" + second)
    run = opened(tmp_path)
    read_all(run)
    assert numbers(run) == [1, 3]
    assert "line 2 is longer" in run.index()["notes"][0]


def test_run_is_read_in_slices(tmp_path: Path) -> None:
    stored(tmp_path, 6)
    run = opened(tmp_path)
    run.refresh(0)
    assert run.is_behind
    steps = 0
    while run.is_behind:
        run.refresh(1e-9)
        steps += 1
        assert steps < 50
        run.refresh(60)
    assert run.count == 6


def test_run_marks_a_record_whose_certificate_does_not_hold(tmp_path: Path) -> None:
    file = stored(tmp_path, 2)
    lines = file.read_bytes().splitlines(keepends=True)
    row = json.loads(lines[1])
    row["reward"] = 123.0
    file.write_bytes(lines[0] + json.dumps(row).encode() + b"\n")
    run = opened(tmp_path)
    read_all(run)
    assert [("broken" in row.flags) for row in run.rows()] == [False, True]


def test_run_that_vanished_is_empty_and_comes_back(tmp_path: Path) -> None:
    file = stored(tmp_path, 2)
    run = opened(tmp_path)
    read_all(run)
    content = file.read_bytes()
    file.unlink()
    run.refresh(60)
    assert run.count == 0
    file.write_bytes(content)
    read_all(run)
    assert run.count == 2


def test_run_says_why_its_file_cannot_be_read(tmp_path: Path) -> None:
    file = stored(tmp_path / "run", 2)
    (tmp_path / "run" / "run.json").write_text("{}")
    moved = file.rename(tmp_path / "elsewhere.jsonl")
    file.symlink_to(moved)
    run = LiveRun("run", tmp_path / "run", Folder(tmp_path / "run"))
    run.refresh(60)
    (note,) = run.index()["notes"]
    assert "trajectories.jsonl is a link, and links are not followed" in note
    assert str(tmp_path) not in note


def test_run_counts_damaged_lines_beyond_those_it_names(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"garbage\n" * 53)
    run = opened(tmp_path)
    read_all(run)
    notes = run.index()["notes"]
    assert notes[0] == "Left out: 3 more lines, not listed below."
    assert len(notes) == 51


def test_lock_of_a_writer_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with LineFile(file) as held:
        if not Path("/proc/locks").exists():
            pytest.skip("the system does not list its locks")
        assert is_locked(file.stat())
        held.append(b"{}\n")
    assert not is_locked(file.stat())


@pytest.mark.parametrize("query", ["oslo", " ISTANBUL ", "zoom", "e", "solve it", "ß", "nothing"])
def test_search_of_all_episodes_finds_what_the_search_of_one_finds(query: str) -> None:
    texts = ["The ISTANBUL zoom", "Oslo. " * 30 + "zoom", "Straße \U0001f600 at the end: ZOOM", ""]
    rows = [build([Reply(text=text, observation=Context(), observation_text="Now see oslo"),
                   Reply(text="done")]) for text in texts]  # fmt: skip
    kept = SearchText()
    for number, row in enumerate(rows, start=1):
        kept.add(number, search_pieces(row))
    alone = {
        n: hit for n, row in enumerate(rows, start=1) if (hit := find(search_pieces(row), query))
    }
    assert kept.find(query) == alone


def test_search_never_finds_a_text_across_two_pieces_and_nothing_for_nothing() -> None:
    kept = SearchText()
    kept.add(1, [("task", "abc"), ("reply 1", "def")])
    assert kept.find("cd") == kept.find("  ") == kept.find("") == {}
    assert kept.find("c")[1]["where"] == "task"


def test_search_says_how_many_episodes_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.viewer.search.MAX_BYTES", 1)
    stored(tmp_path, 3)
    run = opened(tmp_path)
    read_all(run)
    assert run.index()["notes"] == [
        "Search covers only the first 1 episodes: the run is too large."
    ]
    assert run.count == 3


def test_folder_finds_runs_and_no_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "shown", tmp_path / "elsewhere"
    stored(inside / "a")
    stored(inside / "deep" / "b")
    stored(outside / "secret")
    (inside / "planned").mkdir()
    (inside / "planned" / "run.json").write_text("{}")
    stored(inside / ".hidden")
    (inside / "link").symlink_to(outside / "secret", target_is_directory=True)
    (inside / "fake").mkdir()
    (inside / "fake" / FILE_NAME).symlink_to(outside / "secret" / FILE_NAME)
    found = Folder(inside).find()
    assert sorted(found.runs) == ["a", "deep/b", "planned"]
    assert found.note == "Skipped 1 linked folder. Pass the target folder to envkit ui instead."


def test_folder_that_is_a_run_is_named_after_itself(tmp_path: Path) -> None:
    stored(tmp_path / "mine")
    assert list(Folder(tmp_path / "mine").find().runs) == ["mine"]


def test_folder_opens_nothing_outside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "shown", tmp_path / "secret"
    inside.mkdir()
    outside.mkdir()
    (outside / "key").write_text("key")
    (inside / "link").symlink_to(outside / "key")
    (inside / "door").symlink_to(outside, target_is_directory=True)
    os.mkfifo(inside / "pipe")
    folder = Folder(inside)
    for path in ("link", "door/key", "../secret/key", "pipe", "missing"):
        with pytest.raises(StorageError):
            folder.open(inside / path)


def test_folder_refuses_an_image_that_is_a_link(tmp_path: Path) -> None:
    inside = tmp_path / "shown"
    save(grouped_run(groups=1), inside / FILE_NAME)
    (image, *_) = (inside / "images").iterdir()
    moved = image.rename(tmp_path / "outside.png")
    image.symlink_to(moved)
    folder = Folder(inside)
    with pytest.raises(StorageError):
        folder.read_image(inside, image.stem)
    with pytest.raises(StorageError):
        folder.images(inside).file(image.stem)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_folder_must_exist(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=name):
        Folder(tmp_path / name)


def test_figures_are_made_a_few_times_while_a_run_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "a", 60)
    counted: list[int] = []

    def figures_of(rows: Any, *rest: Any) -> dict[str, Any]:
        counted.append(len(rows))
        return figures(rows, *rest)

    monkeypatch.setattr("envkit.viewer.run.figures", figures_of)
    clock = iter(range(10**9))
    monkeypatch.setattr("envkit.viewer.growing_file.time.monotonic", lambda: next(clock) / 1e9)
    run = LiveRun("a", tmp_path / "a", Folder(tmp_path))
    shares: list[str] = []
    while run.is_behind:
        run.refresh(1.5e-9)  # one line
        assert run.index()["from"] == 0
        assert len(run.index()["rows"]) == run.count
        shares += run.index()["notes"]
    assert counted[-1] == 60
    assert len(counted) < 20
    assert run.lag == 1
    assert shares[0] == "Still reading, 1% so far: these are the first 1 episodes."
    assert run.index()["notes"] == []
