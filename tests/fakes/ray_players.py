"""Players for Ray workers: functions of a module, as a worker's process must be able to load."""

from functools import cache
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
