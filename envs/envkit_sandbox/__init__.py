"""Sandboxes for programs that a policy drives: bubblewrap, its limits, and reading its files."""

from envkit_sandbox.channel import Channel
from envkit_sandbox.home import Home
from envkit_sandbox.walls import INSTALL_LINE, Walls, find_bubblewrap, first_process, spawn
from envkit_sandbox.watchdog import Memory, watch

__all__ = [
    "INSTALL_LINE",
    "Channel",
    "Home",
    "Memory",
    "Walls",
    "find_bubblewrap",
    "first_process",
    "spawn",
    "watch",
]
