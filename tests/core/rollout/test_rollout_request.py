"""What a trainer's row asks for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.errors import ConfigurationError, UnknownNameError
from envkit.rollout import EnvSource, EpisodeRequest

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
