"""The real package verifiers, or no test of this folder at all."""

import importlib.util
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent
collect_ignore_glob: list[str] = ["environments/*"]
if (
    importlib.util.find_spec("verifiers") is None
):  # `make contract-verifiers` provides an environment with it
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library and its tool servers find the environments of this folder by their names."""
    folder = str(HERE / "environments")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
