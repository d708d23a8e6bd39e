"""verl's own examples, changed only as docs/trainers/verl.md says, and our launch files.

The facts are those of examples/sglang_multiturn and examples/data_preprocess of volcengine/verl at
b178a3c; the configuration that they override is the installed release's.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import pytest
import verl
import yaml
from fakes.launch import RUNS, SIZES, Launch, export, start
from fakes.models import tiny_model_dir
from fakes.verl_checks import check_images, check_row
from fakes.verl_worker import Bench, Run, Sample
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from PIL import Image as PilImage
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import hf_processor, hf_tokenizer
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from envkit.env import Env, Turn
from envkit.registration import register, registry
from envkit.rollout import RolloutConfig
from envkit.tasks import ListSource, Task
from envkit_verl.settings import VerlSettings

Make = Callable[..., Bench]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "trainers" / "verl.md"

KNOWN = (
    "from envkit.registration import register; "
    "register('geo3k-v0', entry_point='envkit_geo3k.env:Geo3kEnv')"
)

"""What installing envkit does; here its packages are only on the path."""

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"

FLAGS: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 256,
    "data.filter_overlong_prompts": True,
    "data.truncation": "error",
    "data.return_raw_chat": True,
    f"{ACTOR}.optim.lr": 1e-6,
    "actor_rollout_ref.model.use_remove_padding": True,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32,
    f"{ACTOR}.use_kl_loss": True,
    f"{ACTOR}.kl_loss_coef": 0.001,
    f"{ACTOR}.kl_loss_type": "low_var_kl",
    f"{ACTOR}.entropy_coeff": 0,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    f"{ACTOR}.fsdp_config.param_offload": False,
    f"{ACTOR}.fsdp_config.optimizer_offload": False,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 32,
    f"{ROLLOUT}.name": "sglang",
    f"{ROLLOUT}.n": 16,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 32,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    "algorithm.use_kl_in_reward": False,
    "trainer.critic_warmup": 0,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "trainer.save_freq": -1,
    "trainer.test_freq": 20,
    "trainer.total_epochs": 15,
}

"""What run_qwen2.5-3b_geo3k_multiturn.sh and run_qwen2.5-3b_gsm8k_multiturn.sh have in common."""

GEO3K: dict[str, Any] = {
    "data.max_prompt_length": 2048,
    "data.max_response_length": 2048,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.gpu_memory_utilization": 0.5,
}

GSM8K: dict[str, Any] = {
    "data.max_prompt_length": 1024,
    "data.max_response_length": 1024,
    f"{ROLLOUT}.tensor_model_parallel_size": 1,
    f"{ROLLOUT}.gpu_memory_utilization": 0.85,
    f"{ROLLOUT}.multi_stage_wake_up": True,
    f"{ROLLOUT}.over_sample_rate": 0.1,
    f"{ROLLOUT}.mode": "async",
    "trainer.val_before_train": True,
}

CONFIG = """
hydra: {searchpath: ["file://verl/trainer/config"]}
defaults: [ppo_trainer, _self_]
data: {return_raw_chat: true}
actor_rollout_ref:
  hybrid_engine: true
  rollout: {name: sglang, multi_turn: {enable: true, max_assistant_turns: 5}}
"""

"""The keys of config/geo3k_multiturn_grpo.yaml and gsm8k_multiturn_grpo.yaml."""


def documented(title: str) -> list[str]:
    """Return the code blocks of a section of our page, in order."""
    (section,) = re.findall(
        rf"^### {re.escape(title)}\n(.*?)(?=^##)", PAGE.read_text(), re.S | re.M
    )
    return re.findall(r"^```\w*\n(.*?)^```", section, re.S | re.M)


def config_of(folder: Path, flags: Mapping[str, Any], changes: Sequence[str], model: str) -> Any:
    """Compose the example's configuration as `verl.trainer.main_ppo` does, then scale it down."""
    (folder / "example.yaml").write_text(CONFIG)
    given = {**FLAGS, **flags, "actor_rollout_ref.model.path": str(tiny_model_dir(model))}
    overrides = [f"{key}={value}" for key, value in given.items()]
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("example", overrides=[*overrides, *changes])
    OmegaConf.resolve(config)
    OmegaConf.update(config, "data.filter_overlong_prompts_workers", None, force_add=True)
    OmegaConf.update(config, "data.cache_dir", str(folder / "cache"), force_add=True)
    return config


def write_geo3k(path: Path) -> None:
    """Write the columns of geo3k_multiturn_w_tool.py over hiyouga/geometry3k."""
    rows: list[dict[str, Any]] = []
    for index, colour in enumerate(("white", "grey")):
        data = BytesIO()
        PilImage.new("RGB", (60, 40), colour).save(data, "PNG")
        question, answer = f"<image>Find x, which is {index + 3}.", str(index + 3)
        rows.append({
            "data_source": "hiyouga/geometry3k",
            "prompt": [
                {"role": "system", "content": "Use the `calc_geo3k_reward` tool."},
                {"role": "user", "content": f"{question} Put the answer in a box."},
            ],
            "images": [{"bytes": data.getvalue(), "path": None}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {
                "split": "train",
                "index": index,
                "answer": answer,
                "question": question,
                "need_tools_kwargs": True,
                "tools_kwargs": {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": answer}}},
            },
        })  # fmt: skip
    path.parent.mkdir(parents=True)
    datasets.Dataset.from_list(rows).to_parquet(path)


def rows_of(config: Any) -> list[dict[str, Any]]:
    """Read the training file with verl's dataset and collate function."""
    folder = config.actor_rollout_ref.model.path
    dataset = RLHFDataset(
        data_files=[config.data.train_files],
        tokenizer=hf_tokenizer(folder),
        config=config.data,
        processor=hf_processor(folder),
    )
    batch = collate_fn([dataset[number] for number in range(len(dataset))])
    return [{key: batch[key][n] for key in batch} for n in range(len(dataset))]


async def play(bench: Make, version: str, config: Any, policy: Any, *, n: int = 2) -> Run:
    made = bench(version, policy, config=config)
    samples = [
        Sample(uid=f"u{number}", envkit=row["envkit"], extra_info=row["extra_info"])
        for number, row in enumerate(rows_of(config))
    ]
    return await made.run(samples, n=n)


async def test_verl_geo3k_example_plays_its_own_dataset(
    bench: Make, version: str, tmp_path: Path
) -> None:
    export, loops, flags = documented("Geometry3K with tools")
    write_geo3k(tmp_path / "data/geo3k_multiturn_w_tool/train.parquet")
    (tmp_path / "data/geo3k_envkit").mkdir()
    (command,) = (line for line in export.splitlines() if "train" in line)
    words = shlex.split(command.replace("$HOME", str(tmp_path)))
    assert words[:2] == ["envkit", "export"]
    # envkit is on the path here and not installed, so its command has no entry point.
    run = "import typer; from envkit_exchange.export_command import export; typer.run(export)"
    done = subprocess.run(
        [sys.executable, "-c", f"{KNOWN}; {run}", *words[2:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "geo3k-v0" not in registry():
        exec(KNOWN)
    (tmp_path / "envkit.yaml").write_text(loops)
    changes = flags.replace("$HOME", str(tmp_path)).replace("/abs/path", str(tmp_path))
    config = config_of(tmp_path, GEO3K, changes.split(), "qwen2_5_vl")

    def solve(text: str, images: list[Any]) -> str:
        assert len(images) == 1
        answer = re.findall(r"which is (\d)", text)[-1]
        call = f'{{"name": "calc_score", "arguments": {{"answer": "{answer}"}}}}'
        asked = "tool_call>\n" + call in text
        return f"\\boxed{{{answer}}}" if asked else f"<tool_call>\n{call}\n</tool_call>"

    run = await play(bench, version, config, solve)
    assert len(run.rows) == 4
    for row in run.rows:
        check_row(row, prompt=2048, response=2048)
        check_images(row, run.worker.processor)
        assert row["reward_score"] == 1.0
        assert row["num_turns"] == 4
        assert row["reward_extra_info"]["envkit/tool_calls"] == 1.0


class SumEnv(Env):
    """What a user's own environment for GSM8K may look like."""

    def __init__(self) -> None:
        super().__init__(max_turns=2)
        self.tasks = ListSource([{"question": "1+1?", "answer": "2"}])

    def on_reset(self, task: Task) -> Turn:
        return Turn(task["question"])

    def on_turn(self, response_text: str) -> Turn:
        is_right = response_text.strip() == f"#### {self.task['answer']}"
        return Turn("Not yet.", reward=float(is_right), done=is_right)


async def test_verl_gsm8k_example_plays_its_own_dataset(
    bench: Make, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "my-gsm8k-v0" not in registry():
        register("my-gsm8k-v0", entry_point=SumEnv)
    convert, loops, flags = documented("A dataset and your own environment")
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "system", "content": "Use the tool."},
                       {"role": "user", "content": f"What is {n} + 1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
            "extra_info": {
                "split": "train",
                "index": n,
                "answer": f"{n} + 1 = {n + 1} #### {n + 1}",
                "question": f"What is {n} + 1?",
                "need_tools_kwargs": True,
                "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "2"}}},
                "interaction_kwargs": {"query": f"What is {n} + 1?", "ground_truth": str(n + 1)},
            },
        }
        for n in range(2)
    ]  # fmt: skip
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        exec(convert, {})  # our page's own lines
    (tmp_path / "envkit.yaml").write_text(loops)
    changes = flags.replace("/abs/path", str(tmp_path))
    config = config_of(tmp_path, GSM8K, changes.split(), "llama")

    def add(text: str, images: list[Any]) -> str:
        del images
        return (
            f"#### {int(re.findall(r'What is (.) ', text)[-1]) + 1}" if "Not yet" in text else "?"
        )

    run = await play(bench, version, config, add)
    assert [row["reward_score"] for row in run.rows] == [1.0] * 4
    for row in run.rows:
        check_row(row, prompt=1024, response=1024)
        assert row["num_turns"] == 4


@pytest.fixture(autouse=True)
def _verls_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be where `file://verl/trainer/config` exists, as in verl's checkout."""
    monkeypatch.chdir(Path(str(verl.__file__)).parents[1])
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def checked(overrides: list[str]) -> Any:
    """Compose a configuration as `verl.trainer.main_ppo` does, and let verl and envkit check it."""
    folder = Path(str(verl.__file__)).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    validate_config(config, need_reference_policy(config), need_critic(config))
    for part in (config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor):
        omega_conf_to_dataclass(part)
    # verl's check accepts a batch that the mini-batches do not divide.
    assert config.data.train_batch_size % config.actor_rollout_ref.actor.ppo_mini_batch_size == 0
    rows = config.data.max_prompt_length + config.data.max_response_length
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu >= rows
    assert config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu >= rows
    return config


def overrides_of(launch: Launch) -> list[str]:
    """Return what the script passes to verl."""
    assert launch.words[:2] == ["-m", "verl.trainer.main_ppo"]
    return launch.words[2:]


@pytest.mark.parametrize(("script", "paper"), RUNS)
def test_verl_accepts_the_launch_file(tmp_path: Path, script: str, paper: str) -> None:
    launch = start(f"verl/{script}", tmp_path, PAPER=paper)
    config = checked(overrides_of(launch))
    turns, tokens = SIZES[paper]
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.multi_turn.max_assistant_turns, config.data.max_response_length) == (
        turns,
        tokens,
    )
    assert list(config.trainer.logger) == ["console"]
    assert config.actor_rollout_ref.model.path.startswith("Qwen/Qwen3-VL-")
    assert ("2B" in config.actor_rollout_ref.model.path) == (
        script == "run_small.sh" or paper != ""
    )
    gpus = 1 if script == "run_small.sh" else 8
    assert config.trainer.n_gpus_per_node == gpus
    assert config.data.train_batch_size * rollout.n % gpus == 0
    (loop,) = yaml.safe_load(Path(rollout.agent.agent_loop_config_path).read_text())
    assert RolloutConfig.from_mapping(loop["envkit"]).limits.max_turns == turns
    assert loop["_target_"] == "envkit_verl.EnvAgentLoop"
    settings = VerlSettings.from_config(config)
    assert (settings.max_turns, settings.response_length) == (turns, tokens)
    assert settings.loss_agg_mode == "seq-mean-token-mean"  # one row per episode


def test_verl_accepts_the_launch_file_for_computer_use(tmp_path: Path) -> None:
    launch = start("../computer_use/verl/run.sh", tmp_path, LEVEL="2")
    config = checked(overrides_of(launch))
    settings = VerlSettings.from_config(config)
    assert (settings.max_turns, settings.response_length) == (15, 8192)
    for words in launch.exports:
        assert export(words, tmp_path).exists()
        assert words[:2] == ["export", "computer-use-v0"]
        assert {"--env-kwargs=level=2", "--env-kwargs=action=qwen3-vl"} <= set(words)


def test_verl_launch_file_takes_further_overrides_and_wandb(tmp_path: Path) -> None:
    launch = start("verl/run.sh", tmp_path, "trainer.save_freq=5", WANDB="1", GPUS="4", NODES="2")
    config = checked(overrides_of(launch))
    assert list(config.trainer.logger) == ["console", "wandb"]
    assert (config.trainer.save_freq, config.trainer.n_gpus_per_node, config.trainer.nnodes) == (
        5,
        4,
        2,
    )


def test_verl_refuses_a_key_that_it_does_not_know(tmp_path: Path) -> None:
    launch = start("verl/run.sh", tmp_path, "trainer.save_frequency=5")
    with pytest.raises(ConfigCompositionException, match="save_frequency"):
        checked(overrides_of(launch))


def test_verl_launch_file_writes_data_that_verl_reads(tmp_path: Path) -> None:
    import datasets

    launch = start("verl/run.sh", tmp_path)
    config = checked(overrides_of(launch))
    written = {export(words, tmp_path) for words in launch.exports}
    assert {str(one) for one in written} == {config.data.train_files, config.data.val_files}
    for file in written:
        rows = datasets.load_dataset("parquet", data_files=str(file), split="train")
        assert len(rows) == 2
        assert {"prompt", "data_source", "reward_model", "envkit", "agent_name"} <= set(
            rows.column_names
        )
        assert '"max_turns": 3' in rows[0]["envkit"]


def test_verl_page_command_is_one_that_verl_accepts() -> None:
    found = re.search(r"python3? -m verl.trainer.main_ppo \\\n(.*?)```", PAGE.read_text(), re.S)
    assert found
    config = checked(shlex.split(found[1].replace("\\\n", " ")))
    assert "VL" in config.actor_rollout_ref.model.path
    assert list(config.trainer.logger) == ["console"]


def test_verl_page_names_no_example_that_is_gone() -> None:
    assert "sglang_multiturn" not in PAGE.read_text()
