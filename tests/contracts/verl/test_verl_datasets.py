"""verl's own RLHFDataset reads our parquet files, and its rows play in the workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.verl_checks import check_row
from fakes.verl_envs import colour_of, register_verl_envs
from fakes.verl_worker import Bench, Sample, composed
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.utils import hf_processor, hf_tokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from envkit.images import Image
from envkit.rollout import EpisodeRequest
from envkit_exchange import TaskDraw, TaskFormat, export_tasks

Make = Callable[..., Bench]


@pytest.fixture(autouse=True)
def _toys() -> None:
    register_toys()
    register_verl_envs()


def export(path: Path, env_id: str, count: int | None = None, **options: Any) -> None:
    with TaskDraw(env_id, count=count, **options) as draw:
        export_tasks(draw, path, TaskFormat.VERL)


def load(kind: str, *paths: Path) -> RLHFDataset:
    folder = str(tiny_model_dir(kind))
    config = composed(folder).data
    for key, value in (
        ("filter_overlong_prompts_workers", None),  # in this process
        ("filter_overlong_prompts", True),
        ("cache_dir", str(paths[0].parent / "cache")),
        ("max_prompt_length", 300),
    ):
        OmegaConf.update(config, key, value, force_add=True)
    return RLHFDataset(
        data_files=[str(path) for path in paths],
        tokenizer=hf_tokenizer(folder),
        config=config,
        processor=hf_processor(folder),
    )


@pytest.mark.parametrize("kind", ["llama", "qwen2_5_vl"])
def test_verl_loads_our_rows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "train.parquet"
    export(path, "toy-echo-v0")
    dataset = load(kind, path)
    assert len(dataset) == 6
    row = dataset[2]
    assert row["raw_prompt"][1]["content"] == "Repeat this word: gamma"
    assert row["index"] == 2
    assert row["agent_name"] == "envkit"
    assert row["reward_model"]["ground_truth"] == ""
    assert dict(EpisodeRequest.from_column(row["envkit"]).task or {}) == {"word": "gamma"}


def test_verl_length_filter_sees_the_environments_text(tmp_path: Path) -> None:
    paths = [tmp_path / f"{words}.parquet" for words in (0, 20, 900)]
    for path in paths:
        export(path, "verl-steps-v0", env_kwargs={"prompt_padding": int(path.stem)})
    assert len(load("llama", *paths)) == 2


async def test_verl_rows_play_from_the_file_to_the_batch(bench: Make, tmp_path: Path) -> None:
    """Files, verl's dataset, verl's collate function, V0's batch, our loop."""
    paths = [tmp_path / "steps.parquet", tmp_path / "colours.parquet"]
    export(paths[0], "verl-steps-v0", seed=1)
    export(paths[1], "verl-colours-v0", 1, seed=2, env_kwargs={"rounds": 2})
    dataset = load("qwen2_5_vl", *paths)
    batch = DataProto.from_single_dict(collate_fn([dataset[0], dataset[1]]))
    batch.meta_info = {"global_steps": 1, "validate": False}
    made = bench(
        "v0", lambda text, images: colour_of(images[-1]) if images else "up", model="qwen2_5_vl"
    )
    out = await made.worker.generate_sequences(batch)
    assert out.batch["rm_scores"].sum(-1).tolist() == pytest.approx([0.75, 1.0])
    assert torch.equal((out.batch["response_mask"] > 0).any(-1), torch.tensor([True, True]))


async def test_verl_file_rows_play_in_both_workers(
    bench: Make, version: str, tmp_path: Path
) -> None:
    path = tmp_path / "val.parquet"
    tasks = [EpisodeRequest(env_id="verl-steps-v0", task={"goal": 2})]
    export(path, "verl-steps-v0", env_kwargs={"rounds": 2}, tasks=tasks)
    row: dict[str, Any] = load("llama", path)[0]
    made = bench(version, lambda *_: "up")
    run = await made.run([Sample(envkit=row["envkit"], extra_info=row["extra_info"])])
    check_row(run.rows[0])
    assert run.rows[0]["reward_score"] == pytest.approx(0.5)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_verls_dataset_reads_exported_tasks_and_images(suffix: str, tmp_path: Path) -> None:
    register_toys()
    path = tmp_path / f"tasks{suffix}"
    with TaskDraw("toy-dots-v0", count=3) as draw:
        export_tasks(draw, path, TaskFormat.VERL, with_images=True)
        examples = list(draw)
    folder = str(tiny_model_dir("qwen2_5_vl"))
    config = composed(folder).data
    for key, value in (("filter_overlong_prompts", False), ("cache_dir", str(tmp_path / "c"))):
        OmegaConf.update(config, key, value, force_add=True)
    dataset: Any = RLHFDataset(
        data_files=[str(path)],
        tokenizer=hf_tokenizer(folder),
        config=config,
        processor=hf_processor(folder),
    )

    for row, example in zip([dataset[n] for n in range(3)], examples, strict=True):
        assert EpisodeRequest.from_column(row["envkit"]) == example.request
        assert row["agent_name"] == "envkit"
        picture = row["raw_prompt"][-1]["content"][0]["image"]
        found = (
            Image.from_data_uri(picture) if isinstance(picture, str) else Image.from_pil(picture)
        )
        assert found == example.images[0]
