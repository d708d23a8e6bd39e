"""Episodes played by Ray actors, on one machine or on a trainer's cluster.

`RayPlayer` has the interface of `envkit.rollout.Player`, so runs, trainer adapters and the command
line can use it instead of a player. Each actor holds one `Player`: the loop is envkit's own.
"""

from envkit_ray.options import RayOptions
from envkit_ray.player import RayPlayer

__all__ = ["RayOptions", "RayPlayer"]
