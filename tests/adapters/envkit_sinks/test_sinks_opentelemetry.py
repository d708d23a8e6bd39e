"""Spans of episodes, read back from the SDK's exporters."""

from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from fakes.budget import examples
from fakes.trajectories import example, quick, trajectories
from hypothesis import given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode

from envkit.errors import ConfigurationError, StorageError, UnknownNameError
from envkit.metrics import aggregate
from envkit.trajectory import StopReason, Trajectory
from envkit_sinks import OpenTelemetrySink


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
