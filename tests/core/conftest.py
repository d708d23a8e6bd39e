"""Fixtures of the tests of the core."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fakes.envs import register_toys
from fakes.models import tiny_model_dir

from envkit import registration


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]  # used by name
    """Put the registries back after each test: they belong to the process."""
    registries: list[dict[str, Any]] = [
        gymnasium.registry, registration._registered, registration._plugins,
    ]  # fmt: skip
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.fixture
def toys_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of the test's own, with the toy environments known."""
    monkeypatch.chdir(tmp_path)
    register_toys()
    return tmp_path


@pytest.fixture(scope="session")
def model() -> Path:
    """A folder with a tiny model that sees images."""
    return tiny_model_dir("qwen2_5_vl")
