"""`--half`, which runs a part of the slow tests' cases."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
from fakes.halves import add_half_option, halve
pytest_addoption = add_half_option
def pytest_collection_modifyitems(config, items):
    halve(config, items)
"""
TESTS = """
import pytest
@pytest.mark.slow
@pytest.mark.parametrize("value", range(9))
def test_many(value):
    pass
@pytest.mark.slow
@pytest.mark.parametrize("value", ["one"])
def test_one(value):
    pass
@pytest.mark.slow
def test_plain():
    pass
@pytest.mark.parametrize("value", range(4))
def test_fast(value):
    pass
"""


def chosen(folder: Path, *arguments: str) -> set[str]:
    """Return the names of the tests that a run would take."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_cases.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: slow\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=True
    )
    return {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}


def test_half_keeps_the_larger_half_of_the_cases_and_every_other_test(tmp_path: Path) -> None:
    every = chosen(tmp_path)
    half = chosen(tmp_path, "--half", "a")

    assert len(every) == 15
    assert every - half <= {f"test_many[{n}]" for n in range(9)}
    assert len(half) == 11


def test_half_depends_on_the_seed_alone(tmp_path: Path) -> None:
    halves = [frozenset(chosen(tmp_path, "--half", f"{n}")) for n in range(6)]

    assert halves[0] == chosen(tmp_path, "--half", "0")
    assert len(set(halves)) > 1
    assert frozenset.union(*halves) == chosen(tmp_path)
