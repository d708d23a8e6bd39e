"""What a failure of Harbor means: a retry, a refusal, or no reward.

Harbor decides by the exception's name (`harbor/models/trial/error_policy.py` in 0.26).
"""

from collections.abc import Mapping
from typing import Any, Final

from envkit.errors import EnvFault, FaultKind, MissingDependencyError, RefusedError

RETRIED: Final = frozenset(
    (
        *("EnvironmentStartTimeoutError", "SandboxBuildFailedError", "AgentSetupTimeoutError"),
        *("HealthcheckError", "SandboxLikelyOutOfMemoryError", "MemoryLimitExceededError"),
        *("SSHAccessError", "GKEExecStreamClosedError", "GKEPodNotFoundError"),
        *("RuntimeRequestError", "AddTestsDirError", "DownloadVerifierDirError"),
    )
)
"""Errors of the container that Harbor retries and does not grade."""
UNREWARDED: Final = frozenset(
    (
        *("VerifierTimeoutError", "RewardFileNotFoundError", "RewardFileEmptyError"),
        "VerifierOutputParseError",
    )
)
"""Errors of the verifier, for which Harbor has no valid reward and does not retry."""
_TIMEOUTS: Final = frozenset(("EnvironmentStartTimeoutError", "AgentSetupTimeoutError"))
_REFUSED: Final = frozenset(
    (
        *("ValueError", "ValidationError", "UnknownFieldsError", "ImageError", "TypeError"),
        *("FileNotFoundError", "NotADirectoryError", "TOMLDecodeError", "UnicodeDecodeError"),
        *("KeyError", "ServiceOperationsUnsupportedError", "VercelScopeError"),
        "AuthenticationError",
    )
)
"""Errors that the same folder or the same settings give again."""
_UNINSTALLED: Final = frozenset(("ModuleNotFoundError", "MissingExtraError"))
_MOST_REASON: Final = 800


def fault_of(error: Mapping[str, Any], what: str) -> EnvFault:
    """Return the fault of a request that failed.

    Args:
        error: `type` and `message` of what the worker caught.
        what: What was done, for the message.

    Raises:
        MissingDependencyError: A package or program is missing.
        RefusedError: This machine refuses sandboxes.
    """
    name, message = str(error["type"]), str(error["message"])
    text = f"{name}: {message}"[:_MOST_REASON]
    if name in _UNINSTALLED:
        raise MissingDependencyError(
            f"harbor-v0 needs the package 'harbor' in its worker's interpreter: {message}. Install "
            "it there, with Python 3.12 or newer: pip install 'envkit-rl[harbor]'. Or name another "
            "interpreter that has it as python="
        )
    if name == "SandboxRefusedError":
        raise RefusedError(message)
    kind = FaultKind.TRANSIENT
    if name in _TIMEOUTS:
        kind = FaultKind.TIMEOUT
    elif name == "SandboxLostError":
        kind = FaultKind.CRASHED
    elif name in _REFUSED:
        kind = FaultKind.PERMANENT
    return EnvFault(f"{what}: {text}", kind=kind)
