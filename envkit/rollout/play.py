"""Playing and resuming single episodes."""

import secrets
import uuid
from collections.abc import Mapping
from typing import Any

from envkit.env import Env
from envkit.errors import ConfigurationError
from envkit.rollout.engine import Engine, Sampling
from envkit.rollout.host import AnyEnv, EnvFactory, EnvHost
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits
from envkit.rollout.loop import play_episode
from envkit.rollout.pool import WorkerPool
from envkit.rollout.retries import RetryBudget
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.tasks import Task
from envkit.tokens import ChatCodec
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory


async def play(
    env: AnyEnv | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    limits: Limits | None = None,
    retries: RetryBudget | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    task: Task | None = None,
    episode_id: str | None = None,
    group_id: str | None = None,
    interrupt: Interrupt | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Play one episode and return its record.

    An infrastructure failure does not raise: it gives a trajectory with a fault, no reward and no
    trained token. What raises is what a retry cannot mend: a wrong argument, or an environment that
    breaks its contract.

    Args:
        env: An environment, which stays the caller's to close, or a function that builds one, which
            is closed here. One that is bound to the thread that made it must come as a function.
        engine: Samples the replies.
        codec: Encodes what the environment says, as the model's chat template does.
        limits: Where to end; None bounds nothing but the environment's own turns.
        retries: Deadlines and budgets; None takes the defaults.
        sampling: Temperature and length of replies; None takes the defaults.
        seed: Of the environment; None draws one, which is in the record.
        task: Plays this task; None draws one with the seed.
        episode_id: Identifies the episode, also to the engine; None makes one.
        group_id: Marks the episodes that a trainer compares.
        interrupt: Ends the episode early with a valid partial trajectory.
        metadata: JSON data to keep with the record.

    Raises:
        ConfigurationError: Engine, sampling or environment do not fit together.
        ContractError: The environment returned something its contract does not allow.
    """
    setup = _setup(engine, codec, limits, retries, sampling)
    spec = EpisodeSpec(
        env_id=_env_id(env),
        seed=secrets.randbits(31) if seed is None else seed,
        task=task,
        episode_id=episode_id or uuid.uuid4().hex,
        group_id=group_id,
        metadata=metadata or {},
    )
    return await _play_once(env, setup, spec, interrupt or Interrupt(), None)


async def resume(
    trajectory: Trajectory,
    env: AnyEnv | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    limits: Limits | None = None,
    retries: RetryBudget | None = None,
    sampling: Sampling | None = None,
    interrupt: Interrupt | None = None,
) -> Trajectory:
    """Go on with an aborted trajectory, images included, and return the whole record.

    The environment is brought back by its snapshot, or by a replay of the recorded replies that is
    compared outcome by outcome. A reply that was cut in the middle is continued: its tokens so far
    keep their own segment, log-probabilities and weight version.

    Args:
        trajectory: One whose `stop_reason` is ABORTED.
        env: As for `play`.
        engine: As for `play`.
        codec: As for `play`; the same template as before.
        limits: As for `play`; the budgets count what was there already.
        retries: As for `play`.
        sampling: As for `play`.
        interrupt: As for `play`.

    Raises:
        ConfigurationError: The trajectory did not end by an abort.
    """
    if trajectory.stop_reason is not StopReason.ABORTED:
        raise ConfigurationError(
            "only an aborted trajectory can be resumed, got one that ended with "
            f"{trajectory.stop_reason.value!r}"
        )
    if trajectory.seed is None:
        raise ConfigurationError("a trajectory without a seed cannot be resumed")
    setup = _setup(engine, codec, limits, retries, sampling)
    spec = EpisodeSpec(
        env_id=trajectory.env_id,
        seed=trajectory.seed,
        task=dict(trajectory.task) or None,
        episode_id=trajectory.episode_id,
        group_id=trajectory.group_id,
        metadata=trajectory.metadata,
    )
    return await _play_once(env, setup, spec, interrupt or Interrupt(), trajectory)


def _setup(
    engine: Engine,
    codec: ChatCodec,
    limits: Limits | None,
    retries: RetryBudget | None,
    sampling: Sampling | None,
) -> Setup:
    return Setup(
        engine=engine,
        codec=codec,
        limits=limits or Limits(),
        retries=retries or RetryBudget(),
        sampling=sampling or Sampling(),
    )


async def _play_once(
    env: AnyEnv | EnvFactory,
    setup: Setup,
    spec: EpisodeSpec,
    interrupt: Interrupt,
    earlier: Trajectory | None,
) -> Trajectory:
    pool = WorkerPool()
    host = EnvHost(pool, factory=env) if callable(env) else EnvHost(pool, env=env)
    try:
        return await play_episode(setup, spec, host, pool, interrupt, earlier)
    finally:
        await host.close()
        pool.close()


def _env_id(env: AnyEnv | EnvFactory) -> str:
    spec = getattr(env, "spec", None)  # a factory has none
    if spec is not None:
        return str(spec.id).removeprefix("envkit/")
    unwrapped = getattr(env, "unwrapped", None)
    return (
        type(unwrapped).__name__
        if isinstance(unwrapped, Env)
        else getattr(env, "__name__", type(env).__name__)
    )
