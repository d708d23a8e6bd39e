"""pyarrow reads the rows of a run, also after it was stopped."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from fakes.budget import examples
from fakes.trajectories import Reply, build, example, quick, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import StorageError
from envkit.metrics import aggregate
from envkit.trajectory import StopReason, Trajectory
from envkit_sinks import ParquetSink
from envkit_sinks.parquet import METRICS_KEY


def _written(file: Path, rows: list[Trajectory], **options: Any) -> list[dict[str, Any]]:
    sink = ParquetSink(file, **options)
    for row in rows:
        sink.write(row)
    sink.write_metrics(aggregate(rows))
    sink.close()
    return pq.read_table(file).to_pylist()


def test_row_says_how_an_episode_went(tmp_path: Path) -> None:
    faulted = example(1, stop_reason=StopReason.ENV_FAULT)
    first, second = _written(tmp_path / "run.parquet", [example(0), faulted])
    assert first["reward"] == 1.0
    assert first["stop_reason"] == "terminated"
    assert (first["turn_count"], first["tool_calls"], first["parse_errors"]) == (3, 1, 1)
    assert [turn["response_text"] for turn in first["turns"]] == ["a reply"] * 3
    assert json.loads(first["turns"][0]["tool_call"])["name"] == "calc_score"
    assert json.loads(first["turns"][2]["env_retries"]) == {"timeout": 2}
    assert json.loads(first["task"]) == {"question": "how long is AB?", "gold": 5}
    assert first["messages"][0] == {"role": "user", "content": "solve it"}
    assert first["images"] == [image.sha256 for image in example(0).images()]
    assert (second["is_faulted"], second["reward"], second["trained_tokens"]) == (True, None, 0)
    assert (second["fault_where"], second["fault_kind"]) == ("step", "timeout")


def test_reward_terms_are_a_column_of_numbers(tmp_path: Path) -> None:
    row = build((Reply(reward=1.0),))
    terms = {"format": 0.25, "answer": 0.75, "why": "text"}
    turn = replace(row.turns[0], info={"reward_terms": terms})
    (read,) = _written(tmp_path / "run.parquet", [replace(row, turns=(turn,))])
    assert read["reward_terms"] == [
        {"turn": 0, "name": "format", "value": 0.25},
        {"turn": 0, "name": "answer", "value": 0.75},
    ]


@settings(quick, max_examples=examples(12))
@given(rows=st.lists(trajectories(), min_size=1, max_size=5))
@pytest.mark.slow
def test_columns_add_up_to_the_metrics_of_the_run(
    rows: list[Trajectory], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("rows") / "run.parquet"
    read = _written(file, rows, group_rows=2)
    metrics = aggregate(rows)
    kept = pq.read_metadata(file).metadata[METRICS_KEY.encode()]
    assert json.loads(kept) == metrics
    rewards = [row["reward"] for row in read if row["reward"] is not None]
    assert rewards == [row.reward for row in rows if row.reward is not None]
    assert len(read) == metrics["episodes"]
    assert sum(row["response_tokens"] for row in read) == metrics["tokens/response/total"]
    assert sum(row["trained_tokens"] for row in read) == metrics["tokens/trained"]
    assert sum(row["image_count"] for row in read) == metrics["images/total"]
    assert sum(row["parse_errors"] for row in read) == metrics.get("parse_error/count", 0)
    assert sum(row["is_faulted"] for row in read) == metrics["episodes/faulted"]
    assert sum(row["env_restarts"] for row in read) == metrics.get("retry/restart", 0)


def test_rows_go_to_the_disk_in_groups_and_the_file_appears_when_it_is_whole(
    tmp_path: Path,
) -> None:
    file = tmp_path / "new" / "run.parquet"
    sink = ParquetSink(file, group_rows=2)
    for number in range(5):
        sink.write(example(number))
    assert not file.exists()
    sink.close()
    sink.close()
    assert [path.name for path in file.parent.iterdir()] == ["run.parquet"]
    assert pq.ParquetFile(file).num_row_groups == 3
    table = pyarrow.dataset.dataset(file).to_table(filter=pyarrow.compute.field("reward") > 0.5)
    assert table.num_rows == 5


def test_without_a_trajectory_there_is_no_file(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "run.parquet")
    sink.write_metrics({"episodes": 0.0})
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_only_replaced_on_request(tmp_path: Path) -> None:
    file = tmp_path / "run.parquet"
    file.write_text("mine")
    with pytest.raises(StorageError, match="already exists"):
        ParquetSink(file)
    sink = ParquetSink(file, overwrite=True)
    assert file.read_text() == "mine"
    sink.write(example())
    sink.close()
    assert pq.read_table(file).num_rows == 1
    with pytest.raises(StorageError, match="must not be a folder"):
        ParquetSink(tmp_path)
