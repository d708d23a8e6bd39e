"""A setting of the wrong type or out of range is one clear error, before anything is played."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fakes.command import run_envkit
from fakes.envs import EchoEnv, register_toys
from fakes.models import tiny_model_dir

import envkit
from envkit.errors import ConfigurationError
from envkit.rollout import (
    Backoff,
    EpisodeRequest,
    Limits,
    Player,
    RetryBudget,
    RolloutConfig,
    Sampling,
    ScriptedEngine,
    Tail,
)
from envkit.rollout.config import with_overrides
from envkit.tokens import load_codec
from envkit.trajectory import StopReason

NAN = float("nan")
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"limits": {"max_turns": "abc"}}, "max_turns must be an integer or null, got 'abc'"),
    ({"limits": {"max_turns": 1.5}}, "max_turns must be an integer or null, got 1.5"),
    ({"limits": {"max_images": True}}, "max_images must be an integer or null, got True"),
    ({"limits": {"episode_timeout_s": NAN}}, "a finite number or null, got nan"),
    ({"retries": {"step_timeout_s": "1 s"}}, "step_timeout_s must be a finite number or null"),
    ({"retries": {"max_episode_restarts": None}}, "must be an integer, got None"),
    ({"retries": {"backoff": {"initial_s": "x"}}}, "initial_s must be a finite number, got 'x'"),
    ({"retries": {"backoff": {"maximum_s": -1}}}, "maximum_s must be 0 or more, got -1"),
    ({"retries": {"backoff": {"jitter": 2}}}, "jitter must be at most 1, got 2"),
    ({"sampling": {"temperature": "hot"}}, "temperature must be a finite number, got 'hot'"),
    ({"sampling": {"temperature": -1}}, "temperature must be at least 0, got -1"),
    ({"sampling": {"top_p": 7}}, "top_p must be above 0 and at most 1, got 7"),
    ({"sampling": {"top_k": 0}}, "top_k must be at least 1, or null"),
    ({"sampling": {"max_new_tokens": "x"}}, "max_new_tokens must be an integer, got 'x'"),
    ({"sampling": {"max_new_tokens": 0}}, "max_new_tokens must be at least 1, got 0"),
    ({"sampling": {"stop": "END"}}, "stop must be a list, each entry a string, got 'END'"),
    ({"sampling": {"stop_ids": [1, None]}}, "stop_ids must be a list, each entry an integer"),
    ({"sampling": {"extras": 3}}, "extras must be a mapping of names to values, got 3"),
    ({"seed": "abc"}, "seed must be an integer, got 'abc'"),
    ({"seed": None}, "seed must be an integer, got None"),
    ({"env_id": 5}, "env_id must be a string or null, got 5"),
    ({"env_kwargs": {1: 2}}, "env_kwargs must be a mapping of names to values"),
    ({"worker_memory_mb": -1}, "worker_memory_mb must be at least 1 or null, got -1"),
]


@pytest.mark.parametrize(("mapping", "message"), WRONG, ids=[str(one) for one, _ in WRONG])
def test_from_mapping_refuses_value_that_does_not_fit(
    mapping: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        RolloutConfig.from_mapping(mapping)

    assert message in str(error.value)


@pytest.mark.parametrize("value", [5, "x", [], [1]])
def test_from_mapping_refuses_a_non_mapping(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        RolloutConfig.from_mapping(value)


def test_from_mapping_reads_back_every_setting() -> None:
    config = RolloutConfig(
        env_id="x-v0",
        env_kwargs={"level": 1},
        limits=Limits(max_turns=10**30, episode_timeout_s=5),
        retries=RetryBudget(engine_unavailable_s=None, backoff=Backoff(initial_s=0, jitter=1)),
        sampling={"stop": ("a",), "stop_ids": [1], "top_k": None, "seed": -1, "temperature": 0},
        worker_memory_mb=512,
    )

    read = RolloutConfig.from_mapping(config.to_mapping())

    assert dataclasses.asdict(read) == dataclasses.asdict(config)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (RolloutConfig, {"limits": {"max_turns": 3}}, "limits must be Limits(...), or a mapping"),
        (RolloutConfig, {"retries": {}}, "retries must be RetryBudget(...), or a mapping"),
        (RolloutConfig, {"tail": {"then": "drop"}}, "tail must be Tail(...), or a mapping"),
        (RolloutConfig, {"limits": None}, "limits must be Limits(...)"),
        (RolloutConfig, {"sampling": {"temprature": 1}}, "Did you mean 'temperature'?"),
        (RolloutConfig, {"sampling": {"top_p": 7}}, "top_p must be above 0 and at most 1, got 7"),
        (RolloutConfig, {"sampling": Sampling()}, "sampling must be a mapping"),
        (RolloutConfig, {"on_fault": "again"}, "on_fault must be one of ['mask', 'retry', "),
        (RolloutConfig, {"history": "kept"}, "no history policy 'kept'. Did you mean 'keep'?"),
        (RolloutConfig, {"worker_memory_mb": -1}, "worker_memory_mb must be at least 1"),
        (RolloutConfig, {"seed": None}, "seed must be an integer, got None"),
        (Limits, {"max_turns": "3"}, "limits: max_turns must be an integer or null, got '3'"),
        (RetryBudget, {"backoff": {"jitter": 0}}, "backoff must be Backoff(...)"),
        (RetryBudget, {"max_episode_restarts": "1"}, "max_episode_restarts must be an integer"),
        (Backoff, {"initial_s": None}, "initial_s must be a finite number, got None"),
        (Tail, {"then": "cut"}, "then must be one of ['wait', 'drop', 'park'], got 'cut'"),
        (Tail, {"oversample": "2"}, "oversample must be a finite number, got '2'"),
    ],
)
def test_settings_made_in_python_refuse_values_that_do_not_fit(
    kind: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        kind(**values)

    assert message in str(error.value)


def test_budgets_refuse_nan() -> None:
    with pytest.raises(ConfigurationError, match="episode_timeout_s"):
        Limits(episode_timeout_s=NAN)
    with pytest.raises(ConfigurationError, match="step_timeout_s"):
        RetryBudget(step_timeout_s=NAN)


@pytest.mark.parametrize(
    "setting", ["sampling.max_new_tokens=x", "seed=abc", "limits.max_turns=1.5"]
)
def test_rollout_with_wrong_setting_plays_nothing(tmp_path: Path, setting: str) -> None:
    register_toys()
    out = tmp_path / "run"

    outcome = run_envkit(
        *("rollout", "toy-echo-v0", "--policy", "oracle", "-n", 2, "--quiet"),
        *("--model", tiny_model_dir("qwen2_5_vl"), "--out", out, "--set", setting),
    )

    assert outcome.code == 2
    assert outcome.last_error.startswith("envkit: error: ")
    assert setting.split(".")[-1].split("=")[0] in outcome.last_error
    assert not out.exists()


class _Strict(EchoEnv):
    def __init__(self, *, level: int, **options: Any) -> None:
        super().__init__(**options)
        self.level = level + 0


@pytest.mark.parametrize("kwargs", [{}, {"level": 1, "no_such": 2}, {"levle": 1}])
@pytest.mark.slow
def test_player_refuses_arguments_that_an_environment_does_not_take(
    kwargs: dict[str, Any],
) -> None:
    if "envkit/strict-settings-v0" not in gymnasium.registry:
        envkit.register("strict-settings-v0", entry_point=_Strict)

    async def play() -> None:
        codec = load_codec(tiny_model_dir("qwen2_5_vl"))
        engine = ScriptedEngine(codec, lambda context: "ok")
        player = Player(engine, codec)
        try:
            await player.play(
                EpisodeRequest(env_id="strict-settings-v0", env_kwargs=kwargs).factory()
            )
        finally:
            await player.aclose()

    with pytest.raises(ConfigurationError, match="strict-settings-v0 cannot be built with"):
        asyncio.run(play())


class _Careless(EchoEnv):
    def __init__(self, *, level: int, **options: Any) -> None:
        super().__init__(**options)
        self.level = str(level) + 1  # type: ignore[operator]


def test_player_reports_type_error_inside_a_constructor_as_fault() -> None:
    if "envkit/careless-settings-v0" not in gymnasium.registry:
        envkit.register("careless-settings-v0", entry_point=_Careless)

    async def play() -> Any:
        codec = load_codec(tiny_model_dir("qwen2_5_vl"))
        player = Player(ScriptedEngine(codec, lambda context: "ok"), codec)
        source = EpisodeRequest(env_id="careless-settings-v0", env_kwargs={"level": 3}).factory()
        try:
            return (await player.play(source))[0]
        finally:
            await player.aclose()

    played = asyncio.run(play())
    assert (played.stop_reason, played.reward) == (StopReason.ENV_FAULT, None)


@pytest.mark.parametrize("pair", ["history={keep_last_images: {keep: 3}}", "sampling.stop=[a"])
def test_override_that_is_almost_json_is_refused(pair: str) -> None:
    with pytest.raises(ConfigurationError, match="not valid JSON"):
        with_overrides({}, [pair])
