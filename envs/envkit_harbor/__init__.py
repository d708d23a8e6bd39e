"""Tasks of Harbor and Terminal-Bench, in containers that Harbor starts: `harbor-v0`."""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names
from envkit.registration import EnvSpec

if TYPE_CHECKING:
    from envkit_harbor.env import HarborEnv
    from envkit_harbor.folders import FolderTasks, find_tasks

SPEC = EnvSpec(
    id="harbor-v0",
    entry_point="envkit_harbor:HarborEnv",
    description="Task folders of Harbor: a shell in the task's container, graded by its verifier.",
    nondeterministic=True,
    reward_threshold=1.0,
)

__all__ = ["SPEC", "FolderTasks", "HarborEnv", "find_tasks"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"FolderTasks": ".folders", "HarborEnv": ".env", "find_tasks": ".folders"},
)
