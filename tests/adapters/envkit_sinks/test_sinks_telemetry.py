"""Spans of episodes from the SDK's exporters, metrics over HTTP by a Prometheus parser."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from fakes.budget import examples
from fakes.trajectories import example, quick, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode
from prometheus_client.parser import text_string_to_metric_families

from envkit.errors import ConfigurationError, ServiceError, StorageError, UnknownNameError
from envkit.metrics import aggregate
from envkit.trajectory import REWARD_THRESHOLD, StopReason, Trajectory
from envkit_sinks import OpenTelemetrySink, PrometheusSink


def _context(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


class Spans:
    """The spans of some trajectories."""

    def __init__(self, *rows: Trajectory) -> None:
        exporter = InMemorySpanExporter()
        sink = OpenTelemetrySink(exporter)
        for row in rows:
            sink.write(row)
        sink.write_metrics(aggregate(rows))
        sink.close()
        sink.close()
        self.all: tuple[ReadableSpan, ...] = exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def parent(self, span: ReadableSpan) -> str | None:
        ids = {_context(one).span_id: one.name for one in self.all}
        return None if span.parent is None else ids[span.parent.span_id]


def _seconds(span: ReadableSpan) -> float:
    assert span.end_time is not None
    assert span.start_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_an_episode_is_a_trace_of_its_turns_and_their_parts() -> None:
    row = example()
    spans = Spans(row)
    (episode,) = spans.named("episode")
    assert {spans.parent(turn) for turn in spans.named("turn")} == {"episode"}
    assert {spans.parent(queue) for queue in spans.named("queue")} == {"generate"}
    for part in ("generate", "env", "encode"):
        assert [spans.parent(span) for span in spans.named(part)] == ["turn"] * 3
    mine = [span for span in spans.all if span.name != "metrics"]
    assert {_context(span).trace_id for span in mine} == {_context(episode).trace_id}
    assert episode.attributes is not None
    assert episode.attributes["envkit.episode.reward"] == 1.0
    assert episode.attributes["envkit.episode.stop_reason"] == "terminated"
    assert episode.status.status_code is StatusCode.UNSET
    generate = spans.named("generate")[1].attributes
    assert generate is not None
    assert generate["gen_ai.usage.output_tokens"] == row.turns[1].response_tokens
    assert generate["gen_ai.usage.input_tokens"] == row.turns[1].prompt_tokens
    assert generate["gen_ai.response.finish_reasons"] == ("stop",)
    env = spans.named("env")[0].attributes
    assert env is not None
    assert env["gen_ai.tool.name"] == "calc_score"


@settings(quick, max_examples=examples(15))
@given(row=trajectories())
def test_spans_last_as_long_as_what_was_measured_and_lie_inside_each_other(
    row: Trajectory,
) -> None:
    spans = Spans(row)
    by_id = {_context(span).span_id: span for span in spans.all}
    for part in ("generate", "env", "encode", "queue"):
        measured = [getattr(turn, f"{part}_seconds") for turn in row.turns]
        assert [_seconds(span) for span in spans.named(part)] == pytest.approx(measured, abs=1e-8)
    for span in spans.all:
        if span.parent is not None:
            above = by_id[span.parent.span_id]
            assert above.start_time <= span.start_time <= span.end_time <= above.end_time  # type: ignore[operator]  # all have ended
    (episode,) = spans.named("episode")
    parts = sum(t.generate_seconds + t.env_seconds + t.encode_seconds for t in row.turns)
    longest = max(parts, row.duration_seconds)
    assert _seconds(episode) == pytest.approx(longest, abs=1e-6)
    (metrics,) = spans.named("metrics")
    assert metrics.attributes is not None
    for name, value in aggregate([row]).items():
        assert metrics.attributes[f"envkit.metric.{name}"] == value


def test_a_fault_is_an_error_of_the_episode() -> None:
    (episode,) = Spans(example(stop_reason=StopReason.ENV_FAULT)).named("episode")
    assert episode.status.status_code is StatusCode.ERROR
    assert episode.status.description == "step: no answer in 5 s"
    assert episode.attributes is not None
    assert episode.attributes["error.type"] == "timeout"
    assert "envkit.episode.reward" not in episode.attributes
    (event,) = episode.events
    assert event.name == "exception"


class _Refusing(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_spans_that_the_exporter_does_not_take_are_counted_aloud() -> None:
    sink = OpenTelemetrySink(_Refusing())
    sink.write(example())
    with pytest.raises(StorageError, match="rejected 17 spans"):
        sink.write_metrics({"episodes": 1.0})
    sink.close()


def test_no_span_of_a_long_episode_is_lost() -> None:
    turn = example().turns[0]
    turns = tuple(replace(turn, turn=number) for number in range(700))
    assert len(Spans(replace(example(), turns=turns)).named("queue")) == 700


def test_standard_variables_choose_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "my-run")
        sink = OpenTelemetrySink()
        sink.write(example())
        sink.close()
        server.shutdown()
        thread.join()
    (resource,) = [spans for request in received for spans in request.resource_spans]
    assert len(resource.scope_spans[0].spans) == 16
    named = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert named["service.name"] == "my-run"


def test_an_unknown_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "consol")
    with pytest.raises(UnknownNameError, match="Did you mean 'console'"):
        OpenTelemetrySink()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier pigeon")
    with pytest.raises(ConfigurationError, match="carrier pigeon"):
        OpenTelemetrySink()


def test_console_writes_a_line_per_span_next_to_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    sink = OpenTelemetrySink()
    sink.write(example())
    sink.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 16


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
        with urlopen(sink.url, timeout=120) as answer:
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
        urlopen(url, timeout=120)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"127.0.0.1:{port}.*choose another port"):
            PrometheusSink(port=port)


def test_a_port_out_of_range_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="port must be 0 to 65535, got 65536"):
        PrometheusSink(port=65_536)
