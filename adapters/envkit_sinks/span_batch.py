"""Collect spans, send them to an exporter in batches, and report every loss.

The SDK's BatchSpanProcessor drops spans when its queue is full and only logs failures. A sink must
know which spans did not arrive.
"""

import os
import sys
import time
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from envkit.errors import MissingDependencyError, StorageError, UnknownNameError
from envkit.plugins import foreign
from envkit.ranges import one_of

_GROUP: Final = "opentelemetry_traces_exporter"
"""Entry point group of exporters, as used by the SDK's own configuration."""
_EXTRA: Final = "opentelemetry"
_PROTOCOLS: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
_PACKAGES: Final = {
    "otlp_proto_http": "opentelemetry-exporter-otlp-proto-http",
    "otlp_proto_grpc": "opentelemetry-exporter-otlp-proto-grpc",
}
_BATCH: Final = 512
_SECONDS: Final = 5.0
"""Specification defaults of OTEL_BSP_MAX_EXPORT_BATCH_SIZE and OTEL_BSP_SCHEDULE_DELAY."""


class SpanBatch:
    """A tracer that buffers ended spans until they are sent."""

    def __init__(self, exporter: Any) -> None:  # noqa: ANN401  # a span exporter of the SDK
        """Create the tracer; `OpenTelemetrySink` documents the argument and errors."""
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

    @property
    def has_unsent(self) -> bool:
        """Whether spans were not sent yet."""
        return bool(self._ended)

    def send_if_due(self) -> None:
        """Send the spans if there are enough, or if the last batch was sent seconds ago."""
        if len(self._ended) >= _BATCH or time.monotonic() >= self._due:
            self.send()

    def send(self) -> None:
        """Send all spans.

        Raises:
            StorageError: An exporter rejected some spans, which are lost.
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
            raise StorageError(f"the OpenTelemetry exporter rejected {lost} spans")

    def close(self) -> None:
        """Send all spans and shut the exporters down.

        Raises:
            StorageError: An exporter rejected some spans.
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
    """Return the exporters that OTEL_TRACES_EXPORTER names, by default "otlp".

    Raises:
        MissingDependencyError: The package of a standard exporter is not installed.
        ConfigurationError: The exporter or OTEL_EXPORTER_OTLP_PROTOCOL is unknown.
    """
    named = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    names = [name.strip() for name in named.split(",") if name.strip()]
    return [_exporter(name) for name in names if name != "none"]


def _exporter(name: str) -> Any:  # noqa: ANN401  # a span exporter of the SDK
    if name == "console":  # standard output is reserved for the command's result
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
    with foreign(f"OTEL_TRACES_EXPORTER={name} ({known[entry_name].value}) fails"):
        return known[entry_name].load()()


def _line(span: Any) -> str:  # noqa: ANN401  # a span
    return span.to_json(indent=None) + "\n"


def _otlp_name() -> str:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    protocol = (protocol or "http/protobuf").strip()  # the default is what the extra installs
    return _PROTOCOLS[one_of("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, _PROTOCOLS)]


def _resource() -> Any:  # noqa: ANN401  # of the SDK
    """Return the resource that OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES define."""
    resources: Any = import_module("opentelemetry.sdk.resources")
    found = resources.Resource.create()
    default = str(found.attributes.get("service.name", "")).startswith("unknown_service")
    named = resources.Resource({"service.name": "envkit"}) if default else resources.Resource({})
    return found.merge(named)
