"""The runs and documents of a folder: which are read, and what the table of runs shows."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from fakes.stored_runs import stored

from envkit.metrics import aggregate
from envkit.trajectory import load
from envkit.trajectory.storage import FILE_NAME
from envkit.viewer.documents import read_document
from envkit.viewer.folder import Folder
from envkit.viewer.library import Library
from envkit.viewer.live_run import LiveRun
from envkit.viewer.summary import flat, summary


def settle(library: Library) -> None:
    """Step until everything that the folder holds now was read."""
    library._next_scan = 0.0
    deadline = time.monotonic() + 60
    library.step()
    while any(library._is_wanted(run) for run in library._runs.values()):
        library.step()
        assert time.monotonic() < deadline


def test_library_reads_every_run_and_sees_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.viewer.library._SCAN_S", 0.0)
    stored(tmp_path / "a")
    library = Library(Folder(tmp_path))
    settle(library)
    assert [(run["name"], run["state"], run["episodes"]) for run in library.overview()["runs"]] == [
        ("a", "complete", 4)
    ]
    version = library.version
    stored(tmp_path / "b", 2)
    (tmp_path / "c").mkdir()
    settings = {"env_id": "canary-v0", "episodes": 8, "engine": {"policy": "oracle"}}
    (tmp_path / "c" / "run.json").write_text(json.dumps({"settings": settings}))
    settle(library)
    assert library.version > version
    runs = {run["name"]: run for run in library.overview()["runs"]}
    assert (runs["b"]["episodes"], runs["c"]["episodes"], runs["c"]["expected"]) == (2, 0, 8)
    assert (runs["c"]["environments"], runs["c"]["policy"]) == (["canary-v0"], "oracle")
    assert runs["c"]["settings"]["engine.policy"] == "oracle"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"group_size": 2, "shard": "0/3"}, 4),
        ({"group_size": 2, "shard": "1/3"}, 2),
        ({"group_size": 0, "shard": "1/3"}, 8),
        ({"group_size": "two", "shard": "1/3"}, 8),
        ({"group_size": 2, "shard": "3/3"}, 8),
        ({"group_size": 2, "shard": {"index": []}}, 8),
        ({"shard": "1/3"}, 8),
    ],
)
def test_library_expects_only_the_episodes_of_a_shard(
    tmp_path: Path, more: dict[str, Any], expected: int
) -> None:
    (tmp_path / "part").mkdir()
    settings = {"env_id": "canary-v0", "episodes": 8, **more}
    (tmp_path / "part" / "run.json").write_text(json.dumps({"settings": settings}))
    library = Library(Folder(tmp_path))
    settle(library)
    (run,) = library.overview()["runs"]
    assert run["expected"] == expected


def test_overview_has_no_later_version_than_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "a")
    library = Library(Folder(tmp_path))
    settle(library)

    def summary_then_a_new_run(run: LiveRun) -> dict[str, Any]:
        made = summary(run)
        stored(tmp_path / "b")
        settle(library)  # what the reading thread may do at any moment
        return made

    monkeypatch.setattr("envkit.viewer.library.summary", summary_then_a_new_run)
    shown = library.overview()
    assert [run["name"] for run in shown["runs"]] == ["a"]
    assert shown["version"] < library.version, "a page would never ask for the new run"


def test_library_drops_runs_beyond_its_memory_and_rereads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.viewer.library.MAX_BYTES", 1)
    for name in ("a", "b", "c"):
        stored(tmp_path / name)
    library = Library(Folder(tmp_path))
    settle(library)
    counts = {run["name"]: run["episodes"] for run in library.overview()["runs"]}
    assert counts == {"a": 4, "b": 4, "c": 4}
    held = [run for name in counts if (run := library._runs[name]).count]
    assert len(held) == 1
    gone = next(name for name in counts if not library._runs[name].count)
    run = library.run(gone)
    assert run is not None
    settle(library)
    assert run.count == 4


def ended(folder: Path, *, episodes: int = 4, expected: int = 4) -> Path:
    """Write a run whose rollout wrote its metrics after its last line; return its file."""
    file = stored(folder, episodes)
    settings = {"env_id": "canary-v0", "episodes": expected}
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    (folder / "metrics.json").write_text(json.dumps(aggregate(load(folder))))
    return file


def test_library_shows_large_runs_that_have_ended_without_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        ended(tmp_path / name)
    whole = Library(Folder(tmp_path))
    settle(whole)
    monkeypatch.setattr("envkit.viewer.library._UNASKED_BYTES", 0)
    opened: list[str] = []

    class Watched(Folder):
        def open(self, path: Path) -> BinaryIO:
            opened.append(path.name)
            return super().open(path)

    monkeypatch.setattr("envkit.viewer.library._SCAN_S", 3600.0)
    library = Library(Watched(tmp_path))
    library.step()
    assert not library.step()
    assert FILE_NAME not in opened
    same = ("name", "state", "episodes", "expected", "environments", "solved", "faults", "unread",
            "turns", "seconds", "stops", "tokens", "settings")  # fmt: skip
    for shown, read in zip(library.overview()["runs"], whole.overview()["runs"], strict=True):
        wanted = {**{key: read[key] for key in same}, "environments": ["canary-v0"]}
        wanted["solved"] = {**read["solved"], "low": None, "high": None, "by": None}
        assert {key: shown[key] for key in same} == wanted
        assert shown["reward"]["mean"] == pytest.approx(read["reward"]["mean"])
        assert (shown["reward"]["top"], shown["reward"]["bottom"]) == (
            read["reward"]["top"],
            read["reward"]["bottom"],
        )
        assert (shown["reward"]["low"], shown["spark"], shown["cells"]) == (None, [], [])
    run = library.run("b")
    assert run is not None
    settle(library)
    assert (run.count, library._runs["a"].count) == (4, 0)
    assert library.overview()["runs"][1]["reward"] == whole.overview()["runs"][1]["reward"]


@pytest.mark.parametrize("what", ["grew", "locked", "more", "foreign", "without settings"])
def test_library_reads_a_large_run_whose_metrics_may_be_of_other_episodes(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.viewer.library._UNASKED_BYTES", 0)
    file = ended(tmp_path / "a", expected=3 if what == "more" else 4)
    match what:
        case "grew":
            os.utime(file, (time.time() + 60, time.time() + 60))
        case "locked":
            found = file.stat()
            place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
            monkeypatch.setattr(
                "envkit.viewer.library.locked_files", lambda: frozenset({"FLOCK", place})
            )
        case "foreign":
            (tmp_path / "a" / "metrics.json").write_text('{"episodes": "four", "step": 3}')
        case "without settings":
            (tmp_path / "a" / "run.json").unlink()
        case _:
            pass
    library = Library(Folder(tmp_path))
    settle(library)
    assert library._runs["a"].count == 4


def test_library_shows_any_metrics_without_failing(tmp_path: Path) -> None:
    ended(tmp_path / "a")
    metrics = dict.fromkeys(aggregate(load(tmp_path / "a")), 1.7e308)
    metrics |= {"success/episodes": -9, "success/rate": 1e308, "stop/terminated": -3, "episodes": 4}
    (tmp_path / "a" / "metrics.json").write_text(json.dumps(metrics))
    library = Library(Folder(tmp_path))
    library.step()
    (run,) = library.overview()["runs"]
    assert library._runs["a"].is_summed
    assert (run["episodes"], run["unread"]["of"], run["solved"]["count"]) == (4, 0, 0)
    json.dumps(run, allow_nan=False)


def test_library_shows_no_metrics_of_a_run_whose_file_is_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envkit.viewer.library._UNASKED_BYTES", 0)
    file = ended(tmp_path / "a")
    moved = file.rename(tmp_path / "elsewhere.jsonl")
    file.symlink_to(moved)
    library = Library(Folder(tmp_path))
    settle(library)
    (run,) = library.overview()["runs"]
    assert (run["state"], run["episodes"]) == ("stopped", 0)


def test_library_makes_a_row_anew_only_when_its_run_grew_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "a", 30)
    made: list[int] = []

    def counted(run: LiveRun) -> dict[str, Any]:
        made.append(run.count)
        return summary(run)

    monkeypatch.setattr("envkit.viewer.library.summary", counted)
    library = Library(Folder(tmp_path))
    library.step()
    run = library._runs["a"]
    clock = iter(range(10**9))
    monkeypatch.setattr("envkit.viewer.growing_file.time.monotonic", lambda: next(clock) / 1e9)
    while run.is_behind:
        run.refresh(1.5e-9)  # one line
        assert [row["episodes"] for row in library.overview()["runs"]] == [run.count]
    assert made[-1] == 30
    assert made[:5] == [1, 2, 3, 4, 6]
    assert len(made) < 16


def test_library_lists_locks_once_for_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        stored(tmp_path / name)
    library = Library(Folder(tmp_path))
    settle(library)
    listings: list[None] = []

    def listed() -> frozenset[str]:
        listings.append(None)
        return frozenset()

    monkeypatch.setattr("envkit.viewer.library.locked_files", listed)
    monkeypatch.setattr("envkit.viewer.growing_file.locked_files", listed)
    library._next_scan = 0.0
    library.step()
    assert len(listings) == 1


def test_settings_of_any_shape_become_one_level_of_text() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"in": deep}
    given = {"a": {"b": {"c": 1.5, "d": []}, "e": None}, "f": "text", "g": float("nan"), "h": deep}
    shown = flat(given)
    assert shown | {"h.in.in.in.in.in.in.in.in": ""} == {
        "a.b.c": "1.5", "a.b.d": "[]", "a.e": "null", "f": "text", "g": "NaN",
        "h.in.in.in.in.in.in.in.in": "",
    }  # fmt: skip
    assert len(flat({str(n): "x" * 9999 for n in range(9999)})) == 500


def test_document_is_known_by_its_shape() -> None:
    line = {"name": "leaks", "verdict": "fail", "value": 0.3, "detail": "d", "evidence": ["e", 1]}
    certificate = {"target": "x-v0", "episodes": 4, "seed": 0, "is_complete": True,
                   "passed": False, "lines": [line, "hostile"]}  # fmt: skip
    found = read_document(json.dumps(certificate).encode())
    assert found is not None
    assert (found["kind"], found["target"], found["passed"]) == ("certificate", "x-v0", False)
    assert found["lines"][0] == {**line, "evidence": ["e", "1"]}
    assert read_document(b'{"lines": []}') is read_document(b"[1]") is read_document(b"{") is None
    assert read_document(b"[" * 100_000) is None


def test_document_of_an_evaluation_has_intervals_and_no_hostile_values() -> None:
    estimate = {"mean": 0.5, "interval": {"low": 0.2, "high": 0.9}, "tasks": 3}
    passes = {"1": estimate, "2": 7}
    line = {"env_id": "x-v0", "tag": None, "value": None, "tasks": 3, "episodes": "many",
            "success": estimate, "reward": {"mean": float("inf")}, "pass_at": passes}  # fmt: skip
    document = {
        "schema": 1,
        "counting": {},
        "is_complete": False,
        "lines": [line],
        "runs": {"a": {}},
    }
    found = read_document(json.dumps(document).encode())
    assert found is not None
    assert list(found["runs"]) == ["a"]
    (shown,) = found["lines"]
    assert shown["success"] == {"mean": 0.5, "interval": {"low": 0.2, "high": 0.9}}
    assert (shown["reward"]["mean"], shown["episodes"]) == (None, None)
    assert [one["mean"] for one in shown["pass_at"].values()] == [0.5, None]
    json.dumps(found, allow_nan=False)


def test_metrics_of_all_runs_have_the_same_names_and_no_infinities(tmp_path: Path) -> None:
    for name, more in (("a", {"step": 5, "loss": 0.25}), ("b", {"loss": math.nan, "text": "x"})):
        stored(tmp_path / name)
        (tmp_path / name / "metrics.json").write_text(json.dumps(more))
    library = Library(Folder(tmp_path))
    settle(library)
    found = library.metrics()
    values = {
        run: dict(zip(found["names"], own, strict=True)) for run, own in found["runs"].items()
    }
    assert (values["a"]["step"], values["a"]["loss"], values["a"]["episodes"]) == (5, 0.25, 4)
    assert (values["b"]["step"], values["b"]["loss"], values["b"]["episodes"]) == (None, None, 4)
    assert "text" not in found["names"]
    json.dumps(found, allow_nan=False)


def test_metrics_of_a_run_are_bounded(tmp_path: Path) -> None:
    stored(tmp_path / "a")
    many = {f"{'n' * 2_000}{number}": number for number in range(5_000)}
    (tmp_path / "a" / "metrics.json").write_text(json.dumps({**many, "step": 1}))
    library = Library(Folder(tmp_path))
    settle(library)
    names = library.metrics()["names"]
    assert len(names) <= 400
    assert max(map(len, names)) <= 500


def test_row_says_how_long_the_run_took(tmp_path: Path) -> None:
    file = stored(tmp_path / "a")
    metrics = aggregate(load(file), elapsed_seconds=20.0)
    (tmp_path / "a" / "metrics.json").write_text(json.dumps(metrics))
    library = Library(Folder(tmp_path))
    settle(library)
    (run,) = library.overview()["runs"]
    assert run["elapsed"] == pytest.approx(20.0)
