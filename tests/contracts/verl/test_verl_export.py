"""verl's own RLHFDataset reads what `envkit export --format verl` writes, images included."""

from pathlib import Path
from typing import Any

import pytest
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.verl_worker import composed
from omegaconf import OmegaConf
from verl.utils import hf_processor, hf_tokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset

from envkit.images import Image
from envkit.rollout import EpisodeRequest
from envkit_exchange import TaskDraw, TaskFormat, export_tasks

pytestmark = pytest.mark.verl


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
