"""Spans on their way to an exporter: collected, sent in batches, and none lost in silence.

The SDK's own BatchSpanProcessor drops spans when its queue is full, and tells failures to a log
only. A sink must know what did not arrive.
"""

import os
import sys
import time
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from envkit.errors import ConfigurationError, MissingDependencyError, StorageError, UnknownNameError

_GROUP: Final = "opentelemetry_traces_exporter"
"""Entry points of exporters, as the SDK's own configuration finds them."""
_EXTRA: Final = "opentelemetry"
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_PACKAGES: Final = {
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
}
_BATCH: Final = 512
_SECONDS: Final = 5.0
"""Both as the specification's defaults of OTEL_BSP_MAX_EXPORT_BATCH_SIZE and _SCHEDULE_DELAY."""


class SpanBatch:
    """A tracer whose ended spans wait here until they are sent."""

    def __init__(self, exporter: Any) -> None:  # noqa: ANN401  # a span exporter of the SDK
        """Make the tracer; `OpenTelemetrySink` documents the argument and the errors."""
        try:
            self.api: Any = import_module("opentelemetry.trace")
            sdk: Any = import_module("opentelemetry.sdk.trace")
            self._export: Any = import_module("opentelemetry.sdk.trace.export")
            self.empty_context: Any = import_module("opentelemetry.context").Context()
        except ImportError as error:
            raise MissingDependencyError.for_extra(
                "the sink for OpenTelemetry", "opentelemetry-sdk", _EXTRA
            ) from error
        self._exporters = exporters_of_environment() if exporter is None else [exporter]
        self._ended: list[Any] = []
        self._due = time.monotonic() + _SECONDS
        self._provider: Any = sdk.TracerProvider(
            shutdown_on_exit=False, resource=_resource(), active_span_processor=self._processor(sdk)
        )
        self.tracer: Any = self._provider.get_tracer("envkit")
        self._is_closed = False

    def send_if_due(self) -> None:
        """Send the spans when there are many, or when the last ones left some seconds ago."""
        if len(self._ended) >= _BATCH or time.monotonic() >= self._due:
            self.send()

    def send(self) -> None:
        """Send all spans.

        Raises:
            StorageError: An exporter did not take some; those are lost.
        """
        spans, self._ended = self._ended, []
        lost = 0
        for start in range(0, len(spans), _BATCH):
            batch = spans[start : start + _BATCH]
            results = [exporter.export(batch) for exporter in self._exporters]
            if any(result is not self._export.SpanExportResult.SUCCESS for result in results):
                lost += len(batch)
        self._due = time.monotonic() + _SECONDS
        if lost:
            raise StorageError(f"the OpenTelemetry exporter did not take {lost} spans")

    def close(self) -> None:
        """Send all spans and shut the exporters down.

        Raises:
            StorageError: An exporter did not take some.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.send()
        finally:
            self._provider.shutdown()
            for exporter in self._exporters:
                exporter.shutdown()

    def _processor(self, sdk: Any) -> Any:  # noqa: ANN401  # of the SDK, untyped here
        take = self._take

        class Collecting(sdk.SpanProcessor):
            def on_end(self, span: Any) -> None:  # noqa: ANN401
                take(span)

        processor = sdk.SynchronousMultiSpanProcessor()
        processor.add_span_processor(Collecting())
        return processor

    def _take(self, span: Any) -> None:  # noqa: ANN401  # a span
        if span.context.trace_flags.sampled:
            self._ended.append(span)


def exporters_of_environment() -> list[Any]:
    """Return the exporters that OTEL_TRACES_EXPORTER names, "otlp" where it names none.

    Raises:
        MissingDependencyError: The package of a standard one is not installed.
        ConfigurationError: An unknown one, or an unknown OTEL_EXPORTER_OTLP_PROTOCOL.
    """
    named = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    names = [name.strip() for name in named.split(",") if name.strip()]
    return [_exporter(name) for name in names if name != "none"]


def _exporter(name: str) -> Any:  # noqa: ANN401  # a span exporter of the SDK
    if name == "console":  # standard output is for the command's result
        export: Any = import_module("opentelemetry.sdk.trace.export")
        return export.ConsoleSpanExporter(out=sys.stderr, formatter=_line)
    entry_name = _otlp_name() if name == "otlp" else name
    known = {point.name: point for point in entry_points(group=_GROUP)}
    if entry_name not in known and entry_name in _PACKAGES:
        raise MissingDependencyError.for_extra(
            f"OTEL_TRACES_EXPORTER={name}", _PACKAGES[entry_name], _EXTRA
        )
    if entry_name not in known:
        raise UnknownNameError.suggest("OpenTelemetry exporter", name, {*known, "otlp", "none"})
    return known[entry_name].load()()


def _line(span: Any) -> str:  # noqa: ANN401  # a span
    return span.to_json(indent=None) + "\n"


def _otlp_name() -> str:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if not protocol:
        return "otlp_proto_http"  # what the extra brings
    if protocol.strip() not in _PROTOCOLS:
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {' or '.join(_PROTOCOLS)}, got {protocol!r}"
        )
    return _PROTOCOLS[protocol.strip()]


def _resource() -> Any:  # noqa: ANN401  # of the SDK
    """Return the resource of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES."""
    resources: Any = import_module("opentelemetry.sdk.resources")
    found = resources.Resource.create()
    default = str(found.attributes.get("service.name", "")).startswith("unknown_service")
    named = resources.Resource({"service.name": "envkit"}) if default else resources.Resource({})
    return found.merge(named)
