"""Play a plan with workers: the player here, and the player in each worker.

The entry-point group `envkit.players` provides the player: a class that is called with a function,
which returns each worker's `Player`, and the settings. It has `start` and is an `AnyPlayer`.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from envkit.plugins import load_plugin

if TYPE_CHECKING:
    from envkit.cli.engines import EngineChoice
    from envkit.cli.run_plan import RolloutPlan
    from envkit.rollout import Player, RolloutConfig
    from envkit.rollout.player import AnyPlayer

GROUP: Final = "envkit.players"


async def remote_player(plan: "RolloutPlan") -> "AnyPlayer":
    """Start the workers of a plan and return its player.

    Raises:
        MissingDependencyError: Ray, or envkit's package for it, is not installed.
        ConfigurationError: The workers cannot start.
    """
    make_player = partial(worker_player, plan.choice, plan.env_id, plan.config.of_worker())
    player: Any = load_plugin(GROUP, plan.config.player, kind="player")(make_player, plan.config)
    try:
        await player.start()
    except BaseException:
        await player.aclose()
        raise
    return player


async def worker_player(choice: "EngineChoice", env_id: str, config: "RolloutConfig") -> "Player":
    """Return the player of one worker, built in its process.

    Args:
        choice: The engine; a server must be reachable from the worker, and a model's folder must be
            on its machine.
        env_id: The environment.
        config: The settings, without workers.
    """
    from envkit.cli.engines import build_any
    from envkit.cli.options import make_env
    from envkit.rollout import Player

    env = make_env(env_id, dict(config.env_kwargs))  # provides the codec's tools, and the policy
    built = await build_any(choice, env, config)
    return Player(built.engine, built.codec, config)
