"""Certify that an environment is fit for training: a report with a verdict per line."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` imports on first use: environments import their hooks only
    from envkit.certify.bench import Plan
    from envkit.certify.lines import CertifyReport, Line, Verdict
    from envkit.certify.run import Certification

__all__ = ["Certification", "CertifyReport", "Line", "Plan", "Verdict"]

_LAZY = {
    "Certification": "envkit.certify.run",
    "CertifyReport": "envkit.certify.lines",
    "Line": "envkit.certify.lines",
    "Plan": "envkit.certify.bench",
    "Verdict": "envkit.certify.lines",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # classes
    """Import the slower names on first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
