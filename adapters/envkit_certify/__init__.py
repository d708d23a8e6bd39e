"""Certify that an environment is fit for training: a report with a verdict per line."""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names

if TYPE_CHECKING:  # what `__getattr__` imports on first use: environments import their hooks only
    from envkit_certify.bench import Plan
    from envkit_certify.lines import CertifyReport, Line, Verdict
    from envkit_certify.run import Certification

__all__ = ["Certification", "CertifyReport", "Line", "Plan", "Verdict"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Certification": ".run",
        "CertifyReport": ".lines",
        "Line": ".lines",
        "Plan": ".bench",
        "Verdict": ".lines",
    },
)
