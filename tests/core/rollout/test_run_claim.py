"""A command that may not write a run's folder changes nothing in it, and an owner loses nothing."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.command import Outcome, run_envkit
from fakes.hostile_runs import (
    EPISODES,
    PLAN,
    ROWS,
    RUN,
    RUN_ID,
    RunEnv,
    bytes_of,
    check_refused,
    check_whole,
    cut_after,
    register_dialogue,
    resume,
    rollout,
)
from fakes.matrix import share
from fakes.trajectories import Reply, build

import envkit.cli.run_rollout as running
from envkit.cli.run_plan import RolloutPlan
from envkit.errors import ConfigurationError, StorageError
from envkit.files import LineFile
from envkit.rollout.run_claim import RunClaim
from envkit.rollout.run_folder import RunFolder
from envkit.trajectory import StopReason, load

pytest_plugins = ["fakes.run_fixtures"]
pytestmark = pytest.mark.usefixtures("own_folder")
SETTINGS = {"group_size": 1}
BUSY = "is being written by another writer"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def meanwhile(act: Callable[[], Outcome], *more: object) -> tuple[Outcome, Outcome]:
    """Play a run with sinks, during which another command runs once; return both."""
    found: list[Outcome] = []

    def intrude() -> None:
        plan = PLAN.read_bytes()
        found.append(act())
        assert PLAN.read_bytes() == plan

    RunEnv.arm(intrude, at=14)
    shown = rollout(*more)
    (other,) = found
    return shown, other


@pytest.mark.parametrize("how", ["overwrite", "resume", "create"])
def test_a_refused_command_touches_neither_the_run_nor_its_sinks(how: str) -> None:
    sinks = (f"--sink=parquet={RUN}/rows.parquet", f"--sink=tensorboard={RUN}/board")
    acts = {
        "overwrite": lambda: rollout("--overwrite", *sinks),
        "resume": lambda: resume(RUN, *sinks),
        "create": lambda: rollout(*sinks),
    }
    shown, other = meanwhile(acts[how], *sinks)
    assert shown.code == 0, shown.err
    assert other.code == 1
    assert other.err.startswith("envkit: error: ")
    assert other.err.count("\n") == 1
    assert ("already holds a run" if how == "create" else BUSY) in other.err
    check_whole()
    assert pq.read_table(RUN / "rows.parquet").num_rows == EPISODES
    assert len(list((RUN / "board").iterdir())) == 1
    assert (RUN / "metrics.json").exists()


def test_a_refused_command_loads_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_engine(*arguments: object, **options: object) -> None:
        raise AssertionError("the engine is loaded before the folder is claimed")

    with RunClaim(RUN):
        monkeypatch.setattr(running, "build_any", load_engine)
        shown = rollout()
        assert shown.code == 1
        assert BUSY in shown.err
        assert shown.err.count("\n") == 1
        assert names(RUN) == [ROWS.name]
    assert not RUN.exists()


def test_a_run_without_a_folder_takes_the_next_one_if_the_first_is_claimed() -> None:
    plain = Path("runs/toy-run-v0-oracle-seed0")
    command = ("rollout", RUN_ID, "--policy", "oracle", "-n", 2, "--quiet")
    with RunClaim(plain):
        assert run_envkit(*command).code == 0
        assert names(Path("runs")) == [plain.name, f"{plain.name}-2"]
        shown = run_envkit(*command, "--overwrite")
        assert shown.code == 1
        assert BUSY in shown.err
    assert names(Path("runs")) == [f"{plain.name}-2"]


def test_a_run_begun_between_the_check_and_the_claim_is_not_replaced(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes_of(RUN)

    def see_nothing(plan: RolloutPlan) -> None:
        pass

    monkeypatch.setattr(RolloutPlan, "check_out", see_nothing)
    check_refused(rollout(), RUN, before, "--resume run")


def test_a_run_replaced_between_its_reading_and_the_claim_is_not_resumed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RolloutPlan.claim
    before: dict[str, bytes] = {}

    def late(plan: RolloutPlan) -> RunClaim:
        monkeypatch.setattr(RolloutPlan, "claim", real)
        assert rollout("--overwrite", "--set", "limits.max_turns=4").code == 0
        cut_after(RUN, 3)
        before.update(bytes_of(RUN))
        return real(plan)

    cut_after(RUN, 5)
    monkeypatch.setattr(RolloutPlan, "claim", late)
    check_refused(resume(), RUN, before, "can only be resumed with its own settings")


def test_a_run_that_cannot_start_removes_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_envkit("rollout", RUN_ID, "--model", "/no/model", "--out", "new/run", "--quiet")
    assert shown.code == 2
    assert not Path("new").exists()
    RUN.mkdir()
    (RUN / "notes.txt").write_text("mine")
    shown = run_envkit("rollout", RUN_ID, "--model", "/no/model", "--out", RUN, "--quiet")
    assert shown.code == 2
    assert names(RUN) == ["notes.txt"]


def test_a_run_that_cannot_start_does_not_overwrite(run: Path) -> None:
    before = bytes_of(RUN)
    shown = run_envkit(
        "rollout", RUN_ID, "--model", "/no/model", "--out", RUN, "--overwrite", "--quiet"
    )
    check_refused(shown, RUN, before, "no model folder")


@pytest.mark.parametrize("stage", ["build_any", "Player", "_drop_old_figures", "Run"])
def test_a_run_interrupted_at_any_stage_before_an_episode_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, stage, interrupt)
    assert rollout().code == 130
    assert not RUN.exists()
    with RunClaim(RUN):
        pass


@pytest.mark.parametrize("mode", ["new", "overwrite"])
def test_no_space_for_the_first_episode_keeps_a_run_that_can_be_resumed(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    if mode == "overwrite":
        assert rollout("--set", "limits.max_turns=4").code == 0

    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("envkit.files.os.write", full)
        shown = rollout("--overwrite")
    assert shown.code == 1
    assert "No space left" in shown.err
    assert f"--resume {RUN}" in shown.err
    assert resume().code == 0
    check_whole()


def test_the_folder_is_held_until_the_report_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real = running.summarise

    def summarise(directory: Path, *arguments: Any, **options: Any) -> bool:
        with pytest.raises(StorageError, match=BUSY):
            RunClaim(directory)
        return real(directory, *arguments, **options)

    monkeypatch.setattr(running, "summarise", summarise)
    assert rollout().code == 0
    RunClaim(RUN).close()
    check_whole()


@pytest.mark.parametrize("call", ["create", "resume"])
def test_one_of_many_threads_gets_the_folder(tmp_path: Path, call: str) -> None:
    path = tmp_path / "run"
    if call == "resume":
        RunFolder.create(path, SETTINGS).close()

    def attempt(_: int) -> RunFolder | StorageError:
        try:
            return getattr(RunFolder, call)(path, SETTINGS)
        except StorageError as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(8)))
    (winner,) = [one for one in results if isinstance(one, RunFolder)]
    assert names(path) == [PLAN.name, ROWS.name]
    winner.close()
    RunFolder.resume(path, SETTINGS).close()


def test_a_run_folder_that_fails_to_open_removes_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise StorageError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("envkit.rollout.run_settings.replace_file", full)
        with pytest.raises(StorageError):
            RunFolder.create(tmp_path / "a/run", SETTINGS)
    assert not (tmp_path / "a").exists()
    RunFolder.create(tmp_path / "run", SETTINGS).close()
    (tmp_path / "run" / ROWS.name).unlink()
    with pytest.raises(ConfigurationError):
        RunFolder.resume(tmp_path / "run", {"group_size": 2})
    assert names(tmp_path / "run") == [PLAN.name]


def test_a_run_begun_while_another_waits_for_the_lock_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    real = LineFile._claim  # pyright: ignore[reportPrivateUsage]  # the moment before the lock

    def late(file: LineFile, descriptor: int) -> None:
        monkeypatch.setattr(LineFile, "_claim", real)
        RunFolder.create(path, {**SETTINGS, "seed": 1}).close()
        real(file, descriptor)

    monkeypatch.setattr(LineFile, "_claim", late)
    with pytest.raises(StorageError, match="already holds a run"):
        RunFolder.create(path, SETTINGS)
    RunFolder.resume(path, {**SETTINGS, "seed": 1}).close()


# ---- episodes that a run's folder could not take are written elsewhere, and `--resume` adds them


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
    # Moved first: what the run writes meanwhile would keep the folder from being removed.
    shown = broken_run(lambda: shutil.rmtree(RUN.rename("gone")))
    (folder,) = rescued()
    assert f"--resume {folder.resolve()}" in shown.err
    # An image or a row may be the first that finds no folder.
    assert "was deleted" in shown.err or "No such file" in shown.err
    assert "before that" in shown.err
    assert not RUN.exists()
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


@pytest.mark.parametrize(
    ("cause", "is_rescued", "at"), share(product(CAUSES, [True, False], [0, 14]), of=3)
)
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
