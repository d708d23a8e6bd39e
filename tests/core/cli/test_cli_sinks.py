"""Sinks of `envkit rollout`: options, files, ends, and each finished episode once over resumes."""

import json
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from fakes.command import Outcome, run_envkit, start_envkit
from fakes.envs import register_toys
from fakes.hostile_runs import EPISODES, RUN, RunEnv, Sent, resume, rollout
from fakes.wandb_file import WandbFile
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from envkit.trajectory import Trajectory, load
from envkit_sinks import ParquetSink, TensorBoardSink


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(own_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]  # used by name
    monkeypatch.setenv("NETRC", str(Path("netrc").absolute()))
    for name in ("API_KEY", "MODE", "DIR", "PROJECT"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    register_toys()


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
        deadline = time.monotonic() + 120
        while (count := _episodes_at(url)) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    rows = pq.read_table("run.parquet").num_rows
    assert rows == len(load("run")) >= count


def _episodes_at(url: str) -> float:
    with urlopen(url, timeout=120) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "envkit_episodes_total"
    )


BOARD = "--sink=tensorboard=board"
PARQUET = "--sink=parquet=run.parquet"


def stopped(*sinks: object) -> int:
    """Play until Ctrl-C and return the number of finished episodes; others are under way."""
    RunEnv.arm(Sent(signal.SIGINT), at=14)
    assert rollout(*sinks).code == 130
    RunEnv.arm(None)
    return sum(one.stop_reason.value != "aborted" for one in load(RUN))


def steps_of(tag: str, board: str = "board") -> list[int]:
    """Return the steps of everything in a TensorBoard folder under a tag, in the order of time.

    Files are read by name, which is not that order if one process opens ten in a second.
    """
    reader: Any = EventAccumulator(board, size_guidance={"tensors": 0})
    reader.Reload()
    return [event.step for event in sorted(reader.Tensors(tag), key=lambda one: one.wall_time)]


def test_board_shows_each_episode_once_however_often_the_run_is_resumed() -> None:
    done = stopped(BOARD)
    assert 0 < done < EPISODES
    assert steps_of("episode/turns") == [*range(1, done + 1)]
    for _ in range(3):
        assert resume(RUN, BOARD).code == 0
        assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]
        assert steps_of("reward/mean") == [done, EPISODES]
        histograms = steps_of("histogram/turns")
        assert histograms == sorted(histograms)


def test_a_new_or_deleted_board_gets_the_whole_run() -> None:
    done = stopped(BOARD)
    assert resume(RUN, "--sink=tensorboard=other").code == 0
    assert steps_of("episode/turns", "other") == [*range(1, EPISODES + 1)]
    assert len(steps_of("episode/turns")) == done
    assert resume(RUN, BOARD).code == 0
    assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]
    shutil.rmtree("board")
    assert resume(RUN, BOARD).code == 0
    assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]
    assert steps_of("reward/mean") == [EPISODES]


def test_a_board_that_another_run_used_counts_on() -> None:
    assert rollout(BOARD, episodes=2, out="first").code == 0
    assert rollout(BOARD, episodes=2).code == 0
    assert rollout(BOARD, "--overwrite", episodes=2).code == 0

    assert steps_of("episode/turns") == [1, 2, 3, 4, 5, 6]
    assert steps_of("reward/mean") == [2, 4, 6]


def test_a_resume_delivers_what_a_sink_failed_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(sink: TensorBoardSink, trajectory: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(TensorBoardSink, "write", write)
        assert rollout(BOARD).code == 1
    assert resume(RUN, BOARD).code == 0
    assert steps_of("episode/turns") == [*range(1, EPISODES + 1)]


def test_parquet_file_holds_the_stored_episodes_after_each_command() -> None:
    stopped(PARQUET)
    for code in (130, 0, 0):
        stored = [one.episode_id for one in load(RUN)]
        assert pq.read_table("run.parquet")["episode_id"].to_pylist() == stored
        assert resume(RUN, PARQUET).code == 0, code
    assert len(stored) == EPISODES


def test_each_episode_is_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    RunEnv.arm(Sent(signal.SIGINT), at=14)
    shown = [rollout("--sink=opentelemetry")]
    RunEnv.arm(None)
    shown += [resume(RUN, "--sink=opentelemetry"), resume(RUN, "--sink=opentelemetry")]
    episodes = [one for each in shown for one in spans(each, "episode")]
    ids = [span["attributes"]["gen_ai.conversation.id"] for span in episodes]

    assert sorted(ids) == sorted(one.episode_id for one in load(RUN))
    assert [len(spans(each, "metrics")) for each in shown] == [1, 1, 0]


def test_a_run_that_replaces_another_has_no_record_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    assert len(spans(rollout("--sink=opentelemetry", episodes=2), "episode")) == 2
    assert rollout("--overwrite", episodes=2).code == 0
    assert not list(RUN.glob("received-*"))
    assert len(spans(resume(RUN, "--sink=opentelemetry"), "episode")) == 2
    assert len(spans(rollout("--overwrite", "--sink=opentelemetry", episodes=2), "episode")) == 2
    assert spans(resume(RUN, "--sink=opentelemetry"), "episode") == []


def spans(shown: Outcome, name: str) -> list[dict[str, Any]]:
    lines = [line for line in shown.err.splitlines() if line.startswith('{"name"')]
    return [span for span in map(json.loads, lines) if span["name"] == name]


@pytest.mark.slow
def test_offline_folders_of_wandb_are_one_run_with_each_episode_once() -> None:
    done = stopped("--sink=wandb")
    first = WandbFile(Path())
    Path("wandb").rename("before")
    assert resume(RUN, "--sink=wandb").code == 0
    second = WandbFile(Path())
    numbers = [
        row["episode/number"]
        for row in first.history() + second.history()
        if "episode/turns" in row
    ]

    assert numbers == [*range(1, EPISODES + 1)]
    assert done < EPISODES
    assert first.run_id() == second.run_id()
    calls = [*first.steps(), *second.steps()]
    assert calls == sorted(set(calls))
    Path("wandb").rename("after")
    assert resume(RUN, "--sink=wandb").code == 0
    assert WandbFile(Path()).history() == []
