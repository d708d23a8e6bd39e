"""Every benchmark runs at its tiny size, and `make bench` writes one table of them."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fakes.needs import BROWSER, CHROMIUM, DESKTOP, REASONING_GYM

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
BENCH = ROOT / "scripts" / "bench"
BENCHMARKS: dict[str, Any] = tomllib.loads((BENCH / "rows.toml").read_text(encoding="utf-8"))
NEEDS = {
    "browser": BROWSER,
    "grading": REASONING_GYM,
    "linux_desktop": DESKTOP,
    "miniwob_oracle": BROWSER,
    "report": CHROMIUM,
    "ui": CHROMIUM,
}
PARTS = ("campaign", "kill", "signals", "trouble", "isolated", "long", "soak", "wide", "loop")
STARTED_BY_OTHERS = {"reliability_server"}
COMPARE_TIMES = {"isolated", "soak", "wide", "loop"}
"""Parts that a busy machine may end with status 1; the others must lose nothing."""


def scripts() -> dict[str, str]:
    """Return the text of each program of the folder by its name."""
    found = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.py")}
    return {
        name: text
        for name, text in found.items()
        if "\nif __name__ ==" in text and name not in STARTED_BY_OTHERS
    }


def bench(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the program of `make bench` with its results in a folder."""
    command = [sys.executable, str(BENCH / "run.py"), "--out", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcomes(folder: Path) -> dict[str, Any]:
    """Return how each benchmark ended."""
    return json.loads((folder / "table.json").read_text(encoding="utf-8"))["outcomes"]


def test_every_benchmark_has_a_tiny_size() -> None:
    without = sorted(name for name, text in scripts().items() if "sized(" not in text)

    assert not without, f"give these a tiny size, `harness.sized`: {without}"


def test_every_benchmark_is_in_the_table_and_so_has_a_tiny_test() -> None:
    known = {entry.get("script", name) for name, entry in BENCHMARKS.items()} | {"reliability"}

    contests = {file.stem.removesuffix("_contest") for file in FOLDER.rglob("*_contest.py")}
    missing = sorted((set(scripts()) - known) | (contests - set(BENCHMARKS)))

    assert not missing, f"give these a row in scripts/bench/rows.toml: {missing}"
    assert known <= set(scripts())


def test_parts_of_reliability_have_a_tiny_test() -> None:
    text = scripts()["reliability"].partition("PARTS = (")[2].partition(")")[0]

    assert set(PARTS) == {part.strip(' "') for part in text.split(",")}


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_runs_at_its_tiny_size(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        NEEDS[name].require()

    bench(tmp_path, "--tiny", "--only", name).communicate()

    outcome = outcomes(tmp_path)[name]
    if "environment" in BENCHMARKS[name] and "is not built" in outcome["reason"]:
        pytest.skip(outcome["reason"])
    log = (tmp_path / f"{name}.log").read_text(encoding="utf-8")
    assert outcome["rows"], (outcome["reason"], log[-4000:])


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_reliability_runs_at_its_tiny_size(part: str, tmp_path: Path) -> None:
    if part == "trouble" and os.geteuid() != 0:
        pytest.skip("only root can mount the full and the read-only disk")
    result = tmp_path / "result.json"
    command = [str(FOLDER / "reliability.py"), f"--{part}", "--tiny", "--json", str(result)]

    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)

    assert result.exists(), done.stderr
    assert json.loads(result.read_text(encoding="utf-8"))
    assert done.returncode == 0 or part in COMPARE_TIMES, done.stdout


@pytest.mark.slow
def test_bench_keeps_what_was_measured_before_an_interrupt(tmp_path: Path) -> None:
    process = bench(tmp_path, "--tiny", "--only", "geo3k", "engine")
    assert process.stdout is not None
    for line in process.stdout:
        if "engine" in line:
            break

    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()

    assert process.returncode == 130, said
    assert set(outcomes(tmp_path)) == {"geo3k"}
    assert "| geo3k |" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_bench_names_what_a_machine_lacks_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVKIT_TEST_CACHE", str(tmp_path / "empty"))

    process = bench(tmp_path, "--tiny", "--only", "verl", "geo3k")
    process.communicate()

    written = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert process.returncode == 0
    assert "not run: the environment of verl is not built" in written
    assert outcomes(tmp_path)["geo3k"]["rows"]


@pytest.mark.slow
def test_soak_without_a_finished_episode_fails_with_its_figures(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [str(FOLDER / "reliability.py"), *("--soak", "--minutes", "0", "--json", str(result))]

    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)

    assert "FAILED: episodes > 0" in done.stdout, done.stderr
    assert done.returncode == 1
    assert json.loads(result.read_text(encoding="utf-8"))["soak"]["episodes"] == 0
