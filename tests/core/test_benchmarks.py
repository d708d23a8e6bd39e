"""Every benchmark of `make bench` starts, and ends at its smallest size."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.needs import BROWSER

ROOT = Path(__file__).parents[2]
SMALLEST = {
    "browser": "--steps 2 --resets 1",
    "delta": "--rounds 1",
    "desktop": "--steps 4",
    "desktop_rollout": "--episodes 2 --concurrency 1",
    "engine": "--conversations 2 --group 1 --turns 1 --prompt-tokens 64 --observation-tokens 16 "
    "--reply-tokens 4 --rounds 1",
    "geo3k": "--problems 4 --rounds 1",
    "grading": "--pieces 1",
    "import": "--times 1",
    "judge": "--rounds 2 --requests 4",
    "live_view": "--episodes 4 --concurrency 2 --pairs 1",
    "long_episode": "--turns 24 --words 30",
    "loop": "--episodes 4 --mean-s 0.01",
    "projection": "--rounds 1",
    "report": "--episodes 60 --opened 1",
    "search": "--queries 4",
    "stalls": "--engine http --episodes 4 --max-s 0.1",
}
NEEDS_A_BROWSER = {"browser", "report"}


def test_benchmarks_of_make_bench_have_a_smallest_size() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nbench:")[2]
    listed = re.search(r"for name in ([a-z0-9_ ]+); do", recipe)
    assert listed is not None
    assert set(listed[1].split()) <= set(SMALLEST)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_benchmark_runs_at_its_smallest_size(name: str, tmp_path: Path) -> None:
    if name in NEEDS_A_BROWSER:
        BROWSER.require()
    script, result = ROOT / "benchmarks" / f"{name}.py", tmp_path / "result.json"

    done = subprocess.run(
        [sys.executable, str(script), *SMALLEST[name].split(), "--json", str(result)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=600,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )

    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), done.stderr  # 1: a goal was missed
    assert json.loads(result.read_text(encoding="utf-8"))
