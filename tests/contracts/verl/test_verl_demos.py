"""verl's own multi-turn dataset reads what `envkit demos` writes."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from fakes.command import run_envkit
from fakes.models import tiny_model_dir
from fakes.walks import WALK, register_walk
from omegaconf import OmegaConf
from verl.utils import hf_processor, hf_tokenizer
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(autouse=True)
def _walk(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_walk()
    module: Any = types.ModuleType("qwen_vl_utils")
    module.fetch_image = lambda image, **_: image["image"].convert("RGB")
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", module)


@pytest.mark.parametrize("with_picture", [True, False])
def test_verl_trains_the_replies_of_our_rows(with_picture: bool, tmp_path: Path) -> None:
    out, folder = tmp_path / "d", str(tiny_model_dir("qwen2_5_vl"))
    given = ("--format", "verl", "--env-kwargs", f"with_picture={str(with_picture).lower()}")
    assert run_envkit("demos", WALK, "-n", 8, "-q", "--out", out, *given).code == 0
    tokenizer, processor = hf_tokenizer(folder), hf_processor(folder) if with_picture else None
    config = OmegaConf.create({"pad_mode": "no_padding", "max_length": 4096})
    dataset = MultiTurnSFTDataset([str(out / "train.parquet")], tokenizer, config, processor)
    row = dataset[0]

    trained = tokenizer.decode(row["input_ids"][row["loss_mask"] == 1])
    assert [one.strip() for one in trained.split("<|im_end|>")] == ["right"] * 3 + [""]
    assert ("multi_modal_inputs" in row) is with_picture
    if with_picture:
        assert len(row["multi_modal_inputs"]["image_grid_thw"]) == 3
