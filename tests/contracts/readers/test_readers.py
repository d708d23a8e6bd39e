"""The datasets library, pandas and pyarrow load every format of `envkit export` and the sink."""

import json
from pathlib import Path
from typing import Any

import datasets
import pandas
import pyarrow.parquet as parquet
import pytest
from fakes.envs import register_toys
from fakes.trajectories import Reply, build, example

from envkit.images import Image
from envkit.rollout import EpisodeRequest
from envkit.trajectory import save
from envkit_exchange import (
    Selection,
    TaskDraw,
    TaskFormat,
    TrajectoryFormat,
    export_tasks,
    export_trajectories,
)
from envkit_exchange.tables import write_table
from envkit_sinks import ParquetSink

SMALL_GROUP = 2000
"""Bytes of a row group that holds few of the rows below."""


def loaded(path: Path) -> Any:
    """Load a folder or a file as the datasets library does; the other readers find its rows too."""
    options: Any = {"cache_dir": str(path.parent / "cache"), "split": "train"}
    if path.is_dir():
        return datasets.load_dataset(str(path), **options)
    kind = "json" if path.suffix == ".jsonl" else "parquet"
    dataset = datasets.load_dataset(kind, data_files=str(path), **options)
    if kind == "parquet":
        assert len(pandas.read_parquet(path)) == parquet.read_table(path).num_rows == len(dataset)
    return dataset


def image_of(value: Any) -> Image:
    """Return an image as a reader shows it: decoded, or a data URI in JSON lines."""
    return Image.from_data_uri(value) if isinstance(value, str) else Image.from_pil(value)


def task_images(kind: TaskFormat, row: Any) -> list[Image]:
    if kind is not TaskFormat.SKYRL:
        return [image_of(one) for one in row["images"]]
    parts = [part for entry in row["prompt"] for part in entry["content"]]
    return [image_of(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]


@pytest.mark.parametrize("with_images", [False, True])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("kind", list(TaskFormat))
@pytest.mark.parametrize("env_id", ["toy-dots-v0", "toy-echo-v0"])
def test_tasks_load_with_their_requests_and_images(
    env_id: str, kind: TaskFormat, suffix: str, with_images: bool, tmp_path: Path
) -> None:
    register_toys()
    target = tmp_path / ("hf" if kind is TaskFormat.HF else f"tasks{suffix}")
    with TaskDraw(env_id, count=4) as draw:
        export_tasks(draw, target, kind, with_images=with_images, group_bytes=SMALL_GROUP)
        examples = list(draw)
    for row, drawn in zip(loaded(target), examples, strict=True):
        is_nested = kind in (TaskFormat.SLIME, TaskFormat.MILES)
        column = row["metadata"]["envkit"] if is_nested else row["envkit"]
        assert EpisodeRequest.from_column(column) == drawn.request
        if with_images:
            assert task_images(kind, row) == list(drawn.images)


@pytest.mark.parametrize("with_images", [False, True])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("kind", list(TrajectoryFormat))
def test_trajectories_load_with_their_tokens_and_images(
    kind: TrajectoryFormat, suffix: str, steps: bool, with_images: bool, tmp_path: Path
) -> None:
    text = [build((Reply(reward=1.0),), episode_id=f"e{n}") for n in range(3)]
    run = [example(n) for n in range(3)] if with_images else text
    save(run, tmp_path / "run.jsonl")
    target = tmp_path / ("hf" if kind is TrajectoryFormat.HF else f"rows{suffix}")
    export_trajectories(
        tmp_path / "run.jsonl", target, kind, Selection(steps=steps), group_bytes=SMALL_GROUP
    )
    dataset = loaded(target)
    for row, trajectory in zip([r for r in dataset if r["is_last"]], run, strict=True):
        assert tuple(row["input_ids"]) == trajectory.train_ids()
        trained = [n for n, mask in enumerate(trajectory.loss_mask()) if mask]
        trained = trained[-3:] if steps else trained  # of the last turn
        assert [n for n, mask in enumerate(row["loss_mask"]) if mask] == trained
        for n in trained:
            assert row["logprobs"][n] == trajectory.logprobs()[n]
        assert [image_of(one) for one in row["images"]] == list(trajectory.images())
        assert row["messages"][-1]["role"] == "assistant"


def test_long_rows_after_short_ones_load(tmp_path: Path) -> None:
    rows = [{"text": "x" * (1 if n < 100 else 1000)} for n in range(200)]
    write_table(rows, tmp_path / "rows.parquet", group_bytes=1000)

    assert loaded(tmp_path / "rows.parquet")["text"] == [row["text"] for row in rows]


def test_the_file_of_the_sink_loads(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "run.parquet", group_bytes=SMALL_GROUP)
    for number in range(4):
        sink.write(example(number))
    sink.write_metrics({"episodes": 4.0})
    sink.close()

    for number, row in enumerate(loaded(tmp_path / "run.parquet")):
        assert json.loads(row["task"]) == example(number).task
        assert row["images"] == [image.sha256 for image in example(number).images()]
