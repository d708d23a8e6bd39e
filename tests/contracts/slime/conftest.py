"""Fixtures of tests that run inside slime's own classes."""

import importlib.util
import sys
import types
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
import pytest_asyncio
from fakes.envs import register_toys
from fakes.slime_run import register_broken


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, with its reason, what the installed trainers cannot run."""
    for name, why in (
        ("slime", "slime is not importable: name a checkout of its repository in SLIME_SRC"),
        ("miles", "miles is not importable: install miles-rl, or name a checkout in MILES_SRC"),
    ):
        if importlib.util.find_spec(name) is not None:
            continue
        for item in items:
            if f"needs_{name}" in item.fixturenames:  # pyright: ignore[reportAttributeAccessIssue]
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def needs_slime() -> Generator[None]:
    """Give a test a fresh slime: no earlier state, quick aborts, each model loaded once."""
    # slime imports ray for its actors alone; its own contract tests stand a module in for it too.
    sys.modules.setdefault("ray", types.ModuleType("ray"))
    import slime.backends.sglang_utils.server_control as control
    import slime.rollout.sglang_rollout as upstream
    from slime.utils import http_utils
    from slime.utils.misc import SingletonMeta

    register_toys()
    register_broken()
    patch = pytest.MonkeyPatch()
    patch.setattr(upstream, "load_tokenizer", _cached(upstream.load_tokenizer))
    patch.setattr(upstream, "load_processor", _cached(upstream.load_processor))
    retry = control.abort_server_until_idle
    patch.setattr(control, "abort_server_until_idle", lambda url: retry(url, retry_interval=0.05))  # pyright: ignore[reportArgumentType]
    patch.setattr(http_utils, "_http_client", None)  # it belongs to the loop that first used it
    SingletonMeta._instances.clear()
    yield
    _close_on_slimes_loop()
    SingletonMeta._instances.clear()
    patch.undo()


@pytest_asyncio.fixture(autouse=True)
async def closed_runtimes() -> AsyncGenerator[None]:
    """Close what the adapter keeps for the test's own event loop."""
    yield
    await _close()


def _close_on_slimes_loop() -> None:
    from slime.utils import async_utils

    if async_utils.async_loop is not None:
        async_utils.run(_close())


async def _close() -> None:
    """Close what the adapter, and slime, keep for the running event loop."""
    from envkit_slime import close_runtimes

    await close_runtimes()
    http_utils = sys.modules.get("slime.utils.http_utils")
    client: Any = None if http_utils is None else http_utils._http_client
    if client is not None:
        with suppress(RuntimeError):  # it belongs to the other loop
            await client.aclose()


_kept: dict[Any, Any] = {}


def _cached(load: Any) -> Any:
    return _kept.setdefault(load.__name__, cache(load))
