"""Players for Ray workers: functions of a module, as a worker's process must be able to load."""

from functools import cache
from pathlib import Path
from typing import Any

from fakes.envs import register_toys
from fakes.hearing import Hearing, thinking_codec
from fakes.models import tiny_model_dir

import envkit
from envkit.env import PolicyContext
from envkit.rollout import GenerateRequest, Player, RolloutConfig, ScriptedEngine
from envkit.tokens import ChatCodec, load_codec


@cache
def codec_of(model: str) -> ChatCodec:
    """Return a tiny model's codec, once in a process."""
    return load_codec(tiny_model_dir(model))


def scripted_player(
    env_id: str,
    *,
    model: str = "llama",
    latency_s: float = 0.0,
    marks: str | None = None,
    config: RolloutConfig,
) -> Player:
    """Return a player whose replies an environment's oracle writes.

    Args:
        env_id: The environment.
        model: Model of the codec.
        latency_s: Seconds that a reply takes.
        marks: Folder that gets a file when a reply with latency begins.
        config: Its settings.
    """
    codec = codec_of(model)
    env: Any = envkit.make(env_id, **config.env_kwargs).unwrapped
    policy = env.oracle()

    def latency(request: GenerateRequest) -> float:
        if marks is not None:
            Path(marks, request.request_id).touch()
        return latency_s

    return Player(
        ScriptedEngine(codec, policy, latency=latency if latency_s else None), codec, config
    )


def toy_player(env_id: str, **options: Any) -> Player:
    """Do the same for a toy environment, which the worker's process has to register first."""
    register_toys()
    return scripted_player(env_id, **options)


def hearing_player(
    *, config: RolloutConfig, fails_at: int | None = None, waits_at: int | None = None, mark: str
) -> Player:
    """Return a player whose second and fourth replies are cut; its prompts open a thought.

    Args:
        config: Its settings.
        fails_at: Turn whose first step fails in `Hearing` of this process.
        waits_at: Turn whose first reply takes a minute, unless it is aborted.
        mark: File that is made when that turn first begins.
    """
    if fails_at is not None:
        Hearing.failing.add(fails_at)

    def latency(request: GenerateRequest) -> float:
        is_there = request.context is not None and request.context.turn == waits_at
        if not is_there or Path(mark).exists():
            return 0.0
        Path(mark).touch()
        return 60.0

    return Player(ScriptedEngine(thinking_codec(), hear, latency=latency), thinking_codec(), config)


def hear(context: PolicyContext) -> str:
    """Reply with a closed thought and "gold", or with more than the limit of a reply."""
    return "draft</think>gold" + " and more words" * 20 * (context.turn % 2)
