"""A Prometheus parser reads the endpoint over HTTP while the sink is open."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from fakes.budget import examples
from fakes.trajectories import example, quick, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from envkit.errors import ConfigurationError, ServiceError
from envkit.metrics import aggregate
from envkit.trajectory import REWARD_THRESHOLD, StopReason, Trajectory
from envkit_sinks import PrometheusSink


@contextmanager
def _serving(**options: Any) -> Generator[PrometheusSink]:
    sink = PrometheusSink(port=0, **options)
    try:
        yield sink
    finally:
        sink.close()
        sink.close()


class Scrape:
    """What a server reads at one time."""

    def __init__(self, sink: PrometheusSink) -> None:
        with urlopen(sink.url, timeout=10) as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def total(self, name: str, **labels: str) -> float:
        """Sum the samples of a name that carry these labels."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def test_endpoint_counts_by_environment_and_stop_reason() -> None:
    running = 5
    with _serving(in_flight=lambda: running, asked=lambda: 9) as sink:
        for number, threshold in enumerate((1.0, 1.5, None)):
            declared = {} if threshold is None else {REWARD_THRESHOLD: threshold}
            sink.write(example(number, metadata=declared))
        sink.write(example(3, stop_reason=StopReason.ENV_FAULT))
        first = Scrape(sink)
        running = 2
        second = Scrape(sink)
    episodes = "envkit_episodes_total"
    assert first.total(episodes, env="fake-v0", stop_reason="terminated") == 3
    assert first.total(episodes, env="fake-v0", stop_reason="env_fault") == 1
    assert first.total("envkit_faults_total", kind="timeout", where="step") == 1
    assert first.total("envkit_retries_total", env="fake-v0", kind="timeout") == 8
    assert first.total("envkit_judged_total", env="fake-v0") == 2
    assert first.total("envkit_successes_total", env="fake-v0") == 1
    assert first.total("envkit_episode_reward_bucket", le="1.0") == 3
    assert first.total("envkit_episode_reward_bucket", le="0.9") == 0
    assert first.total("envkit_episode_turns_count") == 4
    assert first.total("envkit_turn_duration_seconds_count", part="generate") == 12
    assert first.total("envkit_episodes_in_flight") == 5
    assert second.total("envkit_episodes_in_flight") == 2
    assert first.total("envkit_episodes_asked") == 9


@dataclass(kw_only=True)
class _Open:
    """One endpoint for many examples, since closing one takes half a second."""

    sink: PrometheusSink
    rows: list[Trajectory]
    """All that were written so far."""


@pytest.fixture(scope="module")
def endpoint() -> Generator[_Open]:
    with _serving() as sink:
        yield _Open(sink=sink, rows=[])


@settings(quick, max_examples=examples(15))
@given(rows=st.lists(trajectories(), min_size=1, max_size=4))
def test_counters_and_gauges_equal_the_metrics_of_the_run(
    rows: list[Trajectory], endpoint: _Open
) -> None:
    endpoint.rows.extend(rows)
    metrics = aggregate(endpoint.rows)
    for row in rows:
        endpoint.sink.write(row)
    endpoint.sink.write_metrics({"gone": 1.0})
    endpoint.sink.write_metrics(metrics)
    read = Scrape(endpoint.sink)
    shown = {s.labels["name"]: s.value for s in read.samples if s.name == "envkit_metric"}
    assert shown == metrics
    for reason in StopReason:
        counted = read.total("envkit_episodes_total", stop_reason=reason.value)
        assert counted == metrics.get(f"stop/{reason}", 0)
    for name, value in metrics.items():
        kind = name.partition("/")[2]
        if name.startswith("retry/"):
            assert read.total("envkit_retries_total", kind=kind) == value
        if name.startswith("fault/"):
            assert read.total("envkit_faults_total", kind=kind) == value
    assert read.total("envkit_tokens_total", kind="trained") == metrics["tokens/trained"]
    assert read.total("envkit_tokens_total", kind="sampled") == metrics["tokens/response/total"]
    assert read.total("envkit_images_total") == metrics["images/total"]
    assert read.total("envkit_parse_errors_total") == metrics["parse_error/count"]


def test_endpoint_is_for_this_machine_alone_and_gone_when_closed() -> None:
    with _serving() as sink:
        assert sink.url.startswith("http://127.0.0.1:")
        url = sink.url
    with pytest.raises(URLError):
        urlopen(url, timeout=10)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"127.0.0.1:{port}.*choose another port"):
            PrometheusSink(port=port)


def test_a_port_out_of_range_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="port must be 0 to 65535, got 65536"):
        PrometheusSink(port=65_536)
