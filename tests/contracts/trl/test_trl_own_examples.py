"""TRL's own example scripts with the changes that docs/trainers/trl.md names, and no others.

Their arguments go through TRL's parser, their datasets have the published columns.
"""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from fakes.models import tiny_model_dir
from fakes.trl_run import (
    async_arguments,
    byte_tokenizer,
    qwen3_template,
    replace_gpu_parts,
    saved_model,
    spy_on_loss,
    text_model,
)
from PIL import Image as PilImage
from trl.experimental import async_grpo
from trl.rewards import think_format_reward

from envkit.registration import register, registry
from envkit_geo3k import SPEC

trl: Any = pytest.importorskip("trl")
PAGE = (Path(__file__).parents[3] / "docs/trainers/trl.md").read_text("utf-8")
ON_A_CPU = [
    "--use_cpu", "--bf16", "false", "--gradient_checkpointing", "false", "--max_steps", "1",
    "--per_device_train_batch_size", "2", "--num_generations", "2", "--report_to", "none",
    "--save_strategy", "no", "--logging_steps", "1", "--disable_tqdm", "true",
]  # fmt: skip
"""What the test changes besides: one small step on a machine without a GPU."""


def block(name: str) -> str:
    """Return a block of the page's code."""
    found = re.search(rf"<!-- test: {name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def flags(script: str) -> list[str]:
    """Return the arguments of a command of the page."""
    found = re.search(rf"```sh\npython {re.escape(script)} (.*?)```", PAGE, re.DOTALL)
    assert found, script
    return shlex.split(found[1].replace("\\\n", " "))


def published_rows() -> Dataset:
    """Return rows with the columns of lmms-lab/multimodal-open-r1-8k-verified."""
    pixels = np.random.default_rng(0).integers(0, 255, (2, 56, 84, 3), np.uint8)
    return Dataset.from_list(
        [
            {
                "image": PilImage.fromarray(shown),
                "problem": "What is the length of AB?\nA. 3\nB. 4",
                "solution": "<think>It is three.</think>\n\n<answer>3</answer>",
                "original_question": "What is the length of AB?",
                "original_answer": "3",
            }
            for shown in pixels
        ]
    )


def test_trl_grpo_vlm_example_plays_its_dataset(tmp_path: Path) -> None:
    if "geo3k-v0" not in registry():
        register(SPEC.id, entry_point=SPEC.entry_point)
    arguments = flags("grpo_vlm.py")
    for name, value in (
        ("--model_name_or_path", str(tiny_model_dir("qwen2_5_vl"))),
        ("--output_dir", str(tmp_path)),
        ("--max_completion_length", "192"),
    ):
        arguments[arguments.index(name) + 1] = value
    parser = trl.TrlParser((trl.ScriptArguments, trl.GRPOConfig, trl.ModelConfig))
    _, training_args, model_args = parser.parse_args_and_config([*arguments, *ON_A_CPU])
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": "float32",
    }

    def conversation(example: Any) -> dict[str, Any]:
        system = {"role": "system", "content": "Think, then answer."}
        return {"prompt": [system, {"role": "user", "content": example["problem"]}]}

    space: dict[str, Any] = {
        "model_args": model_args,
        "training_args": training_args,
        "train_dataset": published_rows().map(conversation),
        "think_format_reward": think_format_reward,
    }
    exec(block("grpo_vlm"), space)  # the page's own code
    trainer = space["trainer"]
    assert trainer.state.global_step == 1
    assert {one.env_id for one in trainer.trajectories} == {"geo3k-v0"}
    assert [one.task["answer"] for one in trainer.trajectories] == ["3", "3"]
    shown = {image.size for one in trainer.trajectories for image in one.images()}
    assert shown == {(84, 56)}
    names = set(trainer.state.log_history[0])
    assert {"rewards/env_reward/mean", "rewards/think_format_reward/mean"} <= names


def test_trl_catch_example_plays_an_envkit_environment(tmp_path: Path) -> None:
    if "my-env-v0" not in registry():
        register("my-env-v0", entry_point="fakes.envs:AdderEnv")
    tokenizer = byte_tokenizer(qwen3_template())
    changed = {
        "use_vllm": False,
        "report_to": [],
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": 2,
        "save_strategy": "no",
        "disable_tqdm": True,
        "output_dir": str(tmp_path),
    }
    training_args = trl.GRPOConfig(
        **{
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.2,
            "logging_steps": 1,
            "log_completions": True,
            "num_train_epochs": 1,
            "num_generations": 8,
            "max_completion_length": 4096,
            "chat_template_kwargs": {"enable_thinking": False},
            **changed,
        }
    )
    prompt = [{"role": "user", "content": "You are an AI agent playing the game **Catch**."}]
    seen: list[str] = []

    def trainer(**arguments: Any) -> Any:
        made: Any = trl.GRPOTrainer(**arguments, processing_class=tokenizer)
        losses.append(spy_on_loss(made))

        def generate(prompt_ids: Any, *_: Any, **__: Any) -> Any:
            seen.extend(tokenizer.decode(ids) for ids in prompt_ids)
            return [
                [*tokenizer(_answer(tokenizer.decode(ids), row))["input_ids"], end]
                for row, ids in enumerate(prompt_ids)
            ], None

        made._generate_single_turn = generate
        return made

    end = tokenizer.eos_token_id
    losses: list[list[dict[str, Any]]] = []
    space: dict[str, Any] = {
        "GRPOTrainer": trainer,
        "args": SimpleNamespace(model=text_model(tokenizer)),
        "training_args": training_args,
        "dataset": Dataset.from_dict({"prompt": [prompt] * 20}),
    }
    exec(block("catch"), space)  # the page's own code
    made = space["trainer"]
    assert made.state.global_step == 2
    assert all(text.count("**Catch**") == 1 for text in seen)
    questions = {match for text in seen for match in re.findall(r"What is (\d+ \+ \d+)", text)}
    assert len(questions) > 1  # though all prompts of the dataset are equal
    assert made.state.log_history[0]["tools/call_frequency"] > 0


def test_trl_async_block_of_the_page_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_gpu_parts(monkeypatch)
    folder, _ = saved_model(tmp_path / "model")
    if "my-env-v0" not in registry():
        register("my-env-v0", entry_point="fakes.envs:AdderEnv")

    def arguments(**given: Any) -> Any:
        # What examples/scripts/async_grpo.py sets, then what this test does.
        script = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2,
                  "learning_rate": 1e-5, "log_completions": True}  # fmt: skip
        small = {"num_generations": 2, "max_completion_length": 64, "token_budget": 1024}
        return async_arguments(tmp_path, **{**script, **given, **small, "max_steps": 1})

    monkeypatch.setattr(async_grpo, "AsyncGRPOConfig", arguments)
    code = block("async").replace("count=1000", "count=7")  # the toy has seven tasks
    space: dict[str, Any] = {"MODEL": folder}
    exec(code, space)  # the page's own code
    assert space["trainer"].state.global_step == 1


def _answer(text: str, row: int) -> str:
    """Return a call of the tool, and after its result an end."""
    if "<tool_response>" in text:
        return "Done."
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {row}, "b": 1}}}}\n</tool_call>'
