"""What an environment pays a policy that does not solve it, and whether its grader is right."""

from envkit_certify.audit.report import AuditReport, Disagreement, PolicyResult
from envkit_certify.audit.run import Audit, audit_env

__all__ = [
    "Audit",
    "AuditReport",
    "Disagreement",
    "PolicyResult",
    "audit_env",
]
