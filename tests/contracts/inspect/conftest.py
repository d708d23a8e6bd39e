"""Inspect's real package, or no test of this folder at all."""

import importlib.util

import pytest

import envkit

collect_ignore_glob: list[str] = []
if (
    importlib.util.find_spec("inspect_ai") is None
):  # `make contract-inspect` provides an environment with it
    collect_ignore_glob.append("test_*.py")


@pytest.fixture(autouse=True)
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    """State a version: the environments of contract tests import envkit from its checkout."""
    monkeypatch.setitem(vars(envkit), "__version__", "0")
