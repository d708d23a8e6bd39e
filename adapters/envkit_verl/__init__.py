"""verl: an agent loop that plays envkit environments, with advantages and tools.

`EnvAgentLoop` is named in the YAML of `agent.agent_loop_config_path`; see docs/trainers/verl.md.
Importing this package imports neither verl nor torch: those names load on first use, in the
process of verl's rollout worker.
"""

from typing import TYPE_CHECKING, Any

from envkit.errors import MissingDependencyError
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

_load, __dir__ = lazy_names(__name__, _LAZY)


def __getattr__(name: str) -> Any:  # noqa: ANN401  # classes and functions
    """Import a name on first access.

    Raises:
        MissingDependencyError: verl or one of its dependencies is not installed.
    """
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(("envkit", "envkit_verl")):
            raise
        raise MissingDependencyError(
            f"envkit_verl.{name} needs the package {error.name!r}, which is not installed. It runs "
            "where verl's rollout workers run; install verl 0.7.1 to 0.9.1 there, for example "
            "with: pip install 'verl>=0.7.1,<=0.9.1'"
        ) from error
