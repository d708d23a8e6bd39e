"""A failing sink costs neither a trajectory nor the run, and is told of."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from fakes.trajectories import example

from envkit.errors import MissingDependencyError
from envkit.sinks import GuardedSinks
from envkit.sinks.guarded import PATIENCE
from envkit.trajectory import Trajectory
from envkit_sinks import OpenTelemetrySink, ParquetSink, PrometheusSink, TensorBoardSink, WandbSink


class ListSink:
    """Keeps what it gets; raises at the calls whose numbers it is given."""

    def __init__(self, *bad: int) -> None:
        self.bad, self.calls = bad, 0
        self.rows: list[Trajectory] = []
        self.metrics: list[Mapping[str, float]] = []
        self.closed = 0

    def write(self, trajectory: Trajectory) -> None:
        self.calls += 1
        if self.calls in self.bad:
            raise OSError(f"no space\nfor call {self.calls}")
        self.rows.append(trajectory)

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.metrics.append(metrics)

    def close(self) -> None:
        self.closed += 1


def test_the_others_get_everything_and_the_failure_is_reported_once() -> None:
    told: list[str] = []
    bad, good = ListSink(2, 4), ListSink()
    with GuardedSinks({"bad": bad, "good": good}, tell=told.append) as sinks:
        for number in range(5):
            sinks.write(example(number))
        sinks.write_metrics({"episodes": 5.0})
    assert len(good.rows) == 5
    assert [row.episode_id for row in bad.rows] == ["episode-0", "episode-2", "episode-4"]
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
