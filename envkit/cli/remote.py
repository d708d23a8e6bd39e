"""Play a plan with workers: the player here, and the player in each worker.

The entry-point group `envkit.players` provides the player. Its values have the signature of
`envkit_ray.RayPlayer`.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from envkit.plugins import load_plugin

if TYPE_CHECKING:
    from envkit.cli.engines import EngineChoice
    from envkit.cli.run_plan import RolloutPlan
    from envkit.rollout import Player, RolloutConfig
    from envkit.rollout.player import AnyPlayer

GROUP: Final = "envkit.players"
_NAME: Final = "ray"


def on_workers(
    config: "RolloutConfig", workers: int | None, address: str | None
) -> "RolloutConfig":
    """Return the settings with the options for workers applied.

    Args:
        config: Settings, which may have workers already.
        workers: Value of --workers; None keeps the settings' own, 0 plays in this process.
        address: Value of --ray; None keeps the settings' own.

    Raises:
        BadParameter: An address was given without workers.
    """
    if workers is None and address is None:
        return config
    count = config.workers if workers is None else workers
    if address is not None and not count:
        raise typer.BadParameter("--ray needs workers: add --workers N")
    options = {**config.ray, **({} if address is None else {"address": address})}
    return replace(config, workers=count, ray=options if count else {})


async def remote_player(plan: "RolloutPlan") -> "AnyPlayer":
    """Start the workers of a plan and return its player.

    Raises:
        MissingDependencyError: Ray, or envkit's package for it, is not installed.
        ConfigurationError: The workers cannot start.
    """
    make_player = partial(worker_player, plan.choice, plan.env_id, plan.config.of_worker())
    player: Any = load_plugin(GROUP, _NAME, kind="player")(make_player, plan.config)
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
