"""Tasks in a Linux shell, isolated by bubblewrap: the environment `terminal-v0`."""

from envkit.registration import EnvSpec
from envkit_terminal.env import TerminalEnv
from envkit_terminal.session import Limits, TerminalSession

SPEC = EnvSpec(
    id="terminal-v0",
    entry_point="envkit_terminal:TerminalEnv",
    description="A Linux shell without network: files, text, scripts and git, graded by tests.",
    reward_threshold=1.0,
)

__all__ = ["SPEC", "Limits", "TerminalEnv", "TerminalSession"]
