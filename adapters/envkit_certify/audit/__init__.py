"""Audit what an environment pays policies that do not solve it, and its grader."""

from envkit_certify.audit.report import AuditReport, Disagreement, PolicyResult
from envkit_certify.audit.run import Audit, audit_env

__all__ = [
    "Audit",
    "AuditReport",
    "Disagreement",
    "PolicyResult",
    "audit_env",
]
