"""SkyRL's real classes, or no test of this folder at all."""

import importlib
import importlib.util
import sys
import typing
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fakes.skyrl_run import Run

collect_ignore_glob: list[str] = []
# `make contract-skyrl` provides an environment with it
if importlib.util.find_spec("skyrl") is None:
    collect_ignore_glob.append("test_*.py")
else:
    if sys.version_info < (3, 12):
        # skyrl/tinker/types.py uses typing.TypedDict in a pydantic model, which pydantic refuses
        # below 3.12. This process runs nothing but these tests.
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict  # pyright: ignore[reportAttributeAccessIssue]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SkyRL, ray and torch warn on import
        importlib.import_module("fakes.skyrl_run")


@pytest.fixture
def run() -> "Callable[..., Run]":
    """Make runs: a generator over a fake client, with SkyRL's own configuration."""
    from fakes.envs import register_toys
    from fakes.skyrl_envs import ObeyEnv, register_skyrl_envs
    from fakes.skyrl_run import Run

    register_toys()
    register_skyrl_envs()
    ObeyEnv.flaked.clear()

    def make(*words: Any, **options: Any) -> "Run":
        return Run(*words, **options)

    return make
