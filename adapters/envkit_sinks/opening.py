"""Open the sinks of `envkit rollout` options; entry points of `envkit.sinks`."""

from pathlib import Path

from envkit.sinks import SinkRun
from envkit_sinks.opentelemetry import OpenTelemetrySink
from envkit_sinks.parquet import ParquetSink
from envkit_sinks.prometheus import PrometheusSink
from envkit_sinks.tensorboard import TensorBoardSink
from envkit_sinks.wandb import WandbSink


def open_prometheus(port: int, run: SinkRun) -> PrometheusSink:
    """Serve metrics at a port and print the address."""
    state = run.state
    sink = PrometheusSink(port=port, in_flight=lambda: state.in_flight, asked=lambda: state.total)
    run.say(f"metrics: {sink.url}")
    return sink


def open_parquet(path: Path, run: SinkRun) -> ParquetSink:
    """Open a parquet file."""
    return ParquetSink(path, overwrite=run.overwrite)


def open_tensorboard(directory: Path, run: SinkRun) -> TensorBoardSink:
    """Open TensorBoard's folder."""
    return TensorBoardSink(directory, key=None if run.received is None else run.received.key)


def open_opentelemetry(_: bool, run: SinkRun) -> OpenTelemetrySink:
    """Open the exporters that OTEL_* variables name."""
    del run
    return OpenTelemetrySink()


def open_wandb(project: str | None, run: SinkRun) -> WandbSink:
    """Start a W&B run; for an offline one, print how to upload it."""
    received = run.received
    sink = WandbSink(
        project=project or None,
        name=run.name,
        config=run.config,
        run_id=None if received is None else received.key,
        start=0 if received is None else received.count,
    )
    if sink.mode == "offline":
        run.say(f"W&B offline; upload it with: wandb sync {sink.directory}")
    return sink
