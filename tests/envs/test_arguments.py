"""Constructor arguments of every environment: a wrong one is named when it is built."""

import math
from pathlib import Path
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np
import pytest

import envkit
from envkit import registration
from envkit.env import Env
from envkit.errors import ConfigurationError, EnvkitError
from envkit.hints import fits
from envkit.registration import make, registry, spec
from envkit.signature import _hints
from envkit.tasks import ListSource, TaskSource
from envkit_canary import CanaryEnv
from envkit_search import SearchEnv

_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2.5, math.nan, math.inf, "", "abc", [], [1], [None], ["a"], [{}], {},
    {"a": 1}, {1: 2}, (1,), [[1]],
)  # fmt: skip
_INSTALLED = [env_id for env_id, entry in registry().items() if entry.distribution is not None]
_ARGUMENTS = [
    (env_id, name, hint)
    for env_id in _INSTALLED
    for name, hint in _hints(registration._creator(spec(env_id))).items()
    if name != "return"
]


@pytest.mark.parametrize(("env_id", "name", "hint"), _ARGUMENTS)
def test_argument_of_another_type_is_refused(env_id: str, name: str, hint: Any) -> None:
    for value in _VALUES:
        if fits(value, hint):
            continue
        with pytest.raises(ConfigurationError) as caught:
            make(env_id, **{name: value})
        assert f"{name} must be " in str(caught.value)
        assert f"got {value!r:.20}" in str(caught.value)
        assert env_id in str(caught.value)


def test_hints_of_every_environment_can_be_read() -> None:
    for env_id in _INSTALLED:
        known = registration.known_arguments(registration._creator(spec(env_id)))
        hinted = {name for one, name, _ in _ARGUMENTS if one == env_id}
        assert known <= hinted, env_id


@pytest.mark.parametrize(
    ("env_id", "arguments", "rule"),
    [
        ("search-v0", {"tasks": [{"question": "?", "answers": ["a"]}]}, "tasks must be TaskSource"),
        ("search-v0", {"tasks": "rows.jsonl"}, "tasks must be TaskSource or None"),
        ("search-v0", {"tasks": object()}, "tasks must be TaskSource or None"),
        ("search-v0", {"backend": object()}, "backend must be str or SearchBackend or None"),
        ("search-v0", {"hops": [1, "2"]}, "hops must be int or a list, each entry int or None"),
        ("search-v0", {"reward": {"exact": "1"}}, "reward must be str or a mapping"),
        ("search-v0", {"feedback_role": "system"}, "must be one of"),
        ("computer-use-v0", {"shaping": math.nan}, "shaping must be a finite number"),
        ("computer-use-v0", {"families": "form"}, "families must be a list"),
        ("computer-use-linux-v0", {"limits": {"memory_mb": 1}}, "limits must be Limits"),
        ("computer-use-page-v0", {"faults": {"rate": 1}}, "faults must be FaultPlan"),
        ("refine-v0", {"solvers": 10**9}, "solvers must be 1 to 64"),
        ("canary-v0", {"max_turns": 0}, "max_turns must be at least 1"),
        ("gymnasium-v0", {"max_turns": 0}, "max_turns must be at least 1"),
        ("openenv-v0", {"base_url": "http://127.0.0.1", "max_turns": 0}, "must be at least 1"),
        ("openenv-v0", {"base_url": "http://127.0.0.1", "max_sessions": 0}, "must be at least 1"),
        ("openenv-v0", {"base_url": "http://127.0.0.1", "tool_name": ""}, "a tool name must"),
        ("terminal-v0", {"families": []}, "families must name at least one"),
        ("terminal-v0", {"levels": []}, "at least one of"),
        ("canary-v0", {"render_mode": object()}, "render_mode must be str or None"),
        ("canary-v0", {"turns": object()}, "turns must be int"),
    ],
)
def test_argument_that_would_fail_later_is_refused(
    env_id: str, arguments: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        make(env_id, **arguments)


def test_inline_tasks_are_checked_when_the_environment_is_built() -> None:
    with pytest.raises(EnvkitError, match="needs the text 'goal'"):
        make("terminal-v0", tasks=[{"a": 1}])


def test_arguments_are_checked_without_make() -> None:
    for build in (
        lambda: SearchEnv(tasks=[{"question": "?"}]),  # pyright: ignore[reportArgumentType]
        lambda: gymnasium.make("envkit/search-v0", tasks=[{"question": "?"}]),
    ):
        with pytest.raises(ConfigurationError, match="tasks must be TaskSource or None, got"):
            build()
    with pytest.raises(ConfigurationError, match=r"turns must be int, got PosixPath"):
        CanaryEnv(turns=Path("x"))  # pyright: ignore[reportArgumentType]


def test_numpy_scalars_become_numbers_of_python() -> None:
    env = CanaryEnv(turns=np.int64(2), max_turns=np.int32(5))  # pyright: ignore[reportArgumentType]

    assert type(env.max_turns) is int
    with pytest.raises(ConfigurationError, match=r"turns must be int, got 2\.5"):
        CanaryEnv(turns=np.float64(2.5))  # pyright: ignore[reportArgumentType]


class _Device:
    pass


class _Shape(Protocol):
    sides: int


class _ForeignEnv(Env):
    def __init__(
        self,
        *,
        size: int = 3,
        name: str = None,  # noqa: RUF013  # pyright: ignore[reportArgumentType]  # as people write it
        device: str = "cpu",
        limit: float = math.inf,
        weights: np.ndarray[Any, Any] | None = None,
        mode: Literal["a", "b"] = "a",
        source: TaskSource | None = None,
        shape: _Shape | None = None,
        folder: Path | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)


def test_foreign_environment_is_checked_by_its_own_hints() -> None:
    for good in (
        {"name": None}, {"device": _Device()}, {"limit": math.inf}, {"weights": [1, 2]},
        {"shape": [1]}, {"folder": "x"}, {"source": ListSource([{}])}, {"size": np.int8(1)},
    ):  # fmt: skip
        _ForeignEnv(**good)  # pyright: ignore[reportArgumentType]
    for bad in ({"size": "big"}, {"mode": "c"}, {"source": [{}]}, {"max_turns": "2"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(bad))} must be "):
            _ForeignEnv(**bad)  # pyright: ignore[reportArgumentType]
    envkit.register("foreign-arguments-v0", _ForeignEnv)
    with pytest.raises(ConfigurationError, match="foreign-arguments-v0 cannot be built with"):
        make("foreign-arguments-v0", size="big")
