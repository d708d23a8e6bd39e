"""Fixtures of tests that stop, damage and resume runs: a folder, and a finished run in it.

A test module names this file in `pytest_plugins`.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from fakes.hostile_runs import RUN, RunEnv, register_run_env, rollout


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, with the environment known and nothing planned."""
    monkeypatch.chdir(tmp_path)
    Path("temporary").mkdir()  # episodes that cannot be stored in the run may be kept there
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    register_run_env()
    RunEnv.arm(None)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play a run once; tests copy it, and a run that was moved can be resumed."""
    register_run_env()
    folder = tmp_path_factory.mktemp("whole") / "run"
    shown = rollout(out=str(folder))
    assert shown.code == 0, shown.err
    return folder


@pytest.fixture
def run(own_folder: None, whole_run: Path) -> Path:
    """A finished run of its own, in `./run`."""
    shutil.copytree(whole_run, RUN)
    return RUN
