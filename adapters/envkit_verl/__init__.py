"""verl: an agent loop that plays envkit environments, with advantages and tools.

`EnvAgentLoop` is named in the YAML of `agent.agent_loop_config_path`; see docs/trainers/verl.md.
Importing this package imports neither verl nor torch: those names load on first use, in the
process of verl's rollout worker.
"""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names

if TYPE_CHECKING:
    from envkit_verl.agent_loop import EnvAgentLoop
    from envkit_verl.engine import VerlEngine
    from envkit_verl.output import EpisodeOutput
    from envkit_verl.shared import aclose_shared
    from envkit_verl.tools import function_tools

__all__ = [
    "EnvAgentLoop",
    "EpisodeOutput",
    "VerlEngine",
    "aclose_shared",
    "function_tools",
]

_LAZY = {
    "EnvAgentLoop": ".agent_loop",
    "EpisodeOutput": ".output",
    "VerlEngine": ".engine",
    "aclose_shared": ".shared",
    "function_tools": ".tools",
}

__getattr__, __dir__ = lazy_names(__name__, _LAZY, extra="verl")
