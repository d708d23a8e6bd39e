"""OpenEnv's real package, or no test of this folder at all."""

import importlib.util
from pathlib import Path

import pytest

collect_ignore_glob: list[str] = []
if (
    importlib.util.find_spec("openenv") is None
):  # `make contract-openenv` has an environment with it
    collect_ignore_glob.append("test_*.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let OpenEnv and what is below it warn: only our own warnings are errors."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.openenv)
            item.add_marker(pytest.mark.filterwarnings("ignore"))
