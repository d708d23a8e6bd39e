"""Real applications on a real Linux desktop: the environment `computer-use-linux-v0`."""

from envkit.registration import EnvSpec
from envkit_linux_desktop.desk import Limits
from envkit_linux_desktop.env import LinuxDesktopEnv
from envkit_linux_desktop.source import LinuxDesktopTasks

SPEC = EnvSpec(
    id="computer-use-linux-v0",
    entry_point="envkit_linux_desktop:LinuxDesktopEnv",
    description="Use real applications on a real Linux desktop, seeing screenshots.",
    reward_threshold=1.0,
)

__all__ = ["SPEC", "Limits", "LinuxDesktopEnv", "LinuxDesktopTasks"]
