"""What an environment pays a policy that does not solve it, and whether its grader is right."""

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
