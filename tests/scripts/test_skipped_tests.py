"""The table of skipped tests at the end of a run, and the list that another run takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.skips import SHOWN, table

ROOT = Path(__file__).parents[2]
CONFTEST = """
from fakes.skips import SkippedTests, add_options
pytest_addoption = add_options
def pytest_configure(config):
    config.pluginmanager.register(SkippedTests(config), "skipped-tests")
"""
TESTS = """
import os, pytest
absent = os.environ.get("IS_BARE") == "1"
@pytest.mark.skipif(absent, reason="a thing is missing; add it with: make thing")
@pytest.mark.parametrize("value", ["a::b", "c d"])
def test_with_the_thing(value):
    pass
def test_plain():
    pass
def test_within():
    if absent:
        pytest.skip("a thing is missing; add it with: make thing")
@pytest.mark.skip(reason="broken")
def test_skipped_everywhere():
    pass
"""
WHOLE_FILE = """
import os, pytest
if os.environ.get("IS_BARE") == "1":
    pytest.skip("other is missing; add it with: make other", allow_module_level=True)
def test_one():
    pass
def test_two():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_parts.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text(WHOLE_FILE)
    (tmp_path / "test_other.py").write_text("raise RuntimeError('must not be imported')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(project: Path, *arguments: str, bare: bool) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    variables = {**kept, "PYTHONPATH": str(ROOT / "tests"), "IS_BARE": str(int(bare))}
    # Only the plugin under test, and xdist.
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *arguments],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("--numprocesses", "2"), marks=pytest.mark.slow)]
)
def test_skipped_tests_of_one_run_are_the_only_ones_of_the_next(
    project: Path, workers: tuple[str, ...]
) -> None:
    bare = run(project, "--ignore=test_other.py", "--write-skipped=a/b.json", *workers, bare=True)
    assert bare.returncode == 0, bare.stdout
    assert "skipped: 4 tests, 1 file" in bare.stdout
    assert "3 tests  a thing  make thing" in bare.stdout
    assert "1 file   other    make other" in bare.stdout
    written = json.loads((project / "a" / "b.json").read_text())["skipped"]
    assert set(written) == {
        "test_parts.py::test_with_the_thing[a::b]",
        "test_parts.py::test_with_the_thing[c d]",
        "test_parts.py::test_within",
        "test_parts.py::test_skipped_everywhere",
        "test_whole.py",
    }
    full = run(project, "--only-skipped=a/b.json", "--most-skipped=1", *workers, bare=False)
    assert full.returncode == 0, full.stdout
    assert "5 passed, 1 skipped" in full.stdout
    strict = run(project, "--only-skipped=a/b.json", "--most-skipped=0", *workers, bare=False)
    assert strict.returncode == 1, strict.stdout
    assert "at most 0 tests may be skipped or absent here" in strict.stdout
    assert "test_parts.py::test_skipped_everywhere: broken" in strict.stdout


def test_listed_test_that_does_not_exist_counts_as_skipped(project: Path) -> None:
    (project / "list.json").write_text(
        json.dumps({"skipped": {"test_parts.py::test_plain": "", "test_parts.py::test_gone": ""}})
    )
    found = run(project, "--only-skipped=list.json", "--most-skipped=0", bare=False)
    assert found.returncode == 1, found.stdout
    assert "does not exist here: test_parts.py::test_gone" in found.stdout


def test_list_that_cannot_be_read_is_a_usage_error(project: Path) -> None:
    found = run(project, "--only-skipped=none.json", bare=False)
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert "must name a file of --write-skipped" in found.stderr + found.stdout


def test_failing_run_stays_failed_and_writes_its_list(project: Path) -> None:
    (project / "test_bad.py").write_text("def test_bad():\n    assert False\n")
    found = run(project, "--ignore=test_other.py", "--write-skipped=list.json", bare=True)
    assert found.returncode == 1
    assert (project / "list.json").exists()


def test_table_has_few_lines_and_names_commands_first() -> None:
    reasons = {f"t.py::test_{number}": f"reason {number}" for number in range(30)}
    reasons["t.py::test_x"] = "a thing is missing; add it with: make thing"
    lines = table(reasons)
    assert len(lines) == SHOWN
    assert lines[0].split() == ["1", "test", "a", "thing", "make", "thing"]
    assert lines[-1].startswith("24 tests  24 other reasons")
