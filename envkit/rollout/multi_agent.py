"""Play episodes of environments with several agents, each role through the same loop.

Deadlines, retries and recovery apply to the joint environment, not to a single role. A limit ends
only the role that reached it. A fault or an abort ends the episode for all roles: no reward is ever
computed from part of an episode.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from envkit.agents import MultiAgentEnv, RoleEnv, adjusted, credit
from envkit.errors import ConfigurationError, EnvFault, FaultKind, describe, raise_missing
from envkit.rollout.host import EnvHost
from envkit.rollout.interrupt import Interrupt
from envkit.rollout.joint import JointEnd, JointEpisode
from envkit.rollout.loop import play_episode
from envkit.rollout.record import EpisodeRecord
from envkit.rollout.recovery import RecoveringEnv, play_with_restarts
from envkit.rollout.setup import EpisodeSpec, Setup
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import AGENT, ROLE, Trajectory

ROLLOUT_ID: Final = "rollout_id"
"""Key of `Trajectory.metadata`: an id that the siblings of one episode share."""
SIBLINGS: Final = "siblings"
"""Key of `Trajectory.metadata`: how many trajectories the episode has."""


def has_role(trajectory: Trajectory) -> bool:
    """Return whether its episode has several agents, even if no role ever replied."""
    return ROLE in trajectory.metadata


def can_resume(trajectory: Trajectory) -> bool:
    """Return whether an aborted episode can be continued, rather than played again.

    A role cannot continue without its siblings, and an agent's program starts from its beginning.
    """
    return not has_role(trajectory) and AGENT not in trajectory.metadata


def rollout_id_of(trajectory: Trajectory) -> str:
    """Return the id that the siblings of an episode share, or the episode's own id."""
    shared = trajectory.metadata.get(ROLLOUT_ID)
    return shared if isinstance(shared, str) else trajectory.episode_id


async def check_forkable(setup: Setup, host: EnvHost) -> None:
    """Refuse an episode that cannot be forked, before it is played.

    Args:
        setup: As for `play_any`.
        host: As for `play_any`.

    Raises:
        ConfigurationError: There is no codec, an agent plays the episodes, or the environment has
            several or cannot return to an earlier turn.
    """
    if setup.agent is not None:
        raise ConfigurationError(
            "play_tree forks the rollout loop and cannot fork a program in the middle: drop the "
            "setting agent"
        )
    if setup.codec is None:
        raise ConfigurationError(
            f"play_tree forks a token ledger, which engine {setup.engine.name!r} does not record: "
            "it returns text; play with an engine that returns ids, such as sglang"
        )
    env = await _joint_env(setup, host)
    if env is not None:
        raise ConfigurationError(
            f"play_tree plays environments with one agent, got {type(env).__name__} with the "
            f"roles {list(env.roles)}; play it with Player.play or collect"
        )
    with contextlib.suppress(EnvFault):  # recorded by the episode
        if host.is_usable and not (host.capabilities.snapshot or host.capabilities.replay_safe):
            raise ConfigurationError(
                "play_tree needs a snapshot or a replay to return to an earlier turn, but "
                f"{type(host.env).__name__} declares neither snapshot nor replay_safe in its "
                "capabilities; declare the one it supports, or play whole episodes with collect"
            )


async def play_any(
    setup: Setup,
    spec: EpisodeSpec,
    host: EnvHost,
    interrupt: Interrupt,
) -> tuple[Trajectory, ...]:
    """Play an episode of any environment and return one trajectory for each role that replied.

    Args:
        setup: Engine, codec, limits, budgets and settings per role.
        spec: The episode to play.
        host: Holds its environment; usable for another episode afterwards.
        interrupt: Fires to end the episode early with valid partial trajectories.
    """
    is_new = spec.earlier is None  # only the loop's episodes can be continued
    if is_new and setup.agent is not None:
        return await setup.agent(setup, spec, host, interrupt)
    if not is_new or await _joint_env(setup, host) is None:
        return (await play_episode(setup, spec, host, interrupt),)
    episode = _MultiAgentEpisode(setup, spec, host)
    return await play_with_restarts(setup, spec, host, interrupt, episode.play)


async def _joint_env(setup: Setup, host: EnvHost) -> MultiAgentEnv | None:
    """Return an environment with several agents; None for one agent, or if it cannot be built."""
    if not host.is_usable:
        with contextlib.suppress(EnvFault):  # the episode retries the build, under its budget
            await host.ensure(timeout_s=setup.retries.reset_timeout_s)
    env = host.env if host.is_usable else None
    return env if isinstance(env, MultiAgentEnv) else None


class _MultiAgentEpisode:
    """One episode of several roles."""

    def __init__(self, setup: Setup, spec: EpisodeSpec, host: EnvHost) -> None:
        self._setup, self._spec, self._host, self._pool = setup, spec, host, host.pool

    async def play(self, env: RecoveringEnv) -> tuple[Trajectory, ...]:
        """Play one attempt; raise only `ConfigurationError` or `EpisodeLostError`."""
        try:
            reset = await env.reset()
            if self._spec.group_start is not None:
                self._spec.group_start.compare(reset.hash)
                self._spec.group_start.expected = reset.hash
        except EnvFault as fault:
            raise_missing(fault)
            return (self._failed_reset(env, fault),)
        joint = JointEpisode(
            env, lambda role: self._play_role(role, dict(reset.task), env.interrupt)
        )
        roles = joint.env.roles
        self._check_roles(roles)
        await joint.run(reset.observation, reset.info)
        verdict = joint.verdict
        if verdict is not None and verdict.stop_reason is StopReason.ENV_FAULT:
            self._replace_env()
        played = {role: joint.trajectories[role] for role in roles if role in joint.trajectories}
        if not played:  # the run was stopped before any role could start
            return (self._without_replies(env, dict(reset.task)),)
        finished = {
            role: replace(
                credit(trajectory, joint.late.get(role, 0.0)) if verdict is None else trajectory,
                initial_observation_hash=reset.hash,
                env_restarts=env.restarts,
                metadata={**trajectory.metadata, SIBLINGS: len(played)},
            )
            for role, trajectory in played.items()
        }
        if verdict is None:
            finished, verdict = await self._adjusted(finished)
        return tuple(_concluded(one, verdict) for one in finished.values())

    async def _play_role(
        self, env: RoleEnv, task: dict[str, Any], interrupt: Interrupt
    ) -> Trajectory:
        spec, role = self._spec, env.role
        host = EnvHost(self._pool, env=env)
        try:
            return await play_episode(
                self._setup.of_role(role),
                replace(
                    spec,
                    task=task,
                    episode_id=f"{spec.episode_id}-{role}",
                    group_id=None if spec.group_id is None else f"{spec.group_id}-{role}",
                    group_start=None,
                    metadata=self._metadata(role),
                ),
                host,
                interrupt,
            )
        finally:
            await host.close()

    def _metadata(self, role: str | None) -> Mapping[str, Any]:
        return {**self._spec.metadata, ROLE: role, ROLLOUT_ID: self._spec.episode_id}

    def _check_roles(self, roles: tuple[str, ...]) -> None:
        plan = self._setup.roles
        for role in (*plan.engines, *plan.samplings):
            if role not in roles:
                raise ConfigurationError(
                    f"engines and samplings need the name of a role, got {role!r}; the roles of "
                    f"{self._spec.env_id} are {list(roles)}"
                )

    async def _adjusted(
        self, played: dict[str, Trajectory]
    ) -> tuple[dict[str, Trajectory], JointEnd | None]:
        adjust = self._setup.roles.adjust_rewards
        unscored = any(one.reward is None for one in played.values())
        if adjust is None or unscored:
            return played, None

        def call() -> dict[str, Trajectory] | EnvFault:
            try:
                return adjusted(played, adjust)
            except BaseException as error:  # noqa: BLE001  # a user's function
                return _grader_fault(error)

        try:
            found = await self._pool.run(call, timeout_s=self._setup.retries.step_timeout_s)
        except Exception as error:  # noqa: BLE001  # a deadline; recorded as a fault
            found = _grader_fault(error)
        if not isinstance(found, EnvFault):
            return found, None
        raise_missing(found)
        fault = FaultRecord.of(FaultPlace.REWARDS, found)
        return played, JointEnd(stop_reason=StopReason.ENV_FAULT, fault=fault)

    def _failed_reset(self, env: RecoveringEnv, fault: EnvFault) -> Trajectory:
        """Return the record of an episode that failed before any role had a trajectory."""
        record = EpisodeRecord()
        record.faulted(FaultPlace.RESET, fault)
        self._replace_env()
        return self._without_role(env, record, StopReason.ENV_FAULT)

    def _replace_env(self) -> None:
        """Make the next episode start with a new environment, if one can be built."""
        if self._host.can_rebuild:
            self._host.mark_broken()

    def _without_replies(self, env: RecoveringEnv, task: dict[str, Any]) -> Trajectory:
        record = EpisodeRecord()
        record.task = task
        reason = env.interrupt.reason
        if reason is StopReason.ABORTED:
            return self._without_role(env, record, reason)
        fault = EnvFault("the deadline passed before any role replied", kind=FaultKind.TIMEOUT)
        record.faulted(FaultPlace.STEP, fault)
        return self._without_role(env, record, StopReason.ENV_FAULT)

    def _without_role(
        self, env: RecoveringEnv, record: EpisodeRecord, reason: StopReason
    ) -> Trajectory:
        record.started = env.started
        spec = replace(self._spec, metadata=self._metadata(None))
        return record.trajectory(
            reason, spec, env_restarts=env.restarts, engine=self._setup.engine.name
        )


def _grader_fault(error: BaseException) -> EnvFault:
    fault = EnvFault(f"adjust_rewards failed: {describe(error)}", kind=FaultKind.GRADER)
    fault.__cause__ = error
    return fault


def _concluded(trajectory: Trajectory, verdict: JointEnd | None) -> Trajectory:
    """Apply the verdict on the whole episode, if any, to a role's trajectory."""
    if verdict is None:
        return trajectory
    return replace(trajectory, stop_reason=verdict.stop_reason, fault=verdict.fault, reward=None)
