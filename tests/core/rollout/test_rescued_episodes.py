"""Episodes that a run's folder could not take are written elsewhere, and `--resume` adds them."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.command import Outcome, run_envkit
from fakes.hostile_runs import (
    EPISODES,
    ROWS,
    RUN,
    RunEnv,
    check_whole,
    register_dialogue,
    resume,
    rollout,
)
from fakes.trajectories import Reply, build

from envkit.rollout.run_folder import RunFolder
from envkit.trajectory import StopReason, load

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")

FULL, READ_ONLY = errno.ENOSPC, errno.EROFS
Patch = pytest.MonkeyPatch
TEMPORARY = Path("temporary")


def fail_rows(monkeypatch: Patch, code: int) -> None:
    """Let no more row be written to the run's own file."""
    write, rows = os.write, ROWS.absolute()

    def refuse(descriptor: int, data: Any) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == rows:
            raise OSError(code, os.strerror(code))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)


def broken_run(plan: Callable[[], object], *, at: int = 14) -> Outcome:
    RunEnv.arm(lambda: (plan(), None)[1], at=at)
    shown = rollout()
    assert shown.code == 1
    assert shown.err.count("\n") == 1, shown.err
    return shown


def rescued(parent: Path = RUN.parent) -> list[Path]:
    return list(parent.glob("envkit-rescued-*"))


def replace_rows() -> None:
    ROWS.rename(RUN / "moved.jsonl")
    ROWS.write_text("")


def extend_rows() -> None:
    with ROWS.open("a") as file:
        file.write("\n")


def test_resume_adds_rescued_episodes_once_and_does_not_play_them(monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        broken_run(lambda: fail_rows(patch, READ_ONLY))
    (folder,) = rescued()
    found = {one.episode_id: one for one in load(folder) if one.reward is not None}
    stored = {one.episode_id for one in load(RUN)}
    assert found
    assert not found.keys() & stored
    copy = Path("copy")
    shutil.copytree(folder, copy)
    RunEnv.arm(None)
    assert resume().code == 0
    done = {one.episode_id: one for one in check_whole()}
    for name, one in found.items():
        assert done[name].train_ids() == one.train_ids()
        assert done[name].images() == one.images()
    assert RunEnv.resets <= EPISODES - len(stored) - len(found)
    assert not rescued()
    copy.rename(folder)  # as if its process had died before it removed the folder
    before = ROWS.read_bytes()
    assert resume().code == 0
    assert ROWS.read_bytes() == before
    assert not rescued()


def test_resume_finds_rescued_episodes_among_temporary_files(monkeypatch: Patch) -> None:
    make = tempfile.mkdtemp

    def elsewhere(*, prefix: str, dir: Path) -> str:  # noqa: A002  # its name
        if dir.name != TEMPORARY.name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return make(prefix=prefix, dir=dir)

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", elsewhere)
        shown = broken_run(lambda: fail_rows(patch, FULL))
    (folder,) = rescued(TEMPORARY)
    assert str(folder) in shown.err
    stored, found = load(RUN), load(folder)
    RUN.rename("moved")
    RunEnv.arm(None)
    told = run_envkit("rollout", "--resume", "moved")
    assert told.code == 0
    assert f"{len(found)} rescued trajector" in told.err
    Path("moved").rename(RUN)
    check_whole()
    assert RunEnv.resets <= EPISODES - len(stored)
    assert not rescued(TEMPORARY)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_resume_ignores_rescued_episodes_of_another_user(monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        broken_run(lambda: fail_rows(patch, FULL))
    (folder,) = rescued()
    os.chown(folder, 12_345, 12_345)
    stored = len(load(RUN))
    RunEnv.arm(None)
    assert resume().code == 0
    check_whole()
    assert RunEnv.resets >= EPISODES - stored
    assert folder.exists()


def test_resume_adds_every_side_of_a_rescued_dialogue(monkeypatch: Patch) -> None:
    register_dialogue()
    with monkeypatch.context() as patch:
        fail_rows(patch, FULL)
        shown = run_envkit(
            "rollout", "toy-dialogue-v0", "--policy", "oracle", "-n", 4, "--out", RUN, "-q"
        )
    assert shown.code == 1
    (folder,) = rescued()
    found = {one.episode_id for one in load(folder) if one.reward is not None}
    assert resume().code == 0
    done = {one.episode_id for one in load(RUN)}
    assert found <= done
    assert len(done) == len(load(RUN)) == 8


def test_rescued_folder_of_a_deleted_run_is_resumed_itself() -> None:
    shown = broken_run(lambda: shutil.rmtree(RUN))
    (folder,) = rescued()
    assert f"--resume {folder.resolve()}" in shown.err
    assert "was deleted" in shown.err
    assert "before that" in shown.err
    found = load(folder)
    RunEnv.arm(None)
    assert resume(folder).code == 0
    assert RunEnv.resets <= EPISODES - sum(one.reward is not None for one in found)
    folder.rename(RUN)
    check_whole()


def test_record_that_cannot_be_stored_costs_only_itself_when_rescued(tmp_path: Path) -> None:
    good, bad = (
        build([Reply(text="a")], episode_id=f"{n}", metadata={"group": 0, "member": n})
        for n in range(2)
    )
    bad = replace(bad, reset_info={"set": {1}})
    with RunFolder.create(tmp_path / "run", {"group_size": 2}) as folder:
        found = load(folder.rescue([(bad,), (good,)]))
    assert [one.episode_id for one in found] == [bad.episode_id, good.episode_id]
    assert [one.stop_reason is StopReason.LEDGER_FAULT for one in found] == [True, False]
    with RunFolder.resume(tmp_path / "run") as folder:
        assert folder.progress.delivered == {0, 1}
        assert folder.progress.rescued == 2


CAUSES: dict[str, tuple[Callable[[Patch], object], str]] = {
    "full": (lambda patch: fail_rows(patch, FULL), "free some space, then complete the run"),
    "read-only": (lambda patch: fail_rows(patch, READ_ONLY), "Read-only file system; complete"),
    "deleted": (lambda patch: ROWS.unlink(), "was deleted"),
    "replaced": (lambda patch: replace_rows(), "was replaced"),
    "changed": (lambda patch: extend_rows(), "another program changed it"),
}


@pytest.mark.parametrize("at", [0, 14])
@pytest.mark.parametrize("is_rescued", [True, False])
@pytest.mark.parametrize("cause", CAUSES)
def test_error_says_what_happened_to_every_episode(
    cause: str, is_rescued: bool, at: int, monkeypatch: Patch
) -> None:
    act, says = CAUSES[cause]
    if not is_rescued:

        def refuse(**options: object) -> str:
            raise OSError(READ_ONLY, os.strerror(READ_ONLY))

        monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with monkeypatch.context() as patch:
        error = broken_run(lambda: act(patch), at=at).err
    is_lost = cause not in ("full", "read-only")
    assert says in error
    assert ("free some space" in error) == (cause == "full")
    assert f"complete the run with --resume {RUN}" in error
    assert "more" not in error
    stored = error.partition(f"--resume {RUN}")[2]
    if "before that" in stored or f"{RUN} keeps" in stored:
        assert ("the file held" in stored) == is_lost
        assert (f"{RUN} keeps" in stored) != is_lost
    else:
        assert is_lost or not load(RUN)
    if is_rescued:
        (folder,) = rescued()
        assert f"{folder} keeps {len(load(folder))} trajector" in error.replace(
            str(folder.resolve()), str(folder)
        )
        assert "that could not be stored, which --resume adds to the run" in error
    else:
        assert "could not be stored anywhere: " in error
