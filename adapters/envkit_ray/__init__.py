"""Episodes played by Ray actors, on one machine or on a trainer's cluster.

`RayPlayer` has the interface of `envkit.rollout.Player`, so runs, trainers' adapters and the
command line use it in a player's place. Each actor holds one `Player`: the loop is envkit's own.
"""

from envkit_ray.options import RayOptions
from envkit_ray.player import RayPlayer

__all__ = ["RayOptions", "RayPlayer"]
