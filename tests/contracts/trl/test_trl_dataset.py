"""Datasets of tasks, as TRL's trainers take them."""

from dataclasses import replace
from typing import Any

import pytest
from datasets import Dataset

from envkit.env import Env
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.registration import make
from envkit.rollout import EpisodeRequest, RolloutConfig
from envkit_exchange import TaskDraw
from envkit_trl import environment_factory, request_dataset, task_dataset
from envkit_trl.requests import RequestIndex, canonical_prompt

NAMES = ["ann", "bob", "cy", "dee"]


def _requests(dataset: Any) -> list[EpisodeRequest]:
    return [EpisodeRequest.from_column(text) for text in dataset["envkit"]]


def test_dataset_lists_every_task_of_a_finite_source_in_order() -> None:
    dataset = task_dataset("toy-letters-v0")
    assert isinstance(dataset, Dataset)
    assert dataset.column_names == ["prompt", "envkit"]
    assert [request.task for request in _requests(dataset)] == [{"name": name} for name in NAMES]


def test_dataset_of_a_count_is_the_one_that_export_writes() -> None:
    with TaskDraw("toy-letters-v0", count=3, seed=1) as draw:
        expected = [example.request for example in draw]
    assert _requests(task_dataset("toy-letters-v0", count=3, seed=1)) == expected


def test_dataset_of_an_environment_without_tasks_gives_seeds() -> None:
    requests = _requests(task_dataset("toy-dots-v0", count=5, seed=1))
    assert len({request.seed for request in requests}) == 5
    assert requests[0] != _requests(task_dataset("toy-dots-v0", count=1, seed=2))[0]


@pytest.mark.parametrize(
    ("env_id", "count", "match"),
    [("toy-dots-v0", None, "set the number with -n"), ("toy-letters-v0", 5, "has 4 tasks"),
     ("toy-letters-v0", 0, "count must be at least 1, got 0")],
)  # fmt: skip
def test_dataset_with_an_impossible_count_is_refused(
    env_id: str, count: int | None, match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        task_dataset(env_id, count=count)


def test_dataset_of_unknown_environment_style_or_nothing_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="toy-letters-v0"):
        task_dataset("toy-lettres-v0")
    with pytest.raises(ConfigurationError, match="style must be one of"):
        task_dataset("toy-letters-v0", style="chat")
    with pytest.raises(ConfigurationError, match="at least one request"):
        request_dataset([])


@pytest.mark.parametrize("style", ["request", "tools"])
@pytest.mark.parametrize("env_id", ["toy-letters-v0", "toy-dots-v0"])
def test_dataset_of_requests_resets_no_environment(
    style: str, env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(*_: object, **__: object) -> None:
        raise AssertionError("a reset for nothing")

    monkeypatch.setattr(Env, "reset", reset)
    assert len(task_dataset(env_id, count=3, style=style)) == 3


@pytest.mark.parametrize("style", ["request", "opening"])
def test_dataset_prompts_lead_back_to_their_requests(style: str) -> None:
    dataset = task_dataset("toy-letters-v0", style=style)
    index = RequestIndex(RolloutConfig())
    index.add({"train": dataset, "none": None})
    for row, request in zip(dataset, _requests(dataset), strict=True):
        assert index.find(row["prompt"]) == request  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize("column", ["answer", "image"])
def test_dataset_that_no_episode_reads_is_refused_unless_tasks_are_drawn(column: str) -> None:
    dataset = Dataset.from_dict({"prompt": ["go"], column: ["4"]})
    config = RolloutConfig(env_id="toy-dots-v0")
    with pytest.raises(ConfigurationError, match="no episode of toy-dots-v0 reads it"):
        RequestIndex(config).add({"train": dataset.select_columns(["prompt"]), "test": dataset})
    RequestIndex(replace(config, draw_tasks=True)).add(dataset)
    factory: Any = environment_factory("toy-dots-v0")
    with pytest.raises(ConfigurationError, match="no episode of toy-dots-v0 reads it"):
        factory().reset(**dataset[0])
    drawing: Any = environment_factory("toy-dots-v0", draw_tasks=True)
    assert drawing().reset(**dataset[0])


def test_dataset_opening_is_what_the_episode_begins_with() -> None:
    dataset = task_dataset("toy-dots-v0", count=3, style="opening")
    for row, request in zip(dataset["prompt"], _requests(dataset), strict=True):
        env = make("toy-dots-v0")
        observation, _ = env.reset(seed=request.seed)
        assert row == [{"role": "user", "content": observation["text"]}]
    letters = task_dataset("toy-letters-v0", style="opening")
    assert all(request.seed is not None for request in _requests(letters))
    assert letters["prompt"][1] == [
        {"role": "system", "content": "Write letters."},
        {"role": "user", "content": "Hello bob."},
    ]


def test_dataset_opening_has_the_system_prompt_that_the_task_sets() -> None:
    prompts = task_dataset("toy-naming-letters-v0", style="opening")["prompt"]
    assert [row[0]["content"] for row in prompts][:2] == ["Write to ann.", "Write to bob."]


def test_dataset_for_tools_leaves_the_user_message_to_reset() -> None:
    rows = task_dataset("toy-letters-v0", style="tools")["prompt"]
    assert rows[0] == [
        {"role": "system", "content": "Write letters."},
        {"role": "user", "content": ""},
    ]


def test_dataset_passes_arguments_on() -> None:
    requests = _requests(task_dataset("toy-letters-v0", env_kwargs={"max_turns": 7}))
    assert {request.factory()().unwrapped.max_turns for request in requests} == {7}  # pyright: ignore[reportAttributeAccessIssue]


def test_prompts_are_equal_despite_empty_keys_of_a_dataset() -> None:
    one = [{"role": "user", "content": "hi", "name": None}]
    assert canonical_prompt(one) == canonical_prompt([{"content": "hi", "role": "user"}])
    assert canonical_prompt("hi") != canonical_prompt(one)
