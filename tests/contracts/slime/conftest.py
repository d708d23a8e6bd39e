"""Fixtures of tests that run inside slime's own classes."""

import importlib.util
import inspect
from collections.abc import AsyncGenerator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fakes.envs import register_toys
from fakes.skips import ADD_IT_WITH
from fakes.slime_run import register_broken


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, with its reason, what the installed trainers cannot run."""
    for name, is_there, missing, command in (
        ("slime", _has("slime"), "slime", "SLIME_SRC=CHECKOUT make contract-slime"),
        ("miles", _has("miles"), "miles", "MILES_SRC=CHECKOUT make contract-slime"),
        (
            "miles_main",
            _has("miles", "ray/rollout/train_data_conversion.py"),
            "a miles with a conversion",
            "MILES_SRC=CHECKOUT make contract-slime",
        ),
    ):
        if is_there:
            continue
        for item in items:
            if f"needs_{name}" in item.fixturenames:  # pyright: ignore[reportAttributeAccessIssue]
                item.add_marker(pytest.mark.skip(reason=f"{missing}{ADD_IT_WITH}{command}"))


def _has(package: str, file: str = "") -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    return any((Path(root) / file).exists() for root in spec.submodule_search_locations or ())


@pytest_asyncio.fixture
async def needs_slime(request: pytest.FixtureRequest) -> AsyncGenerator[None]:
    """Give a test a fresh slime: no earlier state, quick aborts, each model loaded once."""
    from fakes.trainer_stubs import install

    install()
    import slime.backends.sglang_utils.server_control as control
    import slime.rollout.sglang_rollout as upstream
    from slime.utils import async_utils, http_utils
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
    if inspect.iscoroutinefunction(request.function):
        await _close()
    else:  # the test ran slime's own loop, in a thread
        async_utils.run(_close())
    SingletonMeta._instances.clear()
    patch.undo()


async def _close() -> None:
    """Close what the adapter, and slime, keep for the running event loop."""
    from slime.utils import http_utils

    from envkit_slime import close_runtimes

    await close_runtimes()
    client: Any = http_utils._http_client
    if client is not None:
        await client.aclose()


@pytest_asyncio.fixture
async def needs_miles() -> AsyncGenerator[None]:
    """Register the toys, and close what the adapter keeps."""
    from fakes.trainer_stubs import install

    from envkit_slime import close_runtimes

    install()
    register_toys()
    register_broken()
    yield
    await close_runtimes()


@pytest.fixture
def needs_miles_main(needs_miles: None) -> None:
    """Ask for miles' repository: its release converts samples elsewhere."""


_kept: dict[Any, Any] = {}


def _cached(load: Any) -> Any:
    return _kept.setdefault(load.__name__, cache(load))
