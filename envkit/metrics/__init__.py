"""Flat metrics of a run, their histograms, the summary table and sinks."""

from envkit.metrics.aggregate import Aggregator, aggregate, histograms
from envkit.metrics.distribution import Distribution, Histogram
from envkit.metrics.names import METRICS
from envkit.metrics.sinks import JsonlSink, Sink
from envkit.metrics.table import summary_table

__all__ = [
    "METRICS",
    "Aggregator",
    "Distribution",
    "Histogram",
    "JsonlSink",
    "Sink",
    "aggregate",
    "histograms",
    "summary_table",
]
