"""Audit what an environment pays policies that do not solve it, and its grader."""

from envkit.certify.audit.hooks import Audited, AuditHooks
from envkit.certify.audit.report import AuditReport, Disagreement, PolicyResult
from envkit.certify.audit.run import Audit, audit_env

__all__ = [
    "Audit",
    "AuditHooks",
    "AuditReport",
    "Audited",
    "Disagreement",
    "PolicyResult",
    "audit_env",
]
