"""Players for Ray workers: functions of a module, as a worker's process must be able to load."""

import sys
from functools import cache
from importlib.abc import MetaPathFinder
from typing import Any

from fakes.envs import register_toys
from fakes.models import tiny_model_dir

import envkit
from envkit.rollout import GenerateRequest, Player, RolloutConfig, ScriptedEngine
from envkit.tokens import ChatCodec, load_codec


@cache
def codec_of(model: str) -> ChatCodec:
    """Return a tiny model's codec, once in a process."""
    return load_codec(tiny_model_dir(model))


def scripted_player(
    env_id: str, *, model: str = "llama", latency_s: float = 0.0, config: RolloutConfig
) -> Player:
    """Return a player whose replies an environment's oracle writes."""
    codec = codec_of(model)
    env: Any = envkit.make(env_id, **config.env_kwargs).unwrapped
    policy = env.oracle()

    def latency(request: GenerateRequest) -> float:
        return latency_s

    return Player(
        ScriptedEngine(codec, policy, latency=latency if latency_s else None), codec, config
    )


def toy_player(env_id: str, **options: Any) -> Player:
    """Do the same for a toy environment, which the worker's process has to register first."""
    register_toys()
    return scripted_player(env_id, **options)


def hide_envkit_ray() -> None:
    """Make a worker's process one without the package, as a node of an unprepared cluster has."""
    sys.meta_path.insert(0, _Hidden())


class _Hidden(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] == "envkit_ray":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
