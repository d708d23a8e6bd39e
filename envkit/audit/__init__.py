"""What an environment pays a policy that does not solve it, and whether its grader is right."""

from envkit.audit.hooks import Audited, AuditHooks
from envkit.audit.report import AuditReport, Disagreement, PolicyResult
from envkit.audit.run import Audit, audit_env

__all__ = [
    "Audit",
    "AuditHooks",
    "AuditReport",
    "Audited",
    "Disagreement",
    "PolicyResult",
    "audit_env",
]
