"""Commands that start in one run folder at the same moment: one runs, and nothing is lost.

With `ENVKIT_ALL_STARTS=1` the five cases have 50 rounds together.
"""

import json
import os
from pathlib import Path

import pytest
from fakes.command import run_envkit
from fakes.starts import (
    EPISODES,
    GATE,
    NO_LOCKS,
    STARTED,
    all_run,
    check_whole,
    close_gate,
    finish,
    fire,
    killed_holder,
    one_wins,
    register_gated,
    start,
    start_resume,
    wait_until,
)

from envkit.trajectory import load

pytestmark = pytest.mark.slow
RUN = Path("run")
_IS_ALL = "ENVKIT_ALL_STARTS" in os.environ
_ALL = [2, 2, 2, 2, 4, 4, 4, 4, 8, 8]


def _many(*share: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("count", _ALL if _IS_ALL else share)


@pytest.fixture(autouse=True)
def _at_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    register_gated()
    close_gate()


@_many(2, 4, 8)
def test_commands_in_a_new_folder_leave_it_to_one(count: int) -> None:
    said = one_wins([start("--out", RUN) for _ in range(count)])
    assert (
        said.count("is being written by another writer") + said.count("already holds") == count - 1
    )
    check_whole(RUN)


@_many(2, 4)
def test_commands_without_a_folder_run_in_one_each(count: int) -> None:
    all_run([start() for _ in range(count)])
    folders = sorted(path.name for path in Path("runs").iterdir())
    stem = "toy-gated-v0-oracle-seed0"
    assert folders == sorted([stem, *(f"{stem}-{n}" for n in range(2, count + 1))])
    for folder in folders:
        check_whole(Path("runs") / folder)


@_many(2, 4)
def test_commands_that_overwrite_leave_the_folder_to_one(count: int) -> None:
    finish(start("--out", RUN, "--seed", 5))
    old = {one.episode_id for one in load(RUN)}
    close_gate()
    said = one_wins([start("--out", RUN, "--overwrite") for _ in range(count)])
    assert said.count("is being written by another writer") == count - 1
    assert not old & {one.episode_id for one in check_whole(RUN)}


@_many(2, 4)
def test_commands_that_resume_leave_the_run_to_one(count: int) -> None:
    finish(start("--out", RUN))
    rows = RUN / "trajectories.jsonl"
    kept = b"".join(rows.read_bytes().splitlines(keepends=True)[:7])
    rows.write_bytes(kept)
    close_gate()
    said = one_wins([start_resume(RUN) for _ in range(count)])
    assert said.count("is being written by another writer") == count - 1
    check_whole(RUN)
    assert rows.read_bytes().startswith(kept)


@_many(2, 4)
def test_commands_that_resume_after_a_kill_leave_the_run_to_one(count: int) -> None:
    stored = killed_holder(RUN)
    close_gate()
    said = one_wins([start_resume(RUN) for _ in range(count)])
    assert said.count("is being written by another writer") == count - 1
    assert set(stored) <= {one.episode_id for one in check_whole(RUN)}


def test_command_that_overwrites_does_not_touch_a_run_that_stored_nothing_yet() -> None:
    holder = start("--out", RUN)
    try:
        fire([holder])
        wait_until(lambda: any(STARTED.iterdir()))
        assert (RUN / "trajectories.jsonl").stat().st_size == 0
        plan = (RUN / "run.json").read_bytes()
        shown = run_envkit(
            "rollout", "toy-gated-v0", "--policy", "oracle", "-n", EPISODES, "--out", RUN,
            "--overwrite", "--quiet", "--seed", 9,
        )  # fmt: skip
        assert shown.code == 1
        assert "is being written by another writer" in shown.err
        assert (RUN / "run.json").read_bytes() == plan
    finally:
        GATE.touch()
        said = holder.communicate(timeout=120)[1]
    assert holder.returncode == 0, said
    check_whole(RUN)


def test_command_overwrites_the_folder_of_a_killed_one() -> None:
    stored = killed_holder(RUN)
    close_gate()
    finish(start("--out", RUN, "--overwrite"))
    assert not set(stored) & {one.episode_id for one in check_whole(RUN)}


def test_commands_without_locks_leave_the_run_of_a_killed_one_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NO_LOCKS, "1")
    stored = killed_holder(RUN)
    close_gate()
    said = one_wins([start_resume(RUN) for _ in range(4)])
    assert said.count("This file system has no locks") == 3
    (RUN / ".trajectories.jsonl.writer-1").unlink()  # the killed one's
    assert set(stored) <= {one.episode_id for one in check_whole(RUN)}


def test_evaluations_in_one_folder_leave_it_to_one() -> None:
    said = one_wins([start("--out", RUN, command="eval") for _ in range(2)])
    assert "is being written by another writer" in said
    assert {path.name for path in RUN.iterdir()} == {"eval.json", "toy-gated-v0"}
    assert json.loads((RUN / "eval.json").read_bytes())["is_complete"] is True
    check_whole(RUN / "toy-gated-v0")


def test_evaluations_without_a_folder_run_in_one_each() -> None:
    all_run([start(command="eval") for _ in range(2)])
    stem = "eval-oracle-seed0"
    assert sorted(path.name for path in Path("runs").iterdir()) == [stem, f"{stem}-2"]
    for name in (stem, f"{stem}-2"):
        check_whole(Path("runs") / name / "toy-gated-v0")
