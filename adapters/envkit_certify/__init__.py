"""Certify that an environment is fit for training: a report with a verdict per line."""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names

if TYPE_CHECKING:  # what `__getattr__` imports on first use: environments import their hooks only
    from envkit_certify.certified import Plan
    from envkit_certify.lines import CertificateLine, CertifyReport, Verdict
    from envkit_certify.run import Certification

__all__ = ["CertificateLine", "Certification", "CertifyReport", "Plan", "Verdict"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Certification": ".run",
        "CertifyReport": ".lines",
        "CertificateLine": ".lines",
        "Plan": ".certified",
        "Verdict": ".lines",
    },
)
