"""Sinks: a run directory, failures that cost neither a trajectory nor the run, and deliveries."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes.processes import run_python
from fakes.trajectories import example

from envkit.errors import ConfigurationError, MissingDependencyError, StorageError
from envkit.metrics import aggregate
from envkit.sinks import GuardedSinks, JsonlSink, Received, Sink
from envkit.sinks.guarded import PATIENCE
from envkit.trajectory import StopReason, Trajectory, load
from envkit_sinks import OpenTelemetrySink, ParquetSink, PrometheusSink, TensorBoardSink, WandbSink


class ListSink:
    """Keeps what it gets; fails at the calls or episodes that it is given."""

    def __init__(self, *bad: int | str) -> None:
        self.bad, self.calls = bad, 0
        self.rows: list[str] = []
        self.metrics: list[Mapping[str, float]] = []
        self.closed = 0

    def write(self, trajectory: Trajectory) -> None:
        self.calls += 1
        if self.calls in self.bad or trajectory.episode_id in self.bad:
            raise OSError(f"no space\nfor call {self.calls}")
        self.rows.append(trajectory.episode_id)

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)

    def close(self) -> None:
        self.closed += 1


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


# ---- failing sinks


def test_the_others_get_everything_and_the_failure_is_reported_once() -> None:
    told: list[str] = []
    bad, good = ListSink(2, 4), ListSink()
    with GuardedSinks({"bad": bad, "good": good}, tell=told.append) as sinks:
        for number in range(5):
            sinks.write(example(number))
        sinks.write_metrics({"episodes": 5.0})
    assert len(good.rows) == 5
    assert bad.rows == ["episode-0", "episode-2", "episode-4"]
    assert told == ["sink bad failed; the run continues: no space for call 2"]
    (failures,) = sinks.failures
    assert str(failures) == "bad: 2 writes failed: no space for call 2"
    assert (bad.closed, good.closed) == (1, 1)
    assert bad.metrics == [{"episodes": 5.0}]


def test_a_sink_that_only_fails_is_left_alone_and_closed() -> None:
    bad = ListSink(*range(100))
    with GuardedSinks({"bad": bad}) as sinks:
        for number in range(10):
            sinks.write(example(number))
        sinks.write_metrics({})
    assert bad.calls == PATIENCE
    (failures,) = sinks.failures
    assert (failures.failed, failures.skipped) == (PATIENCE, 11 - PATIENCE)
    assert "and 8 skipped after that" in str(failures)
    assert bad.closed == 1


def test_without_a_failure_there_is_nothing_to_tell() -> None:
    with GuardedSinks({"good": ListSink()}) as sinks:
        sinks.write(example())
    assert sinks.failures == ()


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (lambda: TensorBoardSink("x"), "tensorboard", "tensorboard"),
        (WandbSink, "wandb", "wandb"),
        (lambda: ParquetSink("x.parquet"), "pyarrow", "parquet"),
        (lambda: PrometheusSink(port=0), "prometheus_client", "prometheus"),
        (OpenTelemetrySink, "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(
    make: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'envkit-rl\[{extra}\]'"):
        make()


@pytest.mark.slow
def test_sinks_are_imported_without_their_libraries() -> None:
    code = (
        "import sys, envkit_sinks\n"
        "heavy = ('tensorboard', 'wandb', 'pyarrow', 'prometheus_client', 'opentelemetry')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run_python("-c", code).strip() == "[]"


# ---- each finished episode once, over all processes that write to a sink


def process(file: Path, sink: ListSink, *rows: Trajectory, step: int | None = None) -> None:
    """Write rows and metrics as one process of a run does."""
    with GuardedSinks({"sink": sink}, received={"sink": Received(file)}) as sinks:
        for row in rows:
            sinks.write(row)
        sinks.write_metrics({"episodes": float(len(rows))}, step)


def test_each_finished_episode_arrives_once(tmp_path: Path) -> None:
    sink, file = ListSink(), tmp_path / "received.txt"
    rows = [example(n) for n in range(4)]
    aborted = example(2, stop_reason=StopReason.ABORTED)
    process(file, sink, rows[0], rows[1], aborted)
    process(file, sink, *rows)
    process(file, sink, *rows)

    assert sink.rows == [f"episode-{n}" for n in range(4)]
    assert len(sink.metrics) == 2  # the third process had nothing new
    assert Received(file).count == 4


def test_what_a_sink_failed_to_take_arrives_later(tmp_path: Path) -> None:
    file, rows = tmp_path / "received.txt", [example(n) for n in range(3)]
    process(file, ListSink("episode-1"), *rows)
    sink = ListSink()
    process(file, sink, *rows)

    assert sink.rows == ["episode-1"]


class Batching(ListSink):
    """Sends two episodes at a time."""

    has_unsent = False

    def write(self, trajectory: Trajectory) -> None:
        self.has_unsent = not self.has_unsent
        super().write(trajectory)


def test_a_sink_that_sends_batches_has_only_what_it_sent(tmp_path: Path) -> None:
    file, rows = tmp_path / "received.txt", [example(n) for n in range(6)]
    sinks = GuardedSinks({"sink": Batching("episode-3")}, received={"sink": Received(file)})
    for row in rows[:5]:  # the second batch is lost, and a kill loses the fifth episode
        sinks.write(row)
    assert [row.episode_id in Received(file) for row in rows] == [True, True, *[False] * 4]
    sink = Batching()
    process(file, sink, *rows)

    assert sink.rows == [f"episode-{n}" for n in range(2, 6)]
    assert Received(file).count == 6


def test_metrics_of_a_training_step_always_arrive(tmp_path: Path) -> None:
    sink, file = ListSink(), tmp_path / "received.txt"
    for step in (1, 2):
        process(file, sink, example(0), step=step)

    assert (sink.rows, len(sink.metrics)) == (["episode-0"], 2)


def test_metrics_that_a_killed_process_did_not_write_arrive_later(tmp_path: Path) -> None:
    sink, file = ListSink(), tmp_path / "received.txt"
    with Received(file) as received:
        received.add("episode-0")
    process(file, sink, example(0))

    assert (sink.rows, len(sink.metrics)) == ([], 1)


def test_a_cut_line_costs_only_its_episode(tmp_path: Path) -> None:
    sink, file = ListSink(), tmp_path / "received.txt"
    process(file, sink, *(example(n) for n in range(3)))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:5])  # key, two ids and a part of the third
    process(file, sink, *(example(n) for n in range(4)))

    assert sink.rows[3:] == ["episode-2", "episode-3"]
    assert Received(file).key.encode() == lines[0].strip()
    assert "episode-3" in Received(file)


def test_an_id_may_be_any_text(tmp_path: Path) -> None:
    names = ["null", "", "two\nlines", "half \ud83d", "a" * 16]
    for name in names:
        with Received(tmp_path / "received.txt") as received:
            assert name not in received
            received.add(name)

    again = Received(tmp_path / "received.txt")
    assert all(name in again for name in names)
    assert (again.count, again.has_metrics) == (5, False)


@pytest.mark.parametrize("content", [b"", b"\n", b"mine\n", b"\xff" * 40])
def test_another_file_is_replaced_by_the_first_delivery(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "received.txt"
    file.write_bytes(content)
    with Received(file) as received:
        assert received.count == 0
        assert file.read_bytes() == content
        received.add("one")

    assert (Received(file).count, Received(file).key) == (1, received.key)


def test_a_new_run_ignores_the_record_of_the_run_that_it_replaces(tmp_path: Path) -> None:
    file = tmp_path / "received.txt"
    process(file, ListSink(), example(0))
    old = Received(file)
    with Received(file, is_new=True) as received:
        assert "episode-0" not in received
        assert "episode-0" in Received(file)  # until the new run delivers
        received.add("other")

    assert (Received(file).count, Received(file).key != old.key) == (1, True)


def test_a_link_in_a_foreign_run_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "received.txt").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match=r"received\.txt"):
        Received(tmp_path / "received.txt")
    assert (tmp_path / "other").read_text() == "mine"
