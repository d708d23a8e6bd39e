"""The launch files of examples/geo3k/skyrl and the page's command, given to SkyRL's own checks."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fakes.launch import RUNS, SIZES, Launch, export, start
from fakes.models import tiny_model_dir
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from transformers import AutoTokenizer

import envkit_geo3k
from envkit import register, registry
from envkit_skyrl.main import read_config

PAGE = Path(__file__).parents[3] / "docs/trainers/skyrl.md"


@pytest.fixture(autouse=True)
def environments_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register geo3k-v0, as installing envkit does; and have no key for a service."""
    if "geo3k-v0" not in registry():
        register("geo3k-v0", envkit_geo3k.SPEC.entry_point)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def settings_of(launch: Launch) -> list[str]:
    """Return what the script passes to SkyRL."""
    assert launch.words[:2] == ["-m", "envkit_skyrl.main"]
    return launch.words[2:]


def page_command() -> list[str]:
    """Return the settings of the page's command."""
    found = re.search(r"python3? -m envkit_skyrl.main \\\n(.*?)```", PAGE.read_text(), re.S)
    assert found
    return shlex.split(found[1].replace("\\\n", " "))


@pytest.mark.parametrize(("script", "paper"), RUNS)
def test_skyrl_accepts_the_launch_file(tmp_path: Path, script: str, paper: str) -> None:
    config: Any = read_config(settings_of(start(f"skyrl/{script}", tmp_path, PAPER=paper)))
    turns, tokens = SIZES[paper]
    gpus = 1 if script == "run_small.sh" else 8
    assert config.trainer.placement.policy_num_gpus_per_node == gpus
    assert config.generator.inference_engine.num_engines == gpus
    assert config.generator.max_turns == config.envkit["limits"]["max_turns"] == turns
    assert config.envkit["limits"]["max_response_tokens"] == tokens
    assert config.generator.sampling_params.max_generate_length == tokens
    assert config.trainer.logger == "console"
    assert ("2B" in config.trainer.policy.model.path) == (script == "run_small.sh" or paper != "")
    # SkyRL's check accepts true here, which its vision-language training does not support.
    assert config.trainer.remove_microbatch_padding is False
    assert config.trainer.epochs * config_tasks(script) >= 3000 * config.trainer.train_batch_size


@pytest.mark.parametrize("backend", ["", "http://127.0.0.1:8000"])
def test_skyrl_accepts_the_launch_file_for_search(tmp_path: Path, backend: str) -> None:
    launch = start("../search/skyrl/run.sh", tmp_path, BACKEND=backend)
    config: Any = read_config(settings_of(launch))
    assert config.generator.max_turns == config.envkit["limits"]["max_turns"] == 8
    assert config.envkit["env_id"] == "search-v0"
    assert "VL" not in config.trainer.policy.model.path
    for words in launch.exports:
        rows = export(words, tmp_path).read_bytes()
        assert backend.encode() in rows


def config_tasks(script: str) -> int:
    """Return the number of tasks that a script exports for training."""
    return 256 if script == "run_small.sh" else 2048


def test_skyrl_refuses_a_key_that_it_does_not_know(tmp_path: Path) -> None:
    launch = start("skyrl/run.sh", tmp_path, "trainer.ckpt_intervall=5")
    with pytest.raises(ValueError, match="ckpt_intervall"):
        read_config(settings_of(launch))


def test_skyrl_launch_file_takes_further_settings_and_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k")
    launch = start("skyrl/run.sh", tmp_path, "trainer.ckpt_interval=5", WANDB="1", NODES="2")
    config: Any = read_config(settings_of(launch))
    assert config.trainer.logger == "wandb"
    assert config.trainer.ckpt_interval == 5
    assert config.trainer.placement.policy_num_nodes == 2
    assert config.generator.inference_engine.num_engines == 16


def test_skyrl_launch_file_writes_data_that_skyrl_reads(tmp_path: Path) -> None:
    launch = start("skyrl/run.sh", tmp_path)
    config: Any = read_config(settings_of(launch))
    files = [str(export(words, tmp_path)) for words in launch.exports]
    assert {*config.data.train_data, *config.data.val_data} == set(files)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir("qwen3_vl"))
    for file in files:
        rows = PromptDataset([file], tokenizer, max_prompt_length=4096, num_workers=1)
        assert len(rows) == 2


def test_skyrl_page_command_starts_and_finds_its_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config: Any = read_config(page_command())
    assert "VL" in config.trainer.policy.model.path
    lines = re.findall(r"^envkit export (?:.*\\\n)*.*$", PAGE.read_text(), re.M)
    for line in lines:
        file = export(shlex.split(line.replace("\\\n", " "))[1:], tmp_path, count=8)
        assert file.exists()
    experiment: Any = BasePPOExp.__new__(BasePPOExp)
    experiment.cfg = config
    experiment.tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir("qwen3_vl"))
    assert len(experiment.get_eval_dataset()) == 8
    assert len(experiment.get_train_dataset()) == 8


def test_skyrl_page_says_how_to_install_what_a_run_needs() -> None:
    (line,) = re.findall(r"^pip install .*$", PAGE.read_text(), re.M)
    assert "skyrl[fsdp]" in line
    assert "--with envkit-rl" in PAGE.read_text()
