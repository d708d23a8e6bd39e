"""verl's real classes, or no test of this folder at all."""

import importlib
import importlib.util
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from fakes.verl_worker import Bench

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("verl") is None:  # `make contract-verl` provides an environment with it
    collect_ignore_glob.append("test_*.py")
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl, ray and torch warn on import
        importlib.import_module("fakes.verl_worker")


@pytest.fixture(params=["v0", "v1"])
def version(request: pytest.FixtureRequest) -> str:
    """verl's two workers."""
    return request.param


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> "AsyncIterator[Callable[..., Bench]]":
    """Make benches; what they share is closed after the test."""
    from fakes.envs import register_toys
    from fakes.verl_envs import register_verl_envs
    from fakes.verl_worker import Bench

    import envkit_verl

    register_toys()
    register_verl_envs()

    def make(version: str, policy: Any, **options: Any) -> Bench:
        return Bench(version, tmp_path, policy, **options)

    yield make
    await envkit_verl.aclose_shared()
