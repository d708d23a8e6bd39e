"""Row groups of parquet files are small enough for readers, however large the rows become."""

from pathlib import Path
from typing import Any

import pytest
from fakes.envs import EchoEnv
from fakes.trajectories import Context, Reply, build, picture

import envkit
from envkit.env import Turn
from envkit.errors import StorageError
from envkit.images import Image
from envkit.tasks import Task
from envkit.trajectory import save
from envkit_exchange import (
    Selection,
    TaskDraw,
    TaskFormat,
    TrajectoryFormat,
    export_tasks,
    export_trajectories,
    tables,
)
from envkit_exchange.tables import write_table
from envkit_sinks import ParquetSink

parquet = pytest.importorskip("pyarrow.parquet")


def groups(file: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of each row group."""
    source = parquet.ParquetFile(file)
    return [source.read_row_group(n).to_pylist() for n in range(source.num_row_groups)]


def image_bytes(rows: list[dict[str, Any]]) -> int:
    return sum(len(image["bytes"]) for row in rows for image in row["images"])


def screens(turns: int) -> list[Reply]:
    """Return replies that a new screen follows, except after the last one."""
    shown = [Context(images=(picture(n),)) for n in range(1, turns)]
    return [*(Reply(observation=one) for one in shown), Reply(reward=1.0)]


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("kind", list(TrajectoryFormat))
def test_groups_of_long_episodes_stay_below_the_bound(
    kind: TrajectoryFormat, steps: bool, tmp_path: Path
) -> None:
    start = Context(images=(picture(0),))
    run = [build(screens(24), prompt=start, episode_id=f"e{n}") for n in range(6)]
    save(run, tmp_path / "run.jsonl")
    bound = 12 * len(picture(0).png_bytes())
    is_folder = kind is TrajectoryFormat.HF
    target = tmp_path / ("hf" if is_folder else "rows.parquet")
    export_trajectories(
        tmp_path / "run.jsonl", target, kind, Selection(steps=steps), group_bytes=bound
    )
    file = target / "data/train-00000-of-00001.parquet" if is_folder else target
    written = groups(file)

    assert all(len(rows) == 1 or image_bytes(rows) <= bound for rows in written)
    rows = [row for group in written for row in group]
    expected = [(t.episode_id, n) for t in run for n in range(24 if steps else 1)]
    assert [(row["episode_id"], row["row"]) for row in rows] == expected
    for number, row in enumerate(rows):
        shown = (number % 24 + 1) if steps else 24
        pictures = [Image.from_bytes(image["bytes"]) for image in row["images"]]
        assert pictures == list(run[0].images())[:shown]


class LateImageEnv(EchoEnv):
    """Shows an image from the second task on."""

    def on_reset(self, task: Task) -> Turn:
        turn = super().on_reset(task)
        return turn if task["word"] == "alpha" else Turn(turn.text, images=[picture(1)])


@pytest.mark.parametrize("kind", list(TaskFormat))
def test_groups_of_tasks_stay_below_the_bound(kind: TaskFormat, tmp_path: Path) -> None:
    import gymnasium

    if "envkit/late-image-v0" not in gymnasium.registry:
        envkit.register("late-image-v0", entry_point=LateImageEnv)
    target = tmp_path / ("hf" if kind is TaskFormat.HF else "rows.parquet")
    with TaskDraw("late-image-v0") as draw:
        assert export_tasks(draw, target, kind, with_images=True, group_bytes=1) == 6
    file = target / "data/train-00000-of-00001.parquet" if kind is TaskFormat.HF else target

    assert [len(rows) for rows in groups(file)] == [1] * 6


def test_a_batch_as_long_as_the_first_group_stays_below_eight_bounds(tmp_path: Path) -> None:
    """datasets 3 reads as many rows at a time as the first group has."""
    sizes = [1] * 300 + [500] * 300 + [1]
    rows = [{"images": [{"bytes": bytes(size), "path": None}]} for size in sizes]
    write_table(rows, tmp_path / "t.parquet", tables.image_column(), group_bytes=1000)
    written = groups(tmp_path / "t.parquet")

    assert [row for group in written for row in group] == rows
    assert len(written[0]) * max(sizes) <= 8 * 1000
    assert b"huggingface" in parquet.read_schema(tmp_path / "t.parquet").metadata
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_small_rows_share_groups_of_128(tmp_path: Path) -> None:
    write_table([{"number": n} for n in range(300)], tmp_path / "t.parquet")

    assert [len(rows) for rows in groups(tmp_path / "t.parquet")] == [128, 128, 44]


def test_a_row_that_no_reader_could_load_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_LONGEST_ROW", 100)
    rows = [{"images": [{"bytes": bytes(size), "path": None}]} for size in (40, 101)]
    with pytest.raises(StorageError, match=r"smaller than 2 GiB.*write .jsonl instead"):
        write_table(rows, tmp_path / "t.parquet", tables.image_column())
    assert not list(tmp_path.iterdir())


def test_long_texts_share_no_group_of_the_sink(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "run.parquet", group_bytes=20_000)
    for number in range(6):
        sink.write(build([Reply(text="x" * 9_000)], episode_id=f"e{number}"))
    sink.close()
    written = groups(tmp_path / "run.parquet")

    assert [len(rows) for rows in written] == [1] * 6
    assert [row["episode_id"] for group in written for row in group] == [f"e{n}" for n in range(6)]
