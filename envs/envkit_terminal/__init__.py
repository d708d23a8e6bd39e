"""Tasks in a Linux shell, isolated by bubblewrap: the environment `terminal-v0`."""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names
from envkit.registration import EnvSpec

if TYPE_CHECKING:
    from envkit_terminal.env import TerminalEnv
    from envkit_terminal.session import Limits, TerminalSession

SPEC = EnvSpec(
    id="terminal-v0",
    entry_point="envkit_terminal:TerminalEnv",
    description="A Linux shell without network: files, text, scripts and git, graded by tests.",
    reward_threshold=1.0,
)

__all__ = ["SPEC", "Limits", "TerminalEnv", "TerminalSession"]

__getattr__, __dir__ = lazy_names(
    __name__, {"Limits": ".session", "TerminalEnv": ".env", "TerminalSession": ".session"}
)
