"""A simulated desktop for computer-use agents: the environment `computer-use-v0`."""

from envkit.registration import EnvSpec
from envkit_desktop.env import ComputerUseEnv
from envkit_desktop.families import FAMILIES
from envkit_desktop.source import LEVELS, DesktopTasks

SPEC = EnvSpec(
    id="computer-use-v0",
    entry_point="envkit_desktop:ComputerUseEnv",
    description="Use a simulated desktop by mouse and keyboard, seeing screenshots.",
    reward_threshold=1.0,
)

__all__ = ["FAMILIES", "LEVELS", "SPEC", "ComputerUseEnv", "DesktopTasks"]
