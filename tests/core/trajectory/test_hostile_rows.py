"""Whatever a line of a run file holds, it fails alone and without a traceback."""

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.hostile_rows import mutated, read_everywhere, real_rows

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
