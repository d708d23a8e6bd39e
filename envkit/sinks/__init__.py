"""Sinks for finished trajectories and metrics."""

from envkit.sinks.guarded import GuardedSinks, SinkFailures
from envkit.sinks.jsonl import JsonlSink
from envkit.sinks.received import Received
from envkit.sinks.sink import BufferingSink, Sink, SinkRun

__all__ = [
    "BufferingSink",
    "GuardedSinks",
    "JsonlSink",
    "Received",
    "Sink",
    "SinkFailures",
    "SinkRun",
]
