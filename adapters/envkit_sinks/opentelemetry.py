"""Export a run as OpenTelemetry spans: a trace per episode, a span per turn and its parts.

Attribute names follow the semantic conventions for generative AI
(opentelemetry.io/docs/specs/semconv/gen-ai), with `envkit.*` for anything they lack.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from envkit.text import utf8
from envkit.trajectory.trajectory import Trajectory, TurnRecord
from envkit_sinks.span_batch import SpanBatch
from envkit_sinks.window import episode_figures

_NANOSECONDS: Final = 1_000_000_000
_MESSAGE_CHARACTERS: Final = 1000


class OpenTelemetrySink:
    """Spans of finished episodes, exported as the standard OTEL_* variables configure.

    - `episode` holds `turn`; `turn` holds `generate`, which holds `queue`, then `env` and `encode`.
    - Durations are measured. An episode ends when it is written, and its turns are placed back to
      back before that. The time before the first turn covers the reset, the first prompt and any
      failures.
    - A faulted episode has the status error, its `FaultKind` as `error.type` and the message.
    - `write_metrics` sends one span `metrics` with an attribute per metric.
    """

    def __init__(self, exporter: Any = None) -> None:  # noqa: ANN401  # a span exporter of the SDK
        """Create a separate tracer; the process's global one is unchanged.

        Args:
            exporter: Receives the spans. None uses those named by OTEL_TRACES_EXPORTER: "otlp" (the
                default; OTEL_EXPORTER_OTLP_ENDPOINT sets the address), "console" (standard error),
                "none", or those of installed packages.

        Raises:
            MissingDependencyError: opentelemetry-sdk or an exporter is not installed.
            ConfigurationError: OTEL_TRACES_EXPORTER names an unknown exporter.
        """
        self._batch = SpanBatch(exporter)
        self._tracer: Any = self._batch.tracer
        self._trace: Any = self._batch.api

    @property
    def has_unsent(self) -> bool:
        """Whether spans wait for the next batch."""
        return self._batch.has_unsent

    def write(self, trajectory: Trajectory) -> None:
        """Create the spans of one episode.

        Raises:
            StorageError: The exporter failed to send some spans.
        """
        end = time.time_ns()
        parts = sum(_turn_nanoseconds(turn) for turn in trajectory.own_turns)
        start = end - max(_nanoseconds(trajectory.duration_seconds), parts)
        episode = self._span("episode", None, start, _episode_attributes(trajectory))
        if trajectory.fault is not None:
            self._fail(episode, trajectory, end)
        at = end - parts
        for turn in trajectory.own_turns:
            at = self._write_turn(trajectory, turn, episode, at)
        episode.end(end)
        self._batch.send_if_due()

    def write_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Create a span with the metrics as attributes and send everything.

        Raises:
            StorageError: The exporter failed to send some spans.
        """
        now = time.time_ns()
        named = {f"envkit.metric.{name}": value for name, value in metrics.items()}
        marked = {} if step is None else {"envkit.step": step}
        self._span("metrics", None, now, {**marked, **named}).end(now)
        self._batch.send()

    def close(self) -> None:
        """Send remaining spans and shut the exporter down.

        Raises:
            StorageError: The exporter failed to send some spans.
        """
        self._batch.close()

    def _span(
        self,
        name: str,
        parent: Any,  # noqa: ANN401  # a span; None starts a trace
        start: int,
        attributes: Mapping[str, Any],
    ) -> Any:  # noqa: ANN401  # a span
        above = None if parent is None else self._trace.set_span_in_context(parent)
        context = self._batch.empty_context if above is None else above
        return self._tracer.start_span(
            name, context=context, start_time=start, attributes=dict(attributes)
        )

    def _fail(self, episode: Any, trajectory: Trajectory, end: int) -> None:  # noqa: ANN401
        fault = trajectory.fault
        assert fault is not None  # narrows the type
        message = utf8(fault.message)[:_MESSAGE_CHARACTERS]
        status = self._trace.Status(self._trace.StatusCode.ERROR, f"{fault.where}: {message}")
        episode.set_status(status)
        episode.set_attributes(
            {"error.type": fault.kind.value, "envkit.fault.where": fault.where.value}
        )
        details = {"exception.type": fault.kind.value, "exception.message": message}
        episode.add_event("exception", details, timestamp=end)

    def _write_turn(
        self,
        trajectory: Trajectory,
        record: TurnRecord,
        episode: Any,  # noqa: ANN401  # a span
        start: int,
    ) -> int:
        """Create the spans of a turn and return its end time."""
        generated = start + _nanoseconds(record.generate_seconds)
        stepped = generated + _nanoseconds(record.env_seconds)
        end = stepped + _nanoseconds(record.encode_seconds)
        turn = self._span("turn", episode, start, _turn_attributes(record))
        attributes = _generate_attributes(trajectory, record)
        generate = self._span("generate", turn, start, attributes)
        waited = min(_nanoseconds(record.queue_seconds), generated - start)
        self._span("queue", generate, start, {}).end(start + waited)
        generate.end(generated)
        self._span("env", turn, generated, _env_attributes(record)).end(stepped)
        self._span("encode", turn, stepped, {}).end(end)
        turn.end(end)
        return end


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANOSECONDS))


def _turn_nanoseconds(turn: TurnRecord) -> int:
    """Return a turn's duration; generation time includes the queue."""
    seconds = (turn.generate_seconds, turn.env_seconds, turn.encode_seconds)
    return sum(map(_nanoseconds, seconds))


def _episode_attributes(trajectory: Trajectory) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": utf8(trajectory.env_id),
        "gen_ai.conversation.id": utf8(trajectory.episode_id),
        "envkit.env.id": utf8(trajectory.env_id),
        "envkit.episode.stop_reason": trajectory.stop_reason.value,
        "envkit.episode.env_restarts": trajectory.env_restarts,
        "envkit.engine": utf8(trajectory.engine),
    }
    for name, value in episode_figures(trajectory).items():
        attributes[f"envkit.episode.{name}"] = value
    if trajectory.group_id is not None:
        attributes["envkit.group.id"] = utf8(trajectory.group_id)
    if trajectory.seed is not None:
        attributes["envkit.seed"] = str(trajectory.seed)  # integers of any size
    return attributes


def _turn_attributes(record: TurnRecord) -> dict[str, Any]:
    attributes: dict[str, Any] = {"envkit.turn": record.turn}
    if record.reward is not None:
        attributes["envkit.turn.reward"] = record.reward
    if record.parse_error is not None:
        attributes["envkit.turn.parse_error"] = utf8(record.parse_error)[:_MESSAGE_CHARACTERS]
    return attributes


def _generate_attributes(trajectory: Trajectory, record: TurnRecord) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": utf8(trajectory.engine),
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.response_tokens,
        "gen_ai.response.finish_reasons": [utf8(record.finish_reason)],
        "envkit.retries.engine": record.engine_retries,
        "envkit.retries.resample": record.resamples,
    }
    model = trajectory.metadata.get("model")
    if isinstance(model, str):
        attributes["gen_ai.request.model"] = utf8(model)
    if record.weight_version is not None:
        attributes["envkit.weight_version"] = utf8(record.weight_version)
    return attributes


def _env_attributes(record: TurnRecord) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        f"envkit.retries.{utf8(kind)}": number for kind, number in record.env_retries.items()
    }
    call = record.tool_call
    if call is not None:
        name = call.get("name")
        attributes["gen_ai.operation.name"] = "execute_tool"
        if isinstance(name, str):
            attributes["gen_ai.tool.name"] = utf8(name)
    attributes["envkit.observation.tokens"] = record.observation_tokens
    attributes["envkit.observation.images"] = record.image_count
    return attributes
