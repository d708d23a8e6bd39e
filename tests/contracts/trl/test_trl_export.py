"""The datasets library and TRL read what `envkit export` writes."""

from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from fakes.envs import register_toys
from fakes.trajectories import example
from trl.data_utils import prepare_multimodal_messages

from envkit.images import Image
from envkit.rollout import EpisodeRequest, RolloutConfig
from envkit.trajectory import save
from envkit_exchange import (
    Selection,
    TaskDraw,
    TaskFormat,
    TrajectoryFormat,
    export_tasks,
    export_trajectories,
)
from envkit_trl.requests import RequestIndex

pytestmark = pytest.mark.trl


@pytest.fixture(autouse=True)
def _toys() -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    register_toys()


def loaded(path: Path, folder: Path) -> Any:
    """Load a folder or a file as the datasets library does."""
    options: Any = {"cache_dir": str(folder / "cache"), "split": "train"}
    if path.is_dir():
        return load_dataset(str(path), **options)
    kind = "json" if path.suffix == ".jsonl" else "parquet"
    return load_dataset(kind, data_files=str(path), **options)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_rollout_function_finds_the_requests_of_exported_tasks(
    suffix: str, tmp_path: Path
) -> None:
    with TaskDraw("toy-dots-v0", count=4) as draw:
        export_tasks(draw, tmp_path / f"t{suffix}", TaskFormat.TRL)
        expected = [e.request for e in draw]
    dataset = loaded(tmp_path / f"t{suffix}", tmp_path)
    index = RequestIndex(RolloutConfig())
    index.add(dataset)

    assert [index.find(row["prompt"]) for row in dataset] == expected


@pytest.mark.parametrize("kind", [TaskFormat.TRL, TaskFormat.HF])
def test_exported_images_are_decoded_and_placed_by_trl(kind: TaskFormat, tmp_path: Path) -> None:
    target = tmp_path / ("hf" if kind is TaskFormat.HF else "t.parquet")
    with TaskDraw("toy-dots-v0", count=2) as draw:
        export_tasks(draw, target, kind, with_images=True)
        examples = list(draw)
    for row, drawn in zip(loaded(target, tmp_path), examples, strict=True):
        messages = prepare_multimodal_messages(row["prompt"], images=row["images"])
        parts = messages[0]["content"]

        assert EpisodeRequest.from_column(row["envkit"]) == drawn.request
        assert Image.from_pil(parts[0]["image"]) == drawn.images[0]
        assert parts[1]["text"].startswith("How many")


@pytest.mark.parametrize("kind", list(TrajectoryFormat))
def test_exported_trajectories_load_with_exact_tokens_and_images(
    kind: TrajectoryFormat, tmp_path: Path
) -> None:
    run = [example(n) for n in range(3)]
    save(run, tmp_path / "run.jsonl")
    target = tmp_path / ("hf" if kind is TrajectoryFormat.HF else "t.parquet")
    export_trajectories(tmp_path / "run.jsonl", target, kind, Selection())

    for row, trajectory in zip(loaded(target, tmp_path), run, strict=True):
        assert tuple(row["input_ids"]) == trajectory.train_ids()
        assert tuple(row["loss_mask"]) == trajectory.loss_mask()
        assert tuple(row["logprobs"]) == trajectory.logprobs()
        assert [Image.from_pil(p) for p in row["images"]] == list(trajectory.images())
        filled = prepare_multimodal_messages(row["messages"], images=row["images"])
        shown = [p["image"] for m in filled for p in m["content"] if p["type"] == "image"]
        assert [Image.from_pil(p) for p in shown] == list(trajectory.images())
