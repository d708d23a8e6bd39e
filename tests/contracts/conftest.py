"""What the contract tests of most projects have in common."""

from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
WITHOUT: Final = {"slime"}
"""Folders whose tests carry their own markers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with their project, and let it warn: only our own warnings are errors."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        project = item.path.relative_to(HERE).parts[0]
        if project not in WITHOUT:
            item.add_marker(getattr(pytest.mark, project))
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error:.*envkit"))
