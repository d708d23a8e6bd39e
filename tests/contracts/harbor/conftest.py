"""Harbor's real package and a sandbox, or no test of this folder at all."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob: list[str] = []
if (
    importlib.util.find_spec("harbor") is None
):  # `make contract-harbor` provides an environment with it
    collect_ignore_glob.append("test_*.py")


@pytest.fixture
def make_env(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make environments over the folders of `tmp_path / "tasks"`, closed at the end."""
    from envkit_harbor import HarborEnv

    made: list[HarborEnv] = []

    def make(**kwargs: Any) -> HarborEnv:
        kwargs = {"tasks": str(tmp_path / "tasks"), "command_seconds": 20.0, **kwargs}
        made.append(HarborEnv(**kwargs))
        return made[-1]

    yield make
    for env in made:
        env.close()


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return the folder that `make_env` plays."""
    (tmp_path / "tasks").mkdir()
    return tmp_path / "tasks"
