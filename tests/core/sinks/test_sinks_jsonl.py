"""A run directory as a sink."""

import json
import math
from pathlib import Path

import pytest
from fakes.trajectories import example

from envkit.errors import ConfigurationError, StorageError
from envkit.metrics import aggregate
from envkit.sinks import JsonlSink, Sink
from envkit.trajectory import load


def test_sink_writes_a_run_directory(tmp_path: Path) -> None:
    sink: Sink = JsonlSink(tmp_path)
    sink.write(example(0))
    sink.write_metrics({"reward/mean": 0.25}, step=3)
    sink.write_metrics(aggregate([example(0)]), step=4)
    sink.close()
    assert load(tmp_path) == (example(0),)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored == {"step": 4, **aggregate([example(0)])}


def test_sink_keeps_the_metrics_it_has_when_new_ones_are_bad(tmp_path: Path) -> None:
    with JsonlSink(tmp_path) as sink:
        sink.write_metrics({"a": 1.0})
        with pytest.raises(ConfigurationError, match="finite"):
            sink.write_metrics({"a": math.nan})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"a": 1.0}
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.json", "trajectories.jsonl"}


def test_sink_refuses_a_used_directory(tmp_path: Path) -> None:
    with JsonlSink(tmp_path) as sink:
        sink.write(example(0))
    with pytest.raises(StorageError, match="overwrite"):
        JsonlSink(tmp_path)
