"""The real package verifiers, or no test of this folder at all."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
collect_ignore_glob: list[str] = ["environments/*"]
if (
    importlib.util.find_spec("verifiers") is None
):  # `make contract-verifiers` has an environment with it
    collect_ignore_glob.append("test_*.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let verifiers and what is below it warn: only our own warnings are errors."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.verifiers)
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `load_environment` find the environments of this folder by their names."""
    monkeypatch.syspath_prepend(str(HERE / "environments"))
