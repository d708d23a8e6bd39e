"""Settings of the whole test run, made before torch is imported."""

import contextlib
import gc
import os
from collections.abc import Generator
from typing import Final

import pytest
from fakes.halves import add_half_option, halve
from fakes.skips import SkippedTests, add_options

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spin-waiting threads starve a shared machine
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Imported before a command calls gc.freeze: afterwards, hypothesis considers a plugin's random
# generators lost and warns at the end of a run without property tests.
with contextlib.suppress(ImportError):
    from hypothesis import HealthCheck, settings

    # `make test` draws a quarter of the examples, `make test-slow` all of them. Neither profile
    # measures time: tests share their cores.
    settings.register_profile(
        "thorough", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("fast", settings.get_profile("thorough"), max_examples=25)
    settings.load_profile("thorough")

# A plain import, such as nbformat's, takes five seconds in each worker; this one is reused.
with contextlib.suppress(ImportError):
    from envkit.json_schema import jsonschema

    jsonschema()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the test run."""
    add_options(parser)
    add_half_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """End the run with a table of what was skipped."""
    config.pluginmanager.register(SkippedTests(config), "skipped-tests")


_HEAVY: Final = frozenset({"gemma3", "glm4moe", "gpt-oss", "mistral-nemo"})
"""Tokenizers that take about a second or more to load, in every process that tests share."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from a million objects of imports and collected tests.

    It took a quarter of the time in which tests are collected, and then half a second per full
    collection, which some tests ask for.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before "-m" looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests of heavy tokenizers to the slow run, which may have half of the cases."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        values = () if callspec is None else callspec.params.values()
        if any(isinstance(value, str) and value in _HEAVY for value in values):
            item.add_marker(pytest.mark.slow)
    halve(config, items)
