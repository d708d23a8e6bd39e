"""The conformance suite: send recorded trajectories through adapters and compare every token."""

from envkit_conformance.compare import first_difference
from envkit_conformance.delivered import Content, Deliver, DeliveredRow, Projection, Shape
from envkit_conformance.recordings import (
    Recording,
    load_recordings,
    save_recordings,
    shipped_recordings,
)
from envkit_conformance.registry import Adapter, load_adapters
from envkit_conformance.suite import (
    ConformanceLine,
    ConformanceResult,
    check,
    expected_rows,
    run_suite,
)
from envkit_conformance.testing import AdapterConformance

__all__ = [
    "Adapter",
    "AdapterConformance",
    "ConformanceLine",
    "ConformanceResult",
    "Content",
    "Deliver",
    "DeliveredRow",
    "Projection",
    "Recording",
    "Shape",
    "check",
    "expected_rows",
    "first_difference",
    "load_adapters",
    "load_recordings",
    "run_suite",
    "save_recordings",
    "shipped_recordings",
]
