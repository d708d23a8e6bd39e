"""The launch files of examples/geo3k/verl, given to verl's own configuration and checks."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import verl
import yaml
from fakes.launch import RUNS, SIZES, Launch, export, start
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from envkit.rollout import RolloutConfig
from envkit_verl.settings import VerlSettings

PAGE = Path(__file__).parents[3] / "docs/trainers/verl.md"


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
