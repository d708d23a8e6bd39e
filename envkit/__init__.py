"""The Gymnasium of multimodal agent reinforcement learning.

Write an environment with `Env`, `Turn`, `Image` and `tool`, register it or ship it as a plugin,
make it by id, and check it. Other packages, such as `envkit.rollout`, are imported on first use.
"""

from typing import TYPE_CHECKING, Any

from envkit.env import Capabilities, Env, Policy, PolicyContext, Turn
from envkit.errors import EnvFault, FaultKind
from envkit.images import Image
from envkit.lazy import lazy_names
from envkit.registration import (
    EnvSpec,
    make,
    pprint_registry,
    register,
    register_plugins,
    registry,
    spec,
)
from envkit.tools import ToolSpec, tool

if TYPE_CHECKING:  # what `__getattr__` imports on first use
    from envkit.async_env import AsyncEnv
    from envkit.checker import check_env
    from envkit.reply import Reply as Reply
    from envkit.tool_env import ToolEnv

    __version__: str

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
    "ToolEnv",
    "ToolSpec",
    "Turn",
    "__version__",
    "check_env",
    "make",
    "pprint_registry",
    "register",
    "registry",
    "spec",
    "tool",
]

_LAZY = {
    "AsyncEnv": "envkit.async_env",
    "Reply": "envkit.reply",
    "ToolEnv": "envkit.tool_env",
    "check_env": "envkit.checker",
}
_MODULES = (
    "advantages",
    "agents",
    "certification_hooks",
    "checker",
    "collection",
    "env",
    "errors",
    "faults",
    "fonts",
    "grading",
    "messages",
    "metrics",
    "random_replies",
    "rewards",
    "rollout",
    "seeds",
    "sinks",
    "success",
    "tasks",
    "tokens",
    "toolcalls",
    "toolset",
    "trajectory",
    "twins",
    "upstream",
    "viewer",
    "wrappers",
)
"""Those that docs/reference documents."""

_load, __dir__ = lazy_names(__name__, _LAZY, _MODULES)

register_plugins()


def __getattr__(name: str) -> Any:  # noqa: ANN401  # modules, a class, a function
    """Import the slower names, and the library's modules, on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("envkit-rl")
    return _load(name)
