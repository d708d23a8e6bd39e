"""Find out whether this machine, or the container on it, lets a sandbox start."""

import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from envkit.errors import SHORTAGES, EnvFault, FaultKind, RefusedError
from envkit_sandbox.bubblewrap import NOBODY, SandboxSpec, end, is_switching, spawn

_SECONDS: Final = 30.0
_IN_CONTAINERS: Final = (
    "docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined "
    "(or podman run --security-opt seccomp=unconfined --security-opt unmask=ALL, or either with "
    "--privileged; see docs/running/containers.md)"
)
_SETTINGS: Final = (
    ("user.max_user_namespaces", "0", "10000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)
"""Settings of a machine: name, the value that forbids user namespaces, one that allows them."""


@cache
def check_sandbox() -> str:
    """Start a sandbox, once per process, and return as which user sandboxes run.

    Raises:
        MissingDependencyError: bubblewrap or pyseccomp is not installed, or the machine refuses
            sandboxes (`RefusedError`).
        EnvFault: The machine is out of memory or processes, or does not answer.
    """
    spec = SandboxSpec(hostname="trial", folders={"/tmp": 1}, is_first=True)
    sandbox = spawn(spec, ["/usr/bin/python3", "-I", "-S", "-c", ""])
    try:
        code = sandbox.wait(_SECONDS)
        reason = sandbox.reason or f": bubblewrap ended with exit code {code}"
    except subprocess.TimeoutExpired:
        raise EnvFault(
            f"a sandbox did not start within {_SECONDS:.0f} s", kind=FaultKind.TIMEOUT
        ) from None
    finally:
        end(sandbox)
    user = NOBODY if is_switching() else os.geteuid()
    if code == 0:
        return f"sandboxes start, as user {user}"
    if any(text in reason for text in SHORTAGES):
        raise EnvFault(f"no sandbox can start now{reason}", kind=FaultKind.TRANSIENT)
    raise RefusedError(
        f"this machine or container refuses sandboxes of user {user}{reason}. "
        f"Fix it with: {_fix_of(reason)}"
    )


def _fix_of(reason: str) -> str:
    """Return the command that lets sandboxes start where bubblewrap gave this reason."""
    if "Unexpected capabilities" in reason:
        return "docker run --user 0 (or without --cap-add; see docs/running/containers.md)"
    if os.geteuid() == 0 and "uid map" in reason:
        return "docker run --user 1000:1000 (or --cap-add SETFCAP)"
    for name, forbids, allows in _SETTINGS:
        with suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text().strip() == forbids:
                return f"sysctl {name}={allows}"
    return _IN_CONTAINERS
