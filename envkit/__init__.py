"""The Gymnasium of multimodal agent reinforcement learning.

Write an environment with `Env`, `Turn`, `Image` and `tool`; register it or ship it as a plugin; make
it by id; check it. The rest lives in modules that are imported on demand: `envkit.tokens`,
`envkit.rollout`, `envkit.trajectory`, `envkit.metrics`, `envkit.report`, `envkit.toolcalls`.
"""

from importlib.metadata import version

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

register_plugins()
