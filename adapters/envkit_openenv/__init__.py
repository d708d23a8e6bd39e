"""OpenEnv in both directions: its servers as environments, and environments as its servers.

`openenv-v0` with `base_url=` plays a server; `envkit_openenv.server` serves an environment.
"""

from typing import TYPE_CHECKING

from envkit.lazy import lazy_names
from envkit.registration import EnvSpec

if TYPE_CHECKING:
    from envkit_openenv.env import OpenEnvEnv

SPEC = EnvSpec(
    id="openenv-v0",
    entry_point="envkit_openenv.env:OpenEnvEnv",
    description="An OpenEnv server, given as base_url=.",
    nondeterministic=True,
)

__all__ = ["SPEC", "OpenEnvEnv"]

__getattr__, __dir__ = lazy_names(__name__, {"OpenEnvEnv": ".env"})
