"""Open the sinks of `envkit rollout --sink`; entry points of `envkit.sinks`."""

from itertools import count
from pathlib import Path
from typing import Final

from envkit.errors import ConfigurationError
from envkit.sinks.sink import SinkRun
from envkit_sinks.opentelemetry import OpenTelemetrySink
from envkit_sinks.parquet import ParquetSink
from envkit_sinks.prometheus import PrometheusSink
from envkit_sinks.tensorboard import TensorBoardSink
from envkit_sinks.wandb import WandbSink

_LAST_PORT: Final = 65535


def open_prometheus(port: str, run: SinkRun) -> PrometheusSink:
    """Serve metrics at a port, by default a free one, and print the address.

    Raises:
        ConfigurationError: The value is not a port, or it is in use.
    """
    is_number = port.isascii() and port.isdecimal()
    number = int(port) if is_number else 0
    if number > _LAST_PORT or (port and not is_number):
        raise ConfigurationError(
            f"the value of prometheus must be a port from 0 to {_LAST_PORT}, got {port!r}"
        )
    state = run.state
    run.received()
    sink = PrometheusSink(port=number, in_flight=lambda: state.in_flight, asked=lambda: state.total)
    run.say(f"metrics: {sink.url}")
    return sink


def open_parquet(file: str, run: SinkRun) -> ParquetSink:
    """Open a parquet file, which every command writes anew.

    Raises:
        ConfigurationError: No file is given.
        StorageError: It exists already, or cannot be written.
    """
    return ParquetSink(_path("parquet", file), overwrite=run.overwrite)


def open_tensorboard(folder: str, run: SinkRun) -> TensorBoardSink:
    """Open TensorBoard's folder.

    A run may be in several folders. The names of its files there end with the key of their record.

    Raises:
        ConfigurationError: No folder is given.
        StorageError: It cannot be written.
    """
    directory = _path("tensorboard", folder)
    for number in count():
        received = run.received(str(number))
        if not received.count or any(directory.glob(f"*.{received.key}")):
            return TensorBoardSink(directory, key=received.key)
    raise AssertionError("the numbers do not end")


def open_opentelemetry(value: str, run: SinkRun) -> OpenTelemetrySink:
    """Open the exporters that OTEL_* variables name.

    Raises:
        ConfigurationError: A value is given.
    """
    if value:
        raise ConfigurationError(
            f"opentelemetry takes no value, got {value!r}: set the variables OTEL_*"
        )
    run.received()
    return OpenTelemetrySink()


def open_wandb(project: str, run: SinkRun) -> WandbSink:
    """Start a run of W&B in a project; for an offline one, print how to upload it."""
    received = run.received(project)
    sink = WandbSink(
        project=project or None,
        name=run.name,
        config=run.config,
        run_id=received.key,
        start=received.count,
    )
    if sink.mode == "offline":
        run.say(f"W&B offline; upload it with: wandb sync {sink.directory}")
    return sink


def _path(sink: str, value: str) -> Path:
    if not value:
        raise ConfigurationError(f"the sink {sink} needs a path, such as --sink {sink}=runs/{sink}")
    return Path(value)
