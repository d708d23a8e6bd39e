"""Sinks of `envkit rollout`: their options, their files, and how they end."""

import json
import signal
import socket
import time
from pathlib import Path
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from fakes.command import run_envkit, start_envkit
from fakes.envs import register_toys
from fakes.models import tiny_model_dir
from fakes.wandb_file import WandbFile
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from envkit.trajectory import Trajectory, load
from envkit_sinks import ParquetSink


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    register_toys()


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model_dir("qwen2_5_vl")


def _rollout(model: Path, *more: object, count: int = 4) -> list[object]:
    return ["rollout", "toy-adder-v0", "--policy", "oracle", "--model", model, "-n", count, *more]


@pytest.mark.slow
def test_every_sink_holds_the_metrics_of_the_run(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    shown = run_envkit(
        *_rollout(
            model, "--out", "run", "--sink=tensorboard=board", "--sink=parquet=run.parquet",
            "--sink=prometheus", "--sink=opentelemetry", "--sink=wandb=demo",
        )
    )  # fmt: skip
    assert shown.code == 0, shown.err
    metrics = json.loads(Path("run/metrics.json").read_text())
    assert "metrics: http://127.0.0.1:" in shown.err
    assert "W&B offline; upload it with: wandb sync" in shown.err
    board = EventAccumulator("board")
    board.Reload()
    (event,) = board.Tensors("reward/mean")
    assert make_ndarray(event.tensor_proto) == metrics["reward/mean"]
    kept = json.loads(pq.read_metadata("run.parquet").metadata[b"envkit.metrics"])
    assert kept == metrics
    assert pq.read_table("run.parquet").num_rows == 4
    spans = [json.loads(line) for line in shown.err.splitlines() if line.startswith('{"name"')]
    (told,) = [span for span in spans if span["name"] == "metrics"]
    assert told["attributes"]["envkit.metric.reward/mean"] == metrics["reward/mean"]
    assert sum(span["name"] == "episode" for span in spans) == 4
    uploaded = WandbFile(Path())
    assert any(row.get("reward/mean") == metrics["reward/mean"] for row in uploaded.history())
    config = uploaded.config()
    assert (config["env_id"], config["episodes"]) == ("toy-adder-v0", 4)
    assert config["config"]["sampling"] == {"max_new_tokens": 1_000_000}


@pytest.mark.slow
def test_a_failing_sink_loses_no_trajectory_and_is_reported(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(sink: ParquetSink, trajectory: Trajectory) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(ParquetSink, "write", write)
    arguments = _rollout(model, "--sink=parquet=run.parquet", "--sink=tensorboard=board", count=6)
    shown = run_envkit(*arguments, "--out", "run")
    assert shown.code == 1
    assert len(load("run")) == 6
    assert (Path("run") / "report.html").is_file()
    assert "sink parquet failed; the run continues: the disk is gone" in shown.err
    assert "sink parquet: 3 writes failed, and 4 skipped after that" in shown.err
    board = EventAccumulator("board")
    board.Reload()
    assert len(board.Tensors("episode/reward")) == 6
    quiet = run_envkit(*arguments, "--out", "quiet", "--quiet")
    assert len(quiet.err.splitlines()) == 1


def test_a_sink_that_cannot_be_opened_stops_before_anything_is_played(model: Path) -> None:
    Path("mine.parquet").write_text("mine")
    taken = socket.create_server(("127.0.0.1", 0))
    with taken:
        port = taken.getsockname()[1]
        for options, code, message in (
            (["--sink=parquet=mine.parquet"], 1, "already exists"),
            ([f"--sink=prometheus={port}"], 1, f"127.0.0.1:{port}"),
            (["--sink=prometheus", "--sink=tensorboard=mine.parquet"], 1, "TensorBoard"),
        ):
            shown = run_envkit(*_rollout(model, "--out", "run", *options), "--quiet")
            assert shown.code == code, options
            assert message in shown.last_error
            assert not Path("run").exists()
    assert Path("mine.parquet").read_text() == "mine"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("parket=a", "Did you mean 'parquet'?"),
        ("parquet", "the sink parquet needs a path"),
        ("tensorboard=", "the sink tensorboard needs a path"),
        ("prometheus=many", "a port from 0 to 65535, got 'many'"),
        ("prometheus=65536", "a port from 0 to 65535, got '65536'"),
        ("prometheus=\u0663", "a port from 0 to 65535, got"),
        ("opentelemetry=yes", "takes no value, got 'yes'"),
    ],
)
def test_wrong_value_of_a_sink_is_refused(model: Path, option: str, message: str) -> None:
    shown = run_envkit(*_rollout(model, "--out", "run", f"--sink={option}", "--quiet"))
    assert shown.code == 2
    assert message in shown.last_error
    assert not Path("run").exists()


def test_sink_is_named_once(model: Path) -> None:
    twice = ("--sink", "parquet=a", "--sink", "parquet=b")
    shown = run_envkit(*_rollout(model, "--out", "run", *twice))
    assert shown.code == 2
    assert "at most one sink of a name, got two of 'parquet'" in shown.last_error


@pytest.mark.slow
def test_ctrl_c_leaves_a_readable_parquet_file_and_the_endpoint_served_until_then(
    model: Path,
) -> None:
    process = start_envkit(
        *_rollout(model, "--out", "run", "--sink=parquet=run.parquet", count=100_000),
        "--sink=prometheus",
        before="from fakes.envs import register_toys; register_toys()",
    )  # fmt: skip
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        url = first.removeprefix("metrics: ").strip()
        deadline = time.monotonic() + 60
        while (count := _episodes_at(url)) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    rows = pq.read_table("run.parquet").num_rows
    assert rows == len(load("run")) >= count


def _episodes_at(url: str) -> float:
    with urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "envkit_episodes_total"
    )
