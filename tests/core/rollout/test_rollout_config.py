"""Settings of a rollout: read from a mapping, and refused before anything is played."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.rollout import (
    Backoff,
    EnvSource,
    EpisodeRequest,
    Limits,
    RetryBudget,
    RolloutConfig,
    Sampling,
    Tail,
)
from envkit.rollout.config import with_overrides

NAN = float("nan")
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"limits": {"max_turns": "abc"}}, "max_turns must be an integer or null, got 'abc'"),
    ({"limits": {"max_turns": 1.5}}, "max_turns must be an integer or null, got 1.5"),
    ({"limits": {"max_images": True}}, "max_images must be an integer or null, got True"),
    ({"limits": {"episode_timeout_s": NAN}}, "a finite number or null, got nan"),
    ({"retries": {"step_timeout_s": "1 s"}}, "step_timeout_s must be a finite number or null"),
    ({"retries": {"max_episode_restarts": None}}, "must be an integer, got None"),
    ({"retries": {"backoff": {"initial_s": "x"}}}, "initial_s must be a finite number, got 'x'"),
    ({"retries": {"backoff": {"maximum_s": -1}}}, "maximum_s must be at least 0, got -1"),
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
    ({"seed": "abc"}, "seed must be an integer of at least 0, got str: 'abc'"),
    ({"seed": None}, "seed must be an integer of at least 0, got NoneType: None"),
    ({"env_id": 5}, "env_id must be a string or null, got 5"),
    ({"env_kwargs": {1: 2}}, "env_kwargs must be a mapping of names to values"),
    ({"worker_memory_mb": -1}, "worker_memory_mb must be at least 1, got -1"),
    ({"limit": {}}, "Did you mean 'limits'"),
    ({"limits": {"max_turn": 1}}, "Did you mean 'max_turns'"),
    ({"limits": 3}, "must be a mapping"),
    ({"limits": {"max_turns": 0}}, "must be positive"),
    ({"sampling": {"temprature": 1}}, "Did you mean 'temperature'"),
    ({"retries": {"backoff": {"start": 1}}}, "retries.backoff has no key"),
    ({"history": "forget"}, "no history policy 'forget'"),
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
        sampling={"stop": ("a",), "stop_ids": [1], "top_k": None, "seed": 1, "temperature": 0},
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
        (
            RolloutConfig,
            {"seed": None},
            "seed must be an integer of at least 0, got NoneType: None",
        ),
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


@pytest.mark.parametrize("pair", ["history={keep_last_images: {keep: 3}}", "sampling.stop=[a"])
def test_override_that_is_almost_json_is_refused(pair: str) -> None:
    with pytest.raises(ConfigurationError, match="not valid JSON"):
        with_overrides({}, [pair])


def test_config_reads_nested_settings() -> None:
    config = RolloutConfig.from_mapping(
        {
            "env_id": "geo3k-v0",
            "limits": {"max_turns": 3},
            "retries": {"max_env_retries_per_turn": 1, "backoff": {"initial_s": 0.5}},
            "sampling": {"max_new_tokens": 9, "stop": ["</answer>"]},
            "history": "rerender",
        }
    )
    assert config.limits.max_turns == 3
    assert config.retries.backoff.initial_s == 0.5
    sampling = config.sampling_over(Sampling(temperature=0.3, max_new_tokens=512))
    assert (sampling.temperature, sampling.max_new_tokens) == (0.3, 9)
    assert sampling.stop == ("</answer>",)
    request = config.request()
    assert request is not None
    assert request.env_id == "geo3k-v0"


def test_config_of_nothing_is_the_defaults() -> None:
    assert RolloutConfig.from_mapping(None) == RolloutConfig()
    assert RolloutConfig().request() is None


# ---- what a trainer's row asks for


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(
    st.text(min_size=1),
    st.dictionaries(st.text(), json_data, max_size=3),
    st.none() | st.dictionaries(st.text(), json_data, max_size=3),
    st.none() | st.integers(0, 2**31),
)
def test_request_survives_its_column(
    env_id: str, env_kwargs: dict[str, Any], task: dict[str, Any] | None, seed: int | None
) -> None:
    request = EpisodeRequest(env_id=env_id, env_kwargs=env_kwargs, task=task, seed=seed)
    assert EpisodeRequest.from_column(request.to_column()) == request
    assert EpisodeRequest.from_column(json.loads(request.to_column())) == request


def test_request_inherits_what_its_row_leaves_out() -> None:
    default = EpisodeRequest(env_id="geo3k-v0", env_kwargs={"level": 2})
    assert EpisodeRequest.from_column(None, default=default) == default
    named = EpisodeRequest.from_column({"task": {"x": 1}, "seed": 3}, default=default)
    assert named == EpisodeRequest(
        env_id="geo3k-v0", env_kwargs={"level": 2}, task={"x": 1}, seed=3
    )


def test_request_of_another_environment_inherits_no_arguments() -> None:
    default = EpisodeRequest(env_id="geo3k-v0", env_kwargs={"level": 2})
    assert EpisodeRequest.from_column({"env_id": "canary-v0"}, default=default).env_kwargs == {}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no environment is named"),
        ("{", "must be a JSON object"),
        ("[1]", "must be a JSON object"),
        (3, "must be a JSON object"),
        ({"env_id": "a", "tsk": 1}, "tsk"),
        ({"env_id": "a", "task": "x"}, "'task'"),
        ({"env_id": "a", "seed": "x"}, "must be an integer"),
        ({"env_id": "a", "seed": True}, "must be an integer"),
    ],
)
def test_request_refuses_a_bad_column(value: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EpisodeRequest.from_column(value)


def test_request_refuses_invalid_json() -> None:
    with pytest.raises(ConfigurationError, match="JSON data"):
        EpisodeRequest(env_id="a", task={"x": object()}).to_column()


def test_request_source_is_one_for_equal_arguments_and_builds_the_environment() -> None:
    one = EpisodeRequest(env_id="canary-v0", env_kwargs={"turns": 2, "length": 1}).factory()
    two = EpisodeRequest(env_id="canary-v0", env_kwargs={"length": 1, "turns": 2}).factory()
    assert {one: 1}[two] == 1
    env = one()
    assert env.unwrapped.max_turns == 2  # pyright: ignore[reportAttributeAccessIssue]
    env.close()
    with pytest.raises(UnknownNameError, match="canary-v0"):
        EnvSource("canari-v0")()
