"""Playing and resuming single episodes."""

from collections.abc import Mapping
from typing import Any

from envkit.agents import AdjustRewards
from envkit.errors import ConfigurationError
from envkit.rollout.engine import Engine, Sampling
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.limits import Limits
from envkit.rollout.player import Player
from envkit.rollout.retries import RetryBudget
from envkit.rollout.setup import RolePlan
from envkit.rollout.shared import is_shared, role_of
from envkit.tasks import Task
from envkit.tokens import ChatCodec
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
    player = Player(engine, codec, limits=limits, retries=retries, sampling=sampling)
    try:
        return await player.play(
            env,
            seed=seed,
            task=task,
            episode_id=episode_id,
            group_id=group_id,
            interrupt=interrupt,
            metadata=metadata,
        )
    finally:
        await player.aclose()


async def play_agents(
    env: AnyEnv | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    engines: Mapping[str, Engine] | None = None,
    samplings: Mapping[str, Sampling] | None = None,
    adjust_rewards: AdjustRewards | None = None,
    limits: Limits | None = None,
    retries: RetryBudget | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    task: Task | None = None,
    episode_id: str | None = None,
    group_id: str | None = None,
    interrupt: Interrupt | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Trajectory]:
    """Play one episode of an environment with several agents and return its records by role.

    A role that was never addressed has no record. Limits bound each role by itself, except the
    episode's time-out, which is one for all. A failure of one role fails the whole episode.

    Args:
        env: As for `play`.
        engine: Samples the replies of every role that `engines` does not name.
        codec: As for `play`.
        engines: Engines of single roles, of the same tokenizer and template.
        samplings: Sampling of single roles.
        adjust_rewards: Makes the rewards of the roles from their trajectories; None keeps those of
            the environment.
        limits: As for `play`, for each role.
        retries: As for `play`.
        sampling: As for `play`.
        seed: As for `play`.
        task: As for `play`.
        episode_id: As for `play`; the siblings share it as `rollout_id`.
        group_id: As for `play`; each role's episodes form a group of their own.
        interrupt: As for `play`.
        metadata: As for `play`.

    Raises:
        ConfigurationError: The environment has one agent, or the arguments do not fit together.
        ContractError: The environment or `adjust_rewards` broke its contract.
    """
    plan = RolePlan(engines=engines or {}, samplings=samplings or {}, adjust_rewards=adjust_rewards)
    player = Player(engine, codec, limits=limits, retries=retries, sampling=sampling, roles=plan)
    try:
        played = await player.play_all(
            env,
            seed=seed,
            task=task,
            episode_id=episode_id,
            group_id=group_id,
            interrupt=interrupt,
            metadata=metadata,
        )
    finally:
        await player.aclose()
    if not all(map(is_shared, played)):
        raise ConfigurationError("this environment has one agent: play it with play()")
    return {role_of(one) or "": one for one in played}


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
        ConfigurationError: The trajectory did not end by an abort, or has no seed.
    """
    player = Player(engine, codec, limits=limits, retries=retries, sampling=sampling)
    try:
        return await player.resume(trajectory, env, interrupt=interrupt)
    finally:
        await player.aclose()
