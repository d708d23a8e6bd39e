"""Inspect's real package, or no test of this folder at all."""

import importlib.util
from pathlib import Path

import pytest

import envkit

collect_ignore_glob: list[str] = []
if (
    importlib.util.find_spec("inspect_ai") is None
):  # `make contract-inspect` has an environment with it
    collect_ignore_glob.append("test_*.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Inspect and what is below it warn: only our own warnings are errors."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.inspect)
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    """State a version: the environments of contract tests import envkit from its checkout."""
    monkeypatch.setitem(vars(envkit), "__version__", "0")
