"""SkyRL's own examples with the changes that docs/trainers/skyrl.md names, and our launch files.

The flags and columns are those of SkyRL's examples geometry3k and search (0.4.0). The page's
commands run in a shell whose `uv` notes its arguments; SkyRL's configuration classes, dataset
reader and trainer take it from there. Only the model is smaller.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fakes.codecs import text_codec, vision_codec
from fakes.launch import RUNS, SIZES, Launch, export, start
from fakes.models import tiny_model_dir
from fakes.search_server import FakeSearchServer, served
from fakes.skyrl_client import FakeClient
from fakes.skyrl_run import advantages, real_trainer, trained
from PIL import Image as PilImage
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.utils import prepare_generator_input
from transformers import AutoTokenizer

import envkit_geo3k
import envkit_search
from envkit import Image, register, registry
from envkit_skyrl.experiment import EnvkitTrainConfig, make_generator
from envkit_skyrl.main import read_config

PAGE = Path(__file__).parents[3] / "docs/trainers/skyrl.md"

SCRIPTS: Mapping[str, tuple[str, str, str]] = {
    "geometry3k": (
        "run_geometry3k.sh",
        "python examples/train/geometry3k/geometry3k_entrypoint.py",
        """
        data.train_data="['$DATA_DIR/train.parquet']" data.val_data="['$DATA_DIR/test.parquet']"
        trainer.algorithm.advantage_estimator="grpo"
        trainer.policy.model.path="Qwen/Qwen3-VL-8B-Instruct"
        trainer.placement.colocate_all=true trainer.strategy=fsdp
        trainer.placement.policy_num_gpus_per_node=$NUM_GPUS
        trainer.placement.critic_num_gpus_per_node=$NUM_GPUS
        trainer.placement.ref_num_gpus_per_node=$NUM_GPUS
        generator.inference_engine.num_engines=$NUM_GPUS
        generator.inference_engine.tensor_parallel_size=1 trainer.epochs=6
        trainer.eval_batch_size=256 trainer.eval_before_train=true trainer.eval_interval=5
        trainer.update_epochs_per_batch=1 trainer.train_batch_size=128
        trainer.policy_mini_batch_size=64 trainer.micro_forward_batch_size_per_gpu=4
        trainer.micro_train_batch_size_per_gpu=4 trainer.ckpt_interval=5
        trainer.remove_microbatch_padding=false trainer.max_prompt_length=1024
        generator.sampling_params.max_generate_length=2048 generator.max_turns=3
        trainer.policy.optimizer_config.lr=1.0e-6 trainer.algorithm.use_kl_loss=false
        generator.inference_engine.backend=vllm generator.inference_engine.run_engines_locally=true
        generator.inference_engine.weight_sync_backend=nccl generator.batched=false
        generator.vision_language_generator=true environment.env_class=geometry3k
        generator.n_samples_per_prompt=4 generator.inference_engine.gpu_memory_utilization=0.8
        trainer.logger="$LOGGER" trainer.project_name="geometry3k" trainer.run_name="geometry3k_vlm"
        trainer.resume_mode=null trainer.log_path="/tmp/skyrl-logs"
        trainer.export_path="$EXPORT_PATH" trainer.dump_eval_results=true
        trainer.ckpt_path="$HOME/ckpts/geometry3k_vlm_ckpt"
        trainer.algorithm.loss_reduction=token_mean_legacy
        """,
    ),
    "search": (
        "run_search.sh",
        "-m skyrl.train.entrypoints.main_base",
        """
        data.train_data="['${DATA_DIR}/train.parquet']"
        data.val_data="['${DATA_DIR}/validation.parquet']"
        trainer.algorithm.advantage_estimator="grpo" trainer.policy.optimizer_config.lr=1.0e-6
        trainer.policy.optimizer_config.max_grad_norm=0.5
        trainer.policy.optimizer_config.num_warmup_steps=94 trainer.algorithm.use_kl_loss=true
        trainer.algorithm.kl_loss_coef=0.001
        trainer.algorithm.off_policy_correction.tis_ratio_type=token
        trainer.algorithm.off_policy_correction.token_tis_ratio_clip_high=2.0
        trainer.policy.model.path="Qwen/Qwen2.5-3B-Instruct" trainer.placement.colocate_all=true
        trainer.strategy=fsdp trainer.policy.fsdp_config.cpu_offload=false
        trainer.ref.fsdp_config.cpu_offload=true trainer.placement.policy_num_gpus_per_node=8
        trainer.placement.ref_num_gpus_per_node=8 generator.inference_engine.num_engines=4
        generator.inference_engine.tensor_parallel_size=2 generator.inference_engine.backend=vllm
        generator.inference_engine.run_engines_locally=true
        generator.inference_engine.weight_sync_backend=nccl
        generator.inference_engine.gpu_memory_utilization=0.5 trainer.epochs=1
        trainer.update_epochs_per_batch=1 trainer.train_batch_size=512
        trainer.policy_mini_batch_size=256 trainer.micro_forward_batch_size_per_gpu=4
        trainer.micro_train_batch_size_per_gpu=4 trainer.max_prompt_length=2048
        generator.max_input_length=4096 generator.sampling_params.max_generate_length=500
        generator.batched=false generator.use_conversation_multi_turn=false
        generator.n_samples_per_prompt=5 generator.max_turns=4
        generator.sampling_params.temperature=1.0 generator.sampling_params.top_p=1.0
        generator.sampling_params.stop='["</search>", "</answer>"]' environment.env_class="search"
        environment.skyrl_gym.max_env_workers=16 environment.skyrl_gym.search.log_requests=false
        environment.skyrl_gym.search.search_url="http://127.0.0.1:8000/retrieve"
        environment.skyrl_gym.search.topk=3 trainer.logger="console"
        trainer.project_name="skyrl-search" trainer.run_name="${RUN_NAME}" trainer.ckpt_interval=20
        trainer.hf_save_interval=100 trainer.max_ckpts_to_keep=5 trainer.resume_mode=latest
        trainer.ckpt_path="$HOME/${RUN_NAME}" trainer.eval_batch_size=256
        trainer.eval_before_train=false generator.eval_sampling_params.temperature=0
        generator.eval_sampling_params.stop='["</search>", "</answer>"]'
        generator.eval_sampling_params.max_generate_length=500
        trainer.export_path="$HOME/${RUN_NAME}/exports" trainer.eval_interval=50
        """,
    ),
}

"""By example: its script, what its `uv run` starts, and its flags."""


@pytest.fixture(autouse=True)
def known_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register what an installed envkit has as plugins; and have no key for a service."""
    for env_id, package in (("geo3k-v0", envkit_geo3k), ("search-v0", envkit_search)):
        if env_id not in registry():
            register(env_id, package.SPEC.entry_point)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def command_of(example: str) -> str:
    """Return the page's command for an example."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = (block for block in blocks if f"examples/train/{example}/" in block)
    return found


def arguments_of(example: str, folder: Path) -> list[str]:
    """Run the page's command over the example's script; return what its trainer is started with."""
    script, start, flags = SCRIPTS[example]
    home = folder / "examples/train" / example
    home.mkdir(parents=True)
    words = " ".join(flags.split())
    (home / script).write_text(f'uv run --isolated --extra fsdp {start} {words} "$@"\n')
    (folder / "uv").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > arguments\n')
    (folder / "uv").chmod(0o755)
    variables = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "DATA_DIR": str(folder),
        "HOME": str(folder),
        "EXPORT_PATH": str(folder / "exports"),
        "LOGGER": "console",
        "NUM_GPUS": "8",
        "RUN_NAME": "search",
    }
    subprocess.run(["bash", "-ec", command_of(example)], cwd=folder, env=variables, check=True)
    started = (folder / "arguments").read_text().split("\0")[:-1]
    module = started[started.index("-m") + 1]
    given = started[started.index("-m") + 2 :]
    overridden = "trainer.override_entrypoint=envkit_skyrl.main" in given
    assert module == "envkit_skyrl.main" or overridden, started[:8]
    return given


def configured(example: str, folder: Path, model: str) -> EnvkitTrainConfig:
    """Return the run's configuration, with a small model and small batches."""
    small = [f"trainer.policy.model.path={tiny_model_dir(model)}", "trainer.train_batch_size=2"]
    small += ["trainer.policy_mini_batch_size=2", "trainer.resume_mode=none"]
    for part in ("policy", "critic", "ref"):
        small.append(f"trainer.placement.{part}_num_gpus_per_node=1")
    small += ["trainer.micro_train_batch_size_per_gpu=1"]
    small += ["generator.inference_engine.num_engines=1"]
    small += ["generator.inference_engine.tensor_parallel_size=1"]
    small += ["generator.inference_engine.enable_ray_prometheus_stats=false"]
    return read_config([*arguments_of(example, folder), *small])


async def play(cfg: Any, policy: Callable[[Any], str], codec: Any) -> tuple[Any, Any, FakeClient]:
    """Return the generator's output and the trainer's batch for the dataset's first rows."""
    loader: Any = AutoTokenizer
    tokenizer = loader.from_pretrained(cfg.trainer.policy.model.path)
    length = 10 * cfg.trainer.max_prompt_length  # the tiny tokenizer writes more tokens
    dataset = PromptDataset(list(cfg.data.train_data), tokenizer, length, num_workers=1)
    prompts = dataset.collate_fn([dataset[row] for row in range(len(dataset))])
    batch, _ = prepare_generator_input(
        prompts, cfg.generator.n_samples_per_prompt, None, cfg.environment.env_class, "train", 1
    )
    client = FakeClient(codec, policy)
    output = await make_generator(cfg, client).generate(batch)
    made = real_trainer(cfg, dp=1)
    return output, await trained(made, output, len(batch["prompts"])), client


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train.parquet")


async def test_the_geometry3k_example_plays_geo3k(tmp_path: Path) -> None:
    answers = ["4", r"3 \sqrt { 2 }"]
    write(tmp_path, [geometry_row(number, answer) for number, answer in enumerate(answers)])
    cfg: Any = configured("geometry3k", tmp_path, "qwen2_5_vl")
    cfg.generator.max_input_length = 6144  # the tiny tokenizer writes more tokens

    def policy(ask: Any) -> str:
        answer = answers[int(ask.group)] if ask.member < 2 else "12345"
        if ask.turn == 0:
            call = {"name": "calc_score", "arguments": {"answer": answer}}
            return f"<tool_call>{json.dumps(call)}</tool_call>"
        return f"\\boxed{{{answer}}}"

    output, batch, client = await play(cfg, policy, vision_codec())
    assert [sum(row) for row in output["rewards"]] == [1.0, 1.0, 0.0, 0.0] * 2
    assert output["stop_reasons"] == ["stop"] * 8
    assert all(len(pixels) for pixels in output["pixel_values"])
    for number, row in enumerate(output["prompt_token_ids"][::4]):
        assert f"Find x in figure {number}." in vision_codec().decode(row)
    assert len(client.requests) == 16
    assert advantages(batch) == [0.866, 0.866, -0.866, -0.866] * 2


def geometry_row(number: int, answer: str) -> dict[str, Any]:
    """Return a row as the example's script writes it from hiyouga/geometry3k."""
    problem = f"<image>Find x in figure {number}."
    figure = Image.from_pil(PilImage.new("RGB", (112 + 28 * number, 112), "white"))
    part = {"type": "image_url", "image_url": {"url": figure.data_uri()}}
    prompt = [{"role": "user", "content": [part, {"type": "text", "text": f"Solve. {problem}"}]}]
    return {
        "prompt": prompt,
        "env_class": "geometry3k",
        "reward_spec": {"method": "rule", "ground_truth": answer},
        "extra_info": {
            "split": "train",
            "index": number,
            "problem": problem,
            "answer": answer,
        },
    }


async def test_the_search_example_plays_search(tmp_path: Path) -> None:
    questions = [("Where does the river Vessa flow to?", ["Karlo Marsh"]), ("Who?", ["Nobody"])]
    write(tmp_path, [search_row(number, *one) for number, one in enumerate(questions)])
    cfg: Any = configured("search", tmp_path, "llama")

    def policy(ask: Any) -> str:
        if ask.turn == 0:
            return "<think>I look.</think><search>River Vessa</search>"
        answer = questions[int(ask.group)][1][0] if ask.member < 2 else "the Po"
        return f"<think>So.</think><answer>{answer}</answer>"

    async with served(FakeSearchServer()) as address:
        cfg.envkit["env_kwargs"]["backend"] = address
        output, batch, client = await play(cfg, policy, text_codec())
    assert [sum(row) for row in output["rewards"]] == [1.0, 1.0, 0.0, 0.0, 0.0] * 2
    assert {tuple(one["params"]["stop"]) for one in client.requests} == {("</search>", "</answer>")}
    for row, (question, _) in zip(output["prompt_token_ids"][::5], questions, strict=True):
        assert question in text_codec().decode(row)
    assert "<information>" in text_codec().decode(output["response_ids"][0])
    assert advantages(batch)[:5] == pytest.approx([1.095, 1.095, -0.73, -0.73, -0.73])
    assert batch["rollout_logprobs"] is not None  # the script's TIS reads them


def search_row(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    """Return a row as the example's script writes it from PeterJinGo/nq_hotpotqa_train."""
    target = {"ground_truth": {"target": answers}, "style": "rule"}
    created = {"ground_truth": {"target": answers}, "question": question, "data_source": "nq"}
    return {
        "data_source": "searchR1_nq",
        "prompt": [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": f"Answer with <search>. Question: {question}"},
        ],
        "ability": "fact-reasoning",
        "env_class": "search",
        "reward_spec": target,
        "extra_info": {
            "index": number,
            "need_tools_kwargs": True,
            "question": question,
            "split": "train",
            "tools_kwargs": {"search": {"create_kwargs": created}},
        },
        "metadata": None,
    }


def test_a_field_that_the_dataset_lacks_is_named() -> None:
    from envkit.errors import ConfigurationError
    from envkit_skyrl.options import SkyRLOptions
    from envkit_skyrl.samples import read_samples

    options = SkyRLOptions.from_mapping(
        {"env_id": "search-v0", "task_fields": {"answers": "reward_model.ground_truth"}}
    )
    batch = {"prompts": [[{"role": "user", "content": "?"}]], "env_extras": [{"reward_spec": {}}]}
    (sample,) = read_samples(batch, options, is_eval=False)
    assert isinstance(sample.request, ConfigurationError)
    assert "'reward_model' is not among ['prompt', 'reward_spec']" in str(sample.request)


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
