"""Certify that an environment is fit for training: a report with a verdict per line."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` imports on first use: environments import their hooks only
    from envkit_certify.bench import Plan
    from envkit_certify.lines import CertifyReport, Line, Verdict
    from envkit_certify.run import Certification

__all__ = ["Certification", "CertifyReport", "Line", "Plan", "Verdict"]

_LAZY = {
    "Certification": "envkit_certify.run",
    "CertifyReport": "envkit_certify.lines",
    "Line": "envkit_certify.lines",
    "Plan": "envkit_certify.bench",
    "Verdict": "envkit_certify.lines",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # classes
    """Import the slower names on first use."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
