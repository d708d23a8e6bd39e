"""Sinks for other tools. Each imports its library only when constructed."""

from envkit_sinks.opentelemetry import OpenTelemetrySink
from envkit_sinks.parquet import ParquetSink
from envkit_sinks.prometheus import PrometheusSink
from envkit_sinks.tensorboard import TensorBoardSink
from envkit_sinks.wandb import WandbSink

__all__ = [
    "OpenTelemetrySink",
    "ParquetSink",
    "PrometheusSink",
    "TensorBoardSink",
    "WandbSink",
]
