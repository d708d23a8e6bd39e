"""An episode's folder can be filled, read and removed, whatever is in it."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from envkit.errors import DatasetError, EnvFault, FaultKind
from envkit_mcp.folder import EpisodeFolder, abandoned


def test_folder_has_the_template_and_the_files(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.txt").write_text("template")
    with EpisodeFolder(template=tmp_path) as folder:
        folder.fill({"b/c.txt": "task", "kept/a.txt": "changed"})
        assert folder.read("b/c.txt") == "task"
        assert folder.read("kept/a.txt") == "changed"
        assert folder.read("kept") is None
        assert folder.read("") is None
        assert folder.read("nothing") is None
    assert not folder.root.exists()
    assert (tmp_path / "kept" / "a.txt").read_text() == "template"


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", "a\0b"])
def test_file_outside_of_the_folder_is_refused(path: str) -> None:
    with EpisodeFolder() as folder, pytest.raises(DatasetError):
        folder.fill({path: "x"})


def test_links_are_not_followed_when_reading(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with EpisodeFolder() as folder:
        (folder.files / "link").symlink_to(tmp_path / "secret")
        (folder.files / "folder").symlink_to(tmp_path)
        os.mkfifo(folder.files / "pipe")
        assert [folder.read(name) for name in ("link", "folder/secret", "pipe")] == [None] * 3


def test_hostile_folder_is_removed_and_what_its_links_name_stays(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    folder = EpisodeFolder()
    deep = os.open(folder.files, os.O_RDONLY)
    for _ in range(1500):  # a path of 30,000 characters
        os.mkdir("d" * 20, dir_fd=deep)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=deep))
    os.close(deep)
    (folder.files / "link").symlink_to(tmp_path)
    (folder.files / os.fsdecode(b"\xff\xfe")).mkdir()
    os.mkfifo(folder.files / "pipe")
    locked = folder.files / "locked" / "inner"
    locked.mkdir(parents=True)
    locked.parent.chmod(0)
    folder.close()
    assert not folder.root.exists()
    assert (tmp_path / "outside").read_text() == "kept"
    folder.close()


def test_file_is_absent_only_if_nothing_has_its_path(tmp_path: Path) -> None:
    with EpisodeFolder() as folder:
        (folder.files / "link").symlink_to(tmp_path / "nothing")
        (folder.files / "folder").mkdir()
        (folder.files / "loop").symlink_to("loop")
        os.mkfifo(folder.files / "pipe")
        names = ("link", "folder", "pipe", "loop/x", "nothing", "folder/x", "pipe/x")
        assert [folder.lacks(name) for name in names] == [False] * 4 + [True] * 3


def test_lack_of_descriptors_is_a_fault_and_no_absent_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with EpisodeFolder() as folder:
        (folder.files / "a").write_text("x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail)
            with pytest.raises(EnvFault, match="Too many open files") as caught:
                folder.read("a")
        assert caught.value.kind is FaultKind.TRANSIENT


def test_sparse_file_of_gigabytes_is_read_up_to_the_limit() -> None:
    with EpisodeFolder() as folder:
        with (folder.files / "sparse").open("wb") as file:
            file.truncate(5 << 30)
        assert folder.read("sparse") == "\0" * (1 << 20)


def test_folder_of_a_killed_process_is_found_and_a_running_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, signal, sys, tempfile; tempfile.tempdir = sys.argv[1]; "
        "from envkit_mcp.folder import EpisodeFolder; folder = EpisodeFolder(); "
        "print(folder.root, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    with EpisodeFolder():
        (tmp_path / "envkit-mcp-new").mkdir()  # not locked yet
        assert abandoned() == [Path(done.stdout.strip())]
