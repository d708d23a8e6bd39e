"""Sandboxes for programs that a policy drives: start them, limit them, read their files."""

import sys

from envkit.errors import RefusedError

if sys.platform != "linux":
    raise RefusedError(
        f"sandboxes need Linux, got {sys.platform}; use a Linux container or a virtual machine"
    )

from envkit_sandbox.bubblewrap import (
    INSTALL_LINE,
    Sandbox,
    SandboxSpec,
    find_bubblewrap,
    first_process,
    spawn,
)
from envkit_sandbox.channel import Channel
from envkit_sandbox.home import Home
from envkit_sandbox.trial import check_sandbox
from envkit_sandbox.watchdog import Memory, watch

__all__ = [
    "INSTALL_LINE",
    "Channel",
    "Home",
    "Memory",
    "Sandbox",
    "SandboxSpec",
    "check_sandbox",
    "find_bubblewrap",
    "first_process",
    "spawn",
    "watch",
]
