"""Sandboxes for programs that a policy drives: start them, limit them, read their files."""

import sys

from envkit.errors import RefusedError

if sys.platform != "linux":
    raise RefusedError(
        f"sandboxes need Linux, got {sys.platform}; use a Linux container or a virtual machine"
    )
