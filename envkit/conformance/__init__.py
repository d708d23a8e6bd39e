"""The conformance suite: recorded trajectories through adapters, compared token for token."""

from envkit.conformance.compare import first_difference
from envkit.conformance.delivered import Content, Deliver, DeliveredRow, Projection, Shape
from envkit.conformance.expected import expected_rows
from envkit.conformance.recordings import (
    Recording,
    load_recordings,
    save_recordings,
    shipped_recordings,
)
from envkit.conformance.registry import Adapter, load_adapters, load_members
from envkit.conformance.suite import Outcome, Verdict, check, run_suite
from envkit.conformance.testing import AdapterConformance

__all__ = [
    "Adapter",
    "AdapterConformance",
    "Content",
    "Deliver",
    "DeliveredRow",
    "Outcome",
    "Projection",
    "Recording",
    "Shape",
    "Verdict",
    "check",
    "expected_rows",
    "first_difference",
    "load_adapters",
    "load_members",
    "load_recordings",
    "run_suite",
    "save_recordings",
    "shipped_recordings",
]
