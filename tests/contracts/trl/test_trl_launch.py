"""The launch files of examples/geo3k/trl, given to TRL's own parser and trainer."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.grpo_trainer import prepare
from fakes.launch import EXAMPLES, RUNS, SIZES, Launch, run, start
from fakes.models import tiny_model_dir
from transformers import PrinterCallback

import envkit_geo3k
from envkit.registration import register, registry
from envkit.rollout import RolloutConfig
from envkit_trl.settings import check_arguments

trl: Any = pytest.importorskip("trl")
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
