"""Datasets of tasks as TRL's trainers take them: drawn, exported, or without an episode's name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, load_dataset
from fakes.envs import register_toys
from fakes.trl_run import byte_tokenizer, grpo_trainer, qwen3_template
from trl.data_utils import prepare_multimodal_messages

import envkit_trl
from envkit.env import Env
from envkit.errors import ConfigurationError, UnknownNameError
from envkit.images import Image
from envkit.registration import make
from envkit.rollout import EpisodeRequest, RolloutConfig
from envkit_exchange import (
    TaskDraw,
    TaskFormat,
    export_tasks,
)
from envkit_trl.requests import RequestIndex, canonical_prompt

NAMES = ["ann", "bob", "cy", "dee"]


def _requests(dataset: Any) -> list[EpisodeRequest]:
    return [EpisodeRequest.from_column(text) for text in dataset["envkit"]]


def test_dataset_lists_every_task_of_a_finite_source_in_order() -> None:
    dataset = envkit_trl.task_dataset("toy-letters-v0")
    assert isinstance(dataset, Dataset)
    assert dataset.column_names == ["prompt", "envkit"]
    assert [request.task for request in _requests(dataset)] == [{"name": name} for name in NAMES]


def test_dataset_of_a_count_is_the_one_that_export_writes() -> None:
    with TaskDraw("toy-letters-v0", count=3, seed=1) as draw:
        expected = [example.request for example in draw]
    assert _requests(envkit_trl.task_dataset("toy-letters-v0", count=3, seed=1)) == expected


def test_dataset_of_an_environment_without_tasks_gives_seeds() -> None:
    requests = _requests(envkit_trl.task_dataset("toy-dots-v0", count=5, seed=1))
    assert len({request.seed for request in requests}) == 5
    assert requests[0] != _requests(envkit_trl.task_dataset("toy-dots-v0", count=1, seed=2))[0]


@pytest.mark.parametrize(
    ("env_id", "count", "match"),
    [("toy-dots-v0", None, "set the number with --rows"), ("toy-letters-v0", 5, "has 4 tasks"),
     ("toy-letters-v0", 0, "count must be at least 1, got 0")],
)  # fmt: skip
def test_dataset_with_an_impossible_count_is_refused(
    env_id: str, count: int | None, match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        envkit_trl.task_dataset(env_id, count=count)


def test_dataset_of_unknown_environment_style_or_nothing_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="toy-letters-v0"):
        envkit_trl.task_dataset("toy-lettres-v0")
    with pytest.raises(ConfigurationError, match="style must be one of"):
        envkit_trl.task_dataset("toy-letters-v0", style="chat")
    with pytest.raises(ConfigurationError, match="at least one request"):
        envkit_trl.request_dataset([])


@pytest.mark.parametrize("style", ["request", "tools"])
@pytest.mark.parametrize("env_id", ["toy-letters-v0", "toy-dots-v0"])
def test_dataset_of_requests_resets_no_environment(
    style: str, env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(*_: object, **__: object) -> None:
        raise AssertionError("a reset for nothing")

    monkeypatch.setattr(Env, "reset", reset)
    assert len(envkit_trl.task_dataset(env_id, count=3, style=style)) == 3


@pytest.mark.parametrize("style", ["request", "opening"])
def test_dataset_prompts_lead_back_to_their_requests(style: str) -> None:
    dataset = envkit_trl.task_dataset("toy-letters-v0", style=style)
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
    factory: Any = envkit_trl.environment_factory("toy-dots-v0")
    with pytest.raises(ConfigurationError, match="no episode of toy-dots-v0 reads it"):
        factory().reset(**dataset[0])
    drawing: Any = envkit_trl.environment_factory("toy-dots-v0", draw_tasks=True)
    assert drawing().reset(**dataset[0])


def test_dataset_opening_is_what_the_episode_begins_with() -> None:
    dataset = envkit_trl.task_dataset("toy-dots-v0", count=3, style="opening")
    for row, request in zip(dataset["prompt"], _requests(dataset), strict=True):
        env = make("toy-dots-v0")
        observation, _ = env.reset(seed=request.seed)
        assert row == [{"role": "user", "content": observation["text"]}]
    letters = envkit_trl.task_dataset("toy-letters-v0", style="opening")
    assert all(request.seed is not None for request in _requests(letters))
    assert letters["prompt"][1] == [
        {"role": "system", "content": "Write letters."},
        {"role": "user", "content": "Hello bob."},
    ]


def test_dataset_opening_has_the_system_prompt_that_the_task_sets() -> None:
    prompts = envkit_trl.task_dataset("toy-naming-letters-v0", style="opening")["prompt"]
    assert [row[0]["content"] for row in prompts][:2] == ["Write to ann.", "Write to bob."]


def test_dataset_for_tools_leaves_the_user_message_to_reset() -> None:
    rows = envkit_trl.task_dataset("toy-letters-v0", style="tools")["prompt"]
    assert rows[0] == [
        {"role": "system", "content": "Write letters."},
        {"role": "user", "content": ""},
    ]


def test_dataset_passes_arguments_on() -> None:
    requests = _requests(envkit_trl.task_dataset("toy-letters-v0", env_kwargs={"max_turns": 7}))
    assert {request.factory()().unwrapped.max_turns for request in requests} == {7}  # pyright: ignore[reportAttributeAccessIssue]


def test_prompts_are_equal_despite_empty_keys_of_a_dataset() -> None:
    one = [{"role": "user", "content": "hi", "name": None}]
    assert canonical_prompt(one) == canonical_prompt([{"content": "hi", "role": "user"}])
    assert canonical_prompt("hi") != canonical_prompt(one)


@pytest.fixture(autouse=True)
def _toys() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_toys()


def loaded(path: Path, folder: Path) -> Any:
    """Load a folder or a file as the datasets library does."""
    options: Any = {"cache_dir": str(folder / "cache"), "split": "train"}
    if path.is_dir():
        return load_dataset(str(path), **options)
    kind = "json" if path.suffix == ".jsonl" else "parquet"
    return load_dataset(kind, data_files=str(path), **options)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_rollout_function_finds_the_requests_of_exported_tasks(
    suffix: str, tmp_path: Path
) -> None:
    with TaskDraw("toy-dots-v0", count=4) as draw:
        export_tasks(draw, tmp_path / f"t{suffix}", TaskFormat.TRL)
        expected = [e.request for e in draw]
    dataset = loaded(tmp_path / f"t{suffix}", tmp_path)
    index = RequestIndex(RolloutConfig())
    index.add(dataset)

    assert [index.find(row["prompt"]) for row in dataset] == expected


@pytest.mark.parametrize("kind", [TaskFormat.TRL, TaskFormat.HF])
def test_exported_images_are_decoded_and_placed_by_trl(kind: TaskFormat, tmp_path: Path) -> None:
    target = tmp_path / ("hf" if kind is TaskFormat.HF else "t.parquet")
    with TaskDraw("toy-dots-v0", count=2) as draw:
        export_tasks(draw, target, kind, with_images=True)
        examples = list(draw)
    for row, drawn in zip(loaded(target, tmp_path), examples, strict=True):
        messages = prepare_multimodal_messages(row["prompt"], images=row["images"])
        parts = messages[0]["content"]

        assert EpisodeRequest.from_column(row["envkit"]) == drawn.request
        assert Image.from_pil(parts[0]["image"]) == drawn.images[0]
        assert parts[1]["text"].startswith("How many")


PROMPT = [{"role": "user", "content": "Play."}]


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Any]:
    """Return a trainer over rows with one prompt, and the seeds of each of its batches."""
    rollout = envkit_trl.make_rollout_func(
        {"env_id": "toy-letters-v0", "sampling": {"max_new_tokens": 3}}
    )
    batches: list[tuple[str, list[int | None]]] = []

    def recorded(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        columns = rollout(prompts, trainer)
        mode = "train" if trainer.model.training else "eval"
        batches.append((mode, [one.seed for one in rollout.trajectories]))
        return columns

    def make(**arguments: Any) -> tuple[Any, list[tuple[str, list[int | None]]]]:
        dataset = Dataset.from_dict({"prompt": [PROMPT] * 8})
        trainer = grpo_trainer(
            tmp_path,
            dataset,
            eval_dataset=dataset.select(range(2)),
            reward_funcs=envkit_trl.env_reward,
            rollout_func=recorded,
            arguments={"per_device_eval_batch_size": 2, **arguments},
        )
        return trainer, batches

    assert isinstance(rollout, envkit_trl.EnvRollout)
    yield make
    rollout.close()


def test_trl_evaluations_play_the_same_episodes_at_every_step(played: Any) -> None:
    trainer, batches = played(max_steps=2, eval_strategy="steps", eval_steps=1)
    trainer.evaluate()
    trainer.train()
    evaluations = [seeds for mode, seeds in batches if mode == "eval"]
    assert len(evaluations) == 6  # three of two batches
    assert evaluations[0:2] == evaluations[2:4] == evaluations[4:6]
    assert evaluations[0][0] == evaluations[0][1] != evaluations[1][0]


def test_trl_generations_of_one_optimizer_step_play_different_episodes(played: Any) -> None:
    trainer, batches = played(max_steps=2, gradient_accumulation_steps=2, steps_per_generation=1)
    trainer.train()
    groups = [seed for _, seeds in batches for seed in seeds[::2]]
    assert len(groups) == 8
    assert len(set(groups)) == 8


def test_trl_tool_loop_plays_new_episodes_though_every_prompt_is_the_same(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(qwen3_template())
    trainer = grpo_trainer(
        tmp_path,
        Dataset.from_dict({"prompt": [PROMPT] * 4}),
        tokenizer=tokenizer,
        environment_factory=envkit_trl.environment_factory("toy-letters-v0"),
        arguments={"max_steps": 4, "max_completion_length": 1024},
    )
    seen: list[list[str]] = []

    def generate(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        seen.append([tokenizer.decode(ids).partition("Hello ")[2][:3] for ids in prompt_ids])
        return [
            [*tokenizer("Done.")["input_ids"], tokenizer.eos_token_id] for _ in prompt_ids
        ], None

    trainer._generate_single_turn = generate
    trainer.train()
    assert all(len(set(names[:2])) == len(set(names[2:])) == 1 for names in seen)
    assert len({names[0] for names in seen}) > 1


def test_trl_tool_loop_gives_each_group_of_equal_rows_its_own_episode(tmp_path: Path) -> None:
    made: list[Any] = []
    factory = envkit_trl.environment_factory("toy-letters-v0", seed=3)
    trainer = grpo_trainer(
        tmp_path,
        Dataset.from_dict({"prompt": [PROMPT] * 8}),
        tokenizer=byte_tokenizer(qwen3_template()),
        environment_factory=factory,
        arguments={"per_device_train_batch_size": 8, "num_generations": 2, "max_steps": 1},
    )
    reset = factory.reset

    def recorded(environment: Any, **row: Any) -> Any:
        content = reset(environment, **row)
        made.append(environment._env.unwrapped.np_random_seed)
        return content

    factory.reset = recorded  # type: ignore[method-assign]
    trainer.train()
    assert len(made) == 8
    assert made[0::2] == made[1::2]
    assert len(set(made)) == 4
