"""Sinks for finished trajectories and metrics."""

from envkit.sinks.guarded import GuardedSinks, SinkFailures
from envkit.sinks.jsonl import JsonlSink
from envkit.sinks.sink import Sink, SinkRun

__all__ = ["GuardedSinks", "JsonlSink", "Sink", "SinkFailures", "SinkRun"]
