"""Real applications on a real Linux desktop: the environment `computer-use-linux-v0`."""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names
from envkit.registration import EnvSpec

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_names(
    __name__, {"Limits": ".desk", "LinuxDesktopEnv": ".env", "LinuxDesktopTasks": ".source"}
)
