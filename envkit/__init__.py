"""The Gymnasium of multimodal agent reinforcement learning.

Write an environment with `Env`, `Turn`, `Image` and `tool`; register it or ship it as a plugin;
make it by id; check it. The other packages are imported on first use, such as `envkit.rollout`.
"""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from envkit.async_env import AsyncEnv
from envkit.checker import check_env
from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.images import Image
from envkit.registration import EnvSpec, make, register, register_plugins, registry, spec
from envkit.tools import ToolSpec, tool

__all__ = [
    "AsyncEnv",
    "Capabilities",
    "Env",
    "EnvFault",
    "EnvSpec",
    "FaultKind",
    "Image",
    "Policy",
    "PolicyContext",
    "ToolSpec",
    "Turn",
    "__version__",
    "check_env",
    "make",
    "register",
    "registry",
    "spec",
    "tool",
]

__version__ = version("envkit-rl")

_PACKAGES = ("metrics", "report", "rollout", "tokens", "toolcalls", "trajectory")

register_plugins()


def __getattr__(name: str) -> ModuleType:
    """Import a package of the library on first use: `envkit.rollout.play` after `import envkit`."""
    if name in _PACKAGES:
        return import_module(f"envkit.{name}")
    raise AttributeError(f"module 'envkit' has no attribute {name!r}")
