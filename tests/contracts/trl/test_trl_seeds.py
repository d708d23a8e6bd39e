"""Which episodes a trainer plays when its dataset names none, over steps and evaluations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from fakes.trl_run import byte_tokenizer, grpo_trainer, qwen3_template

from envkit_trl import EnvRollout, env_reward, environment_factory, make_rollout_func

PROMPT = [{"role": "user", "content": "Play."}]


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Any]:
    """Return a trainer over rows with one prompt, and the seeds of each of its batches."""
    rollout = make_rollout_func({"env_id": "toy-letters-v0", "sampling": {"max_new_tokens": 3}})
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
            reward_funcs=env_reward,
            rollout_func=recorded,
            arguments={"per_device_eval_batch_size": 2, **arguments},
        )
        return trainer, batches

    assert isinstance(rollout, EnvRollout)
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
        environment_factory=environment_factory("toy-letters-v0"),
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
    factory = environment_factory("toy-letters-v0", seed=3)
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
