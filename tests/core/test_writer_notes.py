"""A file system without locks still has one writer per file."""

import errno
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from envkit.errors import BusyError, StorageError
from envkit.files import LineFile
from envkit.writer_notes import WriterNote

LINE = b'{"n": 1}\n'


@pytest.fixture(autouse=True, params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def _no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", refuse)


def notes(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "writer" in path.name)


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def write_note(path: Path, number: int, **changes: Any) -> Path:
    """Write the note of a process that ended, unless the changes say otherwise."""
    with WriterNote(path):
        (found,) = path.parent.glob(f".{path.name}.writer-*")
        written = json.loads(found.read_text())
    note = path.with_name(f".{path.name}.writer-{number}")
    note.write_text(json.dumps({**written, "pid": dead_process(), **changes}))
    return note


def test_a_second_writer_is_refused_until_the_first_one_closes(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with LineFile(path) as first:
        with pytest.raises(BusyError, match=rf"process {os.getpid()} on .*\.run\.jsonl\.writer-1"):
            LineFile(path)
        first.append(LINE)
        first.keep_lines({1})
        with pytest.raises(BusyError):
            LineFile(path)
    assert notes(tmp_path) == []
    with LineFile(path) as second:
        second.append(LINE)
    assert path.read_bytes() == LINE + LINE


def test_the_note_of_a_process_that_ended_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_note(path, 1)
    with LineFile(path):
        assert notes(tmp_path) == [".run.jsonl.writer-1", ".run.jsonl.writer-2"]
        with pytest.raises(BusyError, match="writer-2"):
            LineFile(path)
    assert notes(tmp_path) == [".run.jsonl.writer-1"]


@pytest.mark.parametrize(
    "changes",
    [{"host": ["another", "", ""]}, {"host": None}, {"pid": "x"}, {"pid": os.getpid()}],
    ids=["another_machine", "no_machine", "no_process", "alive"],
)
def test_the_note_of_a_process_that_may_still_run_refuses(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "run.jsonl"
    note = write_note(path, 1, **changes)
    with pytest.raises(BusyError, match=r"has ended, remove .*\.run\.jsonl\.writer-1"):
        LineFile(path)
    note.unlink()
    LineFile(path).close()


def test_the_note_of_an_earlier_process_with_the_same_id_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_note(path, 1, pid=os.getpid(), started="1")
    with LineFile(path) as file:
        file.append(LINE)


def test_a_cut_note_refuses(tmp_path: Path) -> None:
    (tmp_path / ".run.jsonl.writer-1").write_text('{"host"')
    with pytest.raises(BusyError, match="an unknown process"):
        LineFile(tmp_path / "run.jsonl")


def test_one_of_many_writers_follows_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write_note(path, 1)
    start = threading.Barrier(8)

    def attempt(_: int) -> LineFile | None:
        start.wait()
        try:
            return LineFile(path)
        except BusyError:
            return None

    with ThreadPoolExecutor(8) as pool:
        opened = [file for file in pool.map(attempt, range(8)) if file is not None]
    assert len(opened) == 1
    opened[0].close()


def test_a_note_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("json.dump", full)
    with pytest.raises(StorageError, match="for writing: No space left"):
        LineFile(tmp_path / "run.jsonl")
    assert notes(tmp_path) == []
