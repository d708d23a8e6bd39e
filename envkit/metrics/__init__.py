"""Flat metrics of a run, their histograms and the summary table."""

from envkit.metrics.aggregate import Aggregator, aggregate, histograms
from envkit.metrics.distribution import Distribution, Histogram
from envkit.metrics.facts import EpisodeFacts
from envkit.metrics.names import METRICS
from envkit.metrics.table import SummaryTable, health_line, summary_table

__all__ = [
    "METRICS",
    "Aggregator",
    "Distribution",
    "EpisodeFacts",
    "Histogram",
    "SummaryTable",
    "aggregate",
    "health_line",
    "histograms",
    "summary_table",
]
