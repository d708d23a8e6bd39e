"""Who may write a folder, for every order in which two processes can open, lock and remove it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit import files
from envkit.errors import BusyError, StorageError
from envkit.files import LineFile
from envkit.folder_claim import FolderClaim

NAME = "rows.jsonl"
LINE = b'{"n": 1}\n'


def claim(folder: Path) -> FolderClaim:
    return FolderClaim(folder, NAME)


def once_before(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, act: Callable[[], object]
) -> None:
    """Call `act` before the next call of a function, as another process could."""
    real = getattr(owner, name)

    def instead(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(owner, name, real)
        act()
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, instead)


def test_a_claim_removes_only_what_it_made(tmp_path: Path) -> None:
    with claim(tmp_path / "a/b") as first:
        first.remove()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    claim(tmp_path / "a/b").remove()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    (tmp_path / "a" / NAME).touch()
    claim(tmp_path / "a").remove()
    assert (tmp_path / "a" / NAME).exists()


def test_a_claim_removes_neither_lines_nor_foreign_files(tmp_path: Path) -> None:
    with claim(tmp_path / "run") as first:
        first.file.append(LINE)
        first.remove()
    assert (tmp_path / "run" / NAME).read_bytes() == LINE
    with claim(tmp_path / "other") as second:
        (tmp_path / "other/notes.txt").write_text("mine")
        second.remove()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("owner", "step"),
    [(FolderClaim, "_make_folders"), (files, "_open_or_create"), (LineFile, "_claim")],
    ids=["before_its_folder", "before_its_file", "before_its_lock"],
)
def test_a_claim_refuses_a_folder_that_another_took_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    others: list[FolderClaim] = []
    once_before(monkeypatch, owner, step, lambda: others.append(claim(tmp_path / "run")))
    with pytest.raises(BusyError, match=r"rows\.jsonl is being written by another writer"):
        claim(tmp_path / "run")
    (other,) = others
    other.file.append(LINE)
    other.close()
    assert (tmp_path / "run" / NAME).read_bytes() == LINE


def test_a_claim_makes_a_folder_again_that_its_owner_just_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim(tmp_path / "runs/run")
    once_before(monkeypatch, files, "_open_or_create", first.remove)
    with claim(tmp_path / "runs/run") as second:
        second.file.append(LINE)
    assert (tmp_path / "runs/run" / NAME).read_bytes() == LINE


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_claim_holds_the_file_that_the_folder_has_when_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = claim(tmp_path)
    first.file.append(LINE)

    def end() -> None:
        if how == "removed":
            first.file.remove()
        else:
            first.file.keep_lines({1})
        first.close()

    once_before(monkeypatch, LineFile, "_claim", end)
    with claim(tmp_path) as second:
        with pytest.raises(BusyError):
            claim(tmp_path)
        second.file.append(LINE)
    assert (tmp_path / NAME).read_bytes() == (LINE if how == "removed" else LINE + LINE)


def test_an_owner_does_not_remove_a_file_that_replaced_its_own(tmp_path: Path) -> None:
    with claim(tmp_path / "run") as first:
        file = tmp_path / "run" / NAME
        file.unlink()
        file.write_bytes(LINE)
        first.remove()
    assert file.read_bytes() == LINE


def test_a_file_that_is_replaced_for_ever_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_named(descriptor: int, path: Path) -> bool:
        return False

    monkeypatch.setattr(files, "_is_named", is_named)
    with pytest.raises(StorageError, match="was replaced 100 times"):
        claim(tmp_path)


def test_paths_through_links_name_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with claim(tmp_path / "run"):
        for same in (Path("run"), Path("link"), Path("./link/../run"), tmp_path / "link"):
            with pytest.raises(BusyError):
                claim(same)
    claim(Path("link")).close()


@pytest.mark.parametrize("name", ["file", "file/run", "dangling", "full"])
def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere/run")
    (tmp_path / "full" / NAME).mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot open .*rows\.jsonl for writing"):
        claim(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "full"]


def test_an_interrupted_claim_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    once_before(monkeypatch, files, "_open_or_create", interrupt)
    with pytest.raises(KeyboardInterrupt):
        claim(tmp_path / "runs/run")
    assert list(tmp_path.iterdir()) == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from envkit.folder_claim import FolderClaim
claim = FolderClaim(Path(sys.argv[1]), "rows.jsonl")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_owner_leaves_a_folder_that_can_be_claimed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "run")], check=False)
    assert (tmp_path / "run" / NAME).exists()
    with claim(tmp_path / "run") as again:
        again.remove()
    assert os.listdir(tmp_path / "run") == [NAME]  # another process made it


_FORKED = """
import os, signal, sys, time
from pathlib import Path
from envkit.folder_claim import FolderClaim
claim = FolderClaim(Path(sys.argv[1]), "rows.jsonl")
if not os.fork():
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_child_that_outlives_a_killed_owner_does_not_hold_its_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FORKED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        try:
            with pytest.raises(BusyError):
                claim(tmp_path)
            owner.kill()
            owner.wait()
            os.kill(child, 0)
            claim(tmp_path).close()
        finally:
            os.kill(child, signal.SIGKILL)
