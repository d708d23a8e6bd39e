"""The real package verifiers, or no test of this folder at all."""

import importlib.util
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
    """Let `load_environment` find the environments of this folder by their names."""
    monkeypatch.syspath_prepend(str(HERE / "environments"))
