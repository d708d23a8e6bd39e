"""Files of lines: whole or not at all, one writer at a time."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from fakes.processes import run_python

from envkit.errors import ConfigurationError, StorageError
from envkit.files import LineFile, cache_dir, remove_leftovers, replace_file

FIRST = json.dumps({"n": 1}).encode() + b"\n"
LAST = json.dumps({"n": 2, "text": "é\u2028𝄞", "list": [1, [2.5, None]]}, ensure_ascii=False)
LINE = LAST.encode() + b"\n"


def _repaired(path: Path, content: bytes) -> tuple[bytes, int]:
    path.write_bytes(content)
    with LineFile(path) as file:
        cut = file.repair()
        file.append(FIRST)
    return path.read_bytes(), cut


def _zeroed_from(kept: int) -> bytes:
    return LINE[:kept] + b"\0" * (len(LINE) - kept)


def _zeroed_to(kept: int) -> bytes:
    return b"\0" * kept + LINE[kept:]


def test_repair_cuts_the_last_line_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for kept in range(1, len(LINE) - 1):
        assert _repaired(path, FIRST + LINE[:kept]) == (FIRST + FIRST, kept), kept
        # A power cut may leave a length without the data: zeros at the end, or at the start.
        assert _repaired(path, FIRST + _zeroed_from(kept)) == (FIRST + FIRST, len(LINE)), kept
        assert _repaired(path, FIRST + _zeroed_to(kept)) == (FIRST + FIRST, len(LINE)), kept


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (FIRST + LINE, FIRST + LINE),
        (FIRST + LINE[:-1], FIRST + LINE),
        (FIRST + LINE[:-1] + b"\0" * 5, FIRST + LINE),
        (FIRST + b"\0" * 70_000, FIRST),
        (b"\0" * 70_000, b""),
        (FIRST + b"\0\0\n" + LINE[:4], FIRST),
        (FIRST + b"\0{}\n" + b"\0\0", FIRST),
        (FIRST + b"17", FIRST),
        (FIRST + b"[" * 100_000, FIRST),
        (b"", b""),
        (FIRST + b"not ours, but whole\n", FIRST + b"not ours, but whole\n"),
    ],
)
def test_repair_keeps_every_whole_line(tmp_path: Path, content: bytes, kept: bytes) -> None:
    assert _repaired(tmp_path / "run.jsonl", content)[0] == kept + FIRST


def test_append_is_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = os.write

    def counted(descriptor: int, data: bytes) -> int:
        written.append(len(data))
        return write(descriptor, data)

    with LineFile(tmp_path / "run.jsonl") as file:
        monkeypatch.setattr(os, "write", counted)
        file.append(LINE * 1000)
    assert written == [len(LINE) * 1000]


def test_append_cuts_half_a_line_off_even_if_it_could_not_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < len(LINE):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    def no_truncate(descriptor: int, length: int) -> None:
        raise OSError(5, "Input/output error")

    with LineFile(path) as file:
        file.append(FIRST)
        with monkeypatch.context() as full:
            full.setattr(os, "write", half)
            full.setattr(os, "ftruncate", no_truncate)
            with pytest.raises(StorageError, match=r"run\.jsonl.*its contents are kept: No space"):
                file.append(LINE)
        assert len(path.read_bytes()) == len(FIRST) + len(LINE) // 2
        file.append(LINE)
    assert path.read_bytes() == FIRST + LINE


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_append_refuses_a_deleted_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run.jsonl"
    with LineFile(path) as file:
        file.append(FIRST)
        path.unlink()
        if how == "replaced":
            replace_file(path, LINE)
        with pytest.raises(StorageError, match=rf"run\.jsonl was {how} while"):
            file.append(LINE)
    assert not path.exists() if how == "deleted" else path.read_bytes() == LINE


@pytest.mark.parametrize("content", [FIRST[:3], FIRST + LINE + LINE[:3]])
def test_append_refuses_a_file_that_another_program_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.jsonl"
    with LineFile(path) as file:
        file.append(FIRST)
        path.write_bytes(content)
        with pytest.raises(StorageError, match="another program changed it"):
            file.append(LINE)
    assert path.read_bytes() == content


def test_a_second_writer_is_refused_until_the_first_one_closes(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = LineFile(path)
    with pytest.raises(StorageError, match=r"run\.jsonl is being written by another writer"):
        LineFile(path)
    first.close()
    LineFile(path).close()


_WRITER = """
import sys, time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from envkit.files import LineFile
file = LineFile(Path(sys.argv[1]))
file.append(b'{"n": 1}\\n')
print("open", flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", _WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StorageError, match="another writer"):
            LineFile(path)
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=120)
        with LineFile(path) as file:
            file.append(FIRST)
    assert path.read_bytes() == FIRST + FIRST


def test_a_file_system_without_locks_is_written_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with LineFile(tmp_path / "run.jsonl", durable=True) as file:
        file.append(FIRST)
        file.clear()
        file.append(LINE)
        file.keep_lines({1})
    assert (tmp_path / "run.jsonl").read_bytes() == LINE
    assert caplog.text.count("has no locks (Operation not supported)") == 1


class Faltering:
    """Fails calls of `os` once, as a network file system does while its server restarts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, failure: int) -> None:
        self.left, call = 1, getattr(os, name)

        def fail_once(*arguments: object) -> object:
            if self.left:
                self.left -= 1
                raise OSError(failure, os.strerror(failure))
            return call(*arguments)

        monkeypatch.setattr(os, name, fail_once)


@pytest.mark.parametrize("failure", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "fstat"])
def test_append_survives_one_failure_of_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: int
) -> None:
    path = tmp_path / "run.jsonl"
    with LineFile(path, durable=True) as file:
        file.append(FIRST)
        system = Faltering(monkeypatch, call, failure)
        file.append(LINE)
        assert system.left == 0
        with pytest.raises(StorageError, match="another writer"):
            LineFile(path)
        file.append(FIRST)
    assert path.read_bytes() == FIRST + LINE + FIRST


def test_append_after_a_failure_refuses_a_file_that_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    with LineFile(path) as file:
        file.append(FIRST)
        Faltering(monkeypatch, "fstat", errno.ESTALE)
        path.write_bytes(FIRST + LINE)
        with pytest.raises(StorageError, match="another program changed it"):
            file.append(LINE)
    assert path.read_bytes() == FIRST + LINE


@pytest.mark.parametrize("failure", [errno.ESTALE, errno.EIO])
def test_file_is_replaced_despite_one_failure_of_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: int
) -> None:
    system = Faltering(monkeypatch, "fsync", failure)
    replace_file(tmp_path / "run.json", b"{}", durable=True)
    assert system.left == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_cache_dir_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENVKIT_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("ENVKIT_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_dir() == tmp_path / "envkit"


@pytest.mark.skipif(sys.platform != "linux", reason="the variable is Linux's")
@pytest.mark.parametrize("named", ["", "~/mine"])
def test_cache_dir_of_a_user_without_a_home_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    def unknown(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setenv("ENVKIT_CACHE", named)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="Set ENVKIT_CACHE to a folder"):
        cache_dir()
    monkeypatch.setenv("ENVKIT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "envkit"


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_that_cannot_sync_holds_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refusal: int
) -> None:
    """As SMB and FUSE mounts, some for files and some for folders only."""

    def refuse(_: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "fsync", refuse)
    replace_file(tmp_path / "run.json", b"{}", durable=True)
    with LineFile(tmp_path / "run.jsonl", durable=True) as file:
        file.append(FIRST)
        file.append(LINE)
        file.keep_lines({2})
    assert (tmp_path / "run.jsonl").read_bytes() == LINE
    assert (tmp_path / "run.json").read_bytes() == b"{}"


@pytest.mark.parametrize("failure", [errno.EIO, errno.ENOSPC])
def test_disk_that_fails_to_sync_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(failure, os.strerror(failure))

    with LineFile(tmp_path / "run.jsonl", durable=True) as file:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match=os.strerror(failure)):
            replace_file(tmp_path / "run.json", b"{}", durable=True)
        assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]
        with pytest.raises(StorageError, match=os.strerror(failure)):
            file.append(LINE)
        assert (tmp_path / "run.jsonl").read_bytes() == b""


@pytest.mark.parametrize("name", ["run.json", "trajectories.jsonl", "metrics.json"])
def test_killed_writer_leaves_no_temporary_file(name: str, tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from envkit.files import replace_file\n"
        "def lines():\n"
        "    yield b'x'\n"
        "    os.kill(os.getpid(), 9)\n"
        "replace_file(Path(sys.argv[1]), lines())\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=False)
    assert [path.name[: len(name) + 1] for path in tmp_path.iterdir()] == [f".{name}"]
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_do_not_include_a_pipe_or_a_link_and_wait_for_none(tmp_path: Path) -> None:
    kept = [tmp_path / f".run.json.0123abc{n}.tmp" for n in range(2)]
    os.mkfifo(kept[0])
    kept[1].symlink_to(tmp_path / "other")
    code = "import sys, pathlib; from envkit.files import remove_leftovers as remove"
    run_python("-c", f"{code}; remove(pathlib.Path(sys.argv[1]))", tmp_path, timeout_s=60)
    assert sorted(tmp_path.iterdir()) == kept


def test_leftovers_do_not_include_a_file_being_written(tmp_path: Path) -> None:
    target = tmp_path / "run.json"

    def lines() -> Generator[bytes]:
        yield b"a"
        remove_leftovers(tmp_path)
        yield b"b"

    replace_file(target, lines())
    assert target.read_bytes() == b"ab"


def test_leftovers_do_not_include_other_files(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    link = tmp_path / ".run.json.01234567.tmp"
    link.symlink_to(elsewhere)
    others = ["x.tmp", ".x.tmp", ".a.0123456.tmp", ".a.0123456g.tmp", "a.01234567.tmp"]
    for name in others:
        (tmp_path / name).write_text("kept")
    remove_leftovers(tmp_path)
    remove_leftovers(tmp_path / "missing")
    assert {path.name for path in tmp_path.iterdir()} == {*others, link.name, "elsewhere"}


def test_temporary_file_removed_too_early_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, removed = fcntl.flock, list[str]()

    def late(stream: Any, how: int) -> None:
        if not removed:
            removed.append("once")
            remove_leftovers(tmp_path)
        before(stream, how)

    monkeypatch.setattr("fcntl.flock", late)
    replace_file(tmp_path / "run.json", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_bytes() == b"whole"
