"""Where finished trajectories and metrics go. None imports its library before it is made."""

from envkit.sinks.guarded import GuardedSinks, SinkFailures
from envkit.sinks.jsonl import JsonlSink
from envkit.sinks.opentelemetry import OpenTelemetrySink
from envkit.sinks.parquet import ParquetSink
from envkit.sinks.prometheus import PrometheusSink
from envkit.sinks.sink import Sink
from envkit.sinks.tensorboard import TensorBoardSink
from envkit.sinks.wandb import WandbSink

__all__ = [
    "GuardedSinks",
    "JsonlSink",
    "OpenTelemetrySink",
    "ParquetSink",
    "PrometheusSink",
    "Sink",
    "SinkFailures",
    "TensorBoardSink",
    "WandbSink",
]
