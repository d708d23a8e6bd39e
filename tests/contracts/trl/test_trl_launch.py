"""TRL's own example scripts with the changes that docs/trainers/trl.md names, and our launch files.

Their arguments go through TRL's parser, their datasets have the published columns.
"""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from fakes import trl_run
from fakes.grpo_trainer import prepare
from fakes.launch import EXAMPLES, RUNS, SIZES, Launch, run, start
from fakes.models import tiny_model_dir
from PIL import Image as PilImage
from transformers import PrinterCallback
from trl.experimental import async_grpo
from trl.rewards import think_format_reward

import envkit_geo3k
from envkit.registration import register, registry
from envkit.rollout import RolloutConfig
from envkit_geo3k import SPEC
from envkit_trl.settings import check_arguments

trl: Any = pytest.importorskip("trl")

PAGE = (Path(__file__).parents[3] / "docs/trainers/trl.md").read_text("utf-8")

ONE_STEP = [
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
    _, training_args, model_args = parser.parse_args_and_config([*arguments, *ONE_STEP])
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
    tokenizer = trl_run.byte_tokenizer(trl_run.qwen3_template())
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
        losses.append(trl_run.spy_on_loss(made))

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
        "args": SimpleNamespace(model=trl_run.text_model(tokenizer)),
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
    trl_run.replace_gpu_parts(monkeypatch)
    folder, _ = trl_run.saved_model(tmp_path / "model")
    if "my-env-v0" not in registry():
        register("my-env-v0", entry_point="fakes.envs:AdderEnv")

    def arguments(**given: Any) -> Any:
        # What examples/scripts/async_grpo.py sets, then what this test does.
        script = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2,
                  "learning_rate": 1e-5, "log_completions": True}  # fmt: skip
        small = {"num_generations": 2, "max_completion_length": 64, "token_budget": 1024}
        return trl_run.async_arguments(tmp_path, **{**script, **given, **small, "max_steps": 1})

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


ON_A_CPU = ["--use_cpu", "--bf16", "false", "--gradient_checkpointing", "false"]


@pytest.fixture(autouse=True)
def environments_known() -> None:
    """Register geo3k-v0, as installing envkit does."""
    prepare()
    if "geo3k-v0" not in registry():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)


@pytest.fixture
def train() -> Any:
    """Import train.py."""
    spec = importlib.util.spec_from_file_location("geo3k_train", EXAMPLES / "trl" / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def launched(folder: Path, script: str, *arguments: str, **variables: str) -> Launch:
    return start(f"trl/{script}", folder, *arguments, program="accelerate", **variables)


def options_of(launch: Launch) -> list[str]:
    """Return the options of train.py."""
    place = launch.words.index(str(EXAMPLES / "trl" / "train.py"))
    return launch.words[place + 1 :]


def checked(train: Any, options: list[str]) -> tuple[Any, Any, Any]:
    """Parse as train.py does; an unknown option is an error."""
    parser = trl.TrlParser((train.EnvArguments, trl.GRPOConfig, trl.ModelConfig))
    env, args, model = parser.parse_args_and_config([*options, *ON_A_CPU])
    check_arguments(args, who="EnvGRPOTrainer", has_codec=False)
    return env, args, model


@pytest.mark.parametrize(("script", "paper"), RUNS)
def test_trl_accepts_the_launch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Any, script: str, paper: str
) -> None:
    gpus = 1 if script == "run_small.sh" else 8
    # A CPU run has one process; TRL checks its batches against this number.
    monkeypatch.setattr(trl.GRPOConfig, "world_size", gpus)
    launch = launched(tmp_path, script, PAPER=paper)
    assert launch.words[launch.words.index("--num_processes") + 1] == str(gpus)
    assert ("--multi_gpu" in launch.words) == (gpus > 1)
    env, args, model = checked(train, options_of(launch))
    turns, tokens = SIZES[paper]
    assert args.max_completion_length == tokens
    monkeypatch.setenv("MAX_TURNS", str(turns))
    for name, value in (("ATTEMPTS", "3"), ("ZOOM", "true"), ("FEEDBACK_ROLE", "tool")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GEO3K", "")
    config = RolloutConfig.from_mapping(train.read_config(env.envkit))
    assert config.limits.max_turns == config.env_kwargs["max_turns"] == turns
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * gpus
    assert rows == args.generation_batch_size == (512 if gpus == 8 else 64)
    assert (args.beta, args.epsilon, args.epsilon_high) == (0, 0.2, 0.28)
    assert (args.loss_type, args.lr_scheduler_type) == ("grpo", "constant")
    assert args.report_to in ([], "none", ["none"])
    assert model.model_name_or_path == "Qwen/Qwen3-VL-2B-Instruct"


def test_trl_launch_file_refuses_a_batch_that_its_processes_cannot_share(tmp_path: Path) -> None:
    done = run("trl/run.sh", tmp_path, variables={"GPUS": "7"})
    assert done.returncode == 2
    assert "multiple of GPUS * PER_GPU = 28" in done.stderr


def test_trl_refuses_an_option_that_it_does_not_know(tmp_path: Path, train: Any) -> None:
    launch = launched(tmp_path, "run.sh", "--lerning_rate", "1")
    with pytest.raises((SystemExit, ValueError)):
        checked(train, options_of(launch))


def test_trl_launch_file_trains_evaluates_saves_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Any
) -> None:
    sizes = {"STEPS": "2", "BATCH": "1", "GROUP": "2", "PER_GPU": "2", "RESPONSE": "64"}
    sizes |= {"TASKS": "4", "EVAL_TASKS": "1", "EVAL_EVERY": "2", "SAVE_EVERY": "1"}
    model = str(tiny_model_dir("qwen3_vl"))
    launch = launched(tmp_path, "run_small.sh", *ON_A_CPU, MODEL=model, **sizes)
    values = {"MAX_TURNS": "2", "ATTEMPTS": "3", "ZOOM": "false", "FEEDBACK_ROLE": "tool"}
    for name, value in {**values, "GEO3K": ""}.items():
        monkeypatch.setenv(name, value)
    options = options_of(launch)
    options[options.index("--dtype") + 1] = "float32"
    options += ["--disable_tqdm", "true", "--per_device_eval_batch_size", "1"]
    made: list[Any] = []

    class Kept(train.EnvGRPOTrainer):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.remove_callback(PrinterCallback)
            made.append(self)

    monkeypatch.setattr(train, "EnvGRPOTrainer", Kept)
    monkeypatch.setattr(sys, "argv", ["train.py", *options])
    train.main()
    options[options.index("--max_steps") + 1] = "3"
    monkeypatch.setattr(sys, "argv", ["train.py", *options])
    train.main()
    first, second = made
    assert (first.state.global_step, second.state.global_step) == (2, 3)
    history = second.state.log_history
    assert [one["step"] for one in history if "reward" in one] == [1, 2, 3]
    assert any("eval_reward" in one for one in history)
    assert {one.env_id for one in second.trajectories} == {"geo3k-v0"}
    assert all(one.images() for one in second.trajectories)
    saved = json.loads((tmp_path / "out/checkpoint-3/trainer_state.json").read_text())
    assert saved["global_step"] == 3
