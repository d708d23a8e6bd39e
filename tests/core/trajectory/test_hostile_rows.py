"""Whatever a run folder holds, a command fails on its own line, and runs or writes nothing else."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.hostile_folders import real_run
from fakes.hostile_rows import mutated, read_everywhere, real_rows
from fakes.hostile_runs import bytes_of
from fakes.processes import run_python

from envkit.errors import DatasetError, StorageError
from envkit.rollout.run_folder import RunFolder
from envkit.tasks import read_tasks
from envkit.trajectory import verify_file

Rows = list[tuple[Path, Any]]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return real_rows(tmp_path_factory.mktemp("runs"))


def play(rows: Rows, count: int, seed: int) -> Counter[bool]:
    rng = random.Random(seed)
    found: Counter[bool] = Counter()
    for _ in range(count):
        file, row = rng.choice(rows)
        line = mutated(row, rng)
        started = time.process_time()
        try:
            found[read_everywhere(file, line)] += 1
        except Exception as error:
            raise AssertionError(f"{line[:2000]!r}") from error
        assert time.process_time() - started < 5, line[:2000]
    return found


def test_mutated_rows_are_read_or_refused(rows: Rows) -> None:
    found = play(rows, 150, seed=1)
    assert found[True] > 20
    assert found[False] > 20


@pytest.mark.slow
def test_many_mutated_rows_are_read_or_refused(rows: Rows) -> None:
    assert play(rows, 2000, seed=2).total() == 2000


HOSTILE = {
    "reward": 10**400,
    "duration_seconds": -(10**400),
    "env_snapshot": "\u00e9",
    "task": {"$array": ["<f8", [10**9, 10**9], ""]},
}


@pytest.mark.parametrize("field", HOSTILE)
def test_hostile_field_costs_only_its_own_line(field: str, rows: Rows, tmp_path: Path) -> None:
    _, row = rows[0]
    lines = [row, {**row, "episode_id": "other", field: HOSTILE[field]}]
    (tmp_path / "trajectories.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    report = verify_file(tmp_path)
    assert report.trajectories == 1
    assert [one.line for one in report.problems if one.rule == "readable"] == [2]
    done = run_envkit("report", tmp_path, "--out", tmp_path / "report.html")
    assert done.code == 0, done.err
    assert "line 2" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_numbers_beyond_any_float_are_left_out_of_metrics(rows: Rows, tmp_path: Path) -> None:
    file, row = rows[0]
    row = json.loads(json.dumps(row))
    row["turns"][0]["info"]["reward_terms"] = {"huge": 10**400, "fine": 0.5}
    row["metadata"]["agent"] = {"sequences": {"main": 10**400}}
    assert read_everywhere(file, json.dumps(row).encode() + b"\n")


@pytest.mark.parametrize("segment", [0, 10**30, -1, 99])
def test_branch_outside_the_ledger_makes_its_line_unreadable(segment: int, rows: Rows) -> None:
    file, row = next(entry for entry in rows if "branches" in entry[1])
    row = json.loads(json.dumps(row))
    row["branches"][0]["segment"] = segment
    assert not read_everywhere(file, json.dumps(row).encode() + b"\n")
    row = {**row, "segments": [], "branches": row["branches"][1:]}
    assert not read_everywhere(file, json.dumps(row).encode() + b"\n")


@pytest.mark.parametrize("name", ["trajectories.jsonl", "images"])
def test_commands_write_through_no_link_of_a_run_folder(name: str, tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    real_run(run)
    (run / name).rename(outside)
    (run / name).symlink_to(outside)
    if outside.is_dir():
        (outside / "empty.png").touch()
    else:
        outside.write_text("{}\nnotes")
    before = bytes_of(tmp_path)
    again = ("canary-v0", "--policy", "oracle", "--overwrite", "-n", 1, "--out", run)
    for options in (("--resume", run), again):
        done = run_envkit("rollout", *options, "-q")
        assert done.code == 1
        assert f"{name} is a symbolic link" in done.err
        assert bytes_of(tmp_path) == before


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, link_to_device])
def test_reports_wait_for_no_pipe_and_read_no_device(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    run = real_run(tmp_path / "run")
    for path in (run / "metrics.json", *(run / "images").glob("*.png")):
        path.unlink()
        make(path)
    for command in ("report", "verify", "view"):
        done = run_envkit(command, run)
        assert done.code == (command == "verify"), done.err


def test_deeply_nested_row_is_refused_as_a_task(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("{}\n" + "[" * 200_000)
    with pytest.raises(DatasetError, match="line 2 is not valid JSON"):
        read_tasks(file)


@pytest.mark.parametrize("value", [1e999, "x", None, [10**400], True])
@pytest.mark.parametrize("name", ["group", "member", "siblings"])
def test_resume_refuses_a_place_that_is_not_an_integer(
    name: str, value: object, tmp_path: Path
) -> None:
    line = {"episode_id": "a", "env_id": "a", "seed": None, "group_id": None,
            "stop_reason": "terminated", "initial_observation_hash": None,
            "metadata": {"group": 0, "member": 0, "siblings": 1, name: value}}  # fmt: skip
    RunFolder.create(tmp_path, {"group_size": 1}).close()
    (tmp_path / "trajectories.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(StorageError, match=f"{name} must be an integer"):
        RunFolder.resume(tmp_path)


def test_resume_and_merge_leave_files_with_foreign_names(tmp_path: Path) -> None:
    run = real_run(tmp_path / "run")
    odd = run / "images" / "\udcff\n.png"
    odd.touch()
    assert run_envkit("rollout", "--resume", run, "-q").code == 0
    assert odd.exists()


@pytest.mark.slow
def test_commands_read_hostile_folders(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "scripts" / "campaigns" / "run_files.py"
    run_python(script, "--folders", 5, "--seed", 3)
