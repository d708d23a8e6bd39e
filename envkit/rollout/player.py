"""Play single episodes on request, for a run or for a trainer's rollout workers.

Episodes share threads, and environments are reused by later episodes with the same source. A player
belongs to the event loop that it was created on.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Final, cast

import gymnasium

from envkit import registration
from envkit.agents import MultiAgentEnv
from envkit.env import Env
from envkit.errors import ConfigurationError, FaultKind, shown
from envkit.rollout.availability import FirstOutage, Watched, availability_of
from envkit.rollout.breaker import Admission, Breaker
from envkit.rollout.config import RolloutConfig
from envkit.rollout.engine import CheckingEngine, Engine, Sampling
from envkit.rollout.host import AnyEnv, EnvFactory, EnvHost
from envkit.rollout.interrupt import CallCutError, Interrupt
from envkit.rollout.limits import Backoff, Limits, RetryBudget
from envkit.rollout.multi_agent import can_resume, check_forkable, has_role, play_any
from envkit.rollout.recovery import end_session
from envkit.rollout.self_check import SelfCheck
from envkit.rollout.setup import EpisodeSpec, RolePlan, Setup
from envkit.rollout.sources import EnvPool, EnvSource, FunctionSource, Source, isolate, source_of
from envkit.rollout.supervision import Supervision
from envkit.tasks import Task
from envkit.threads.pool import WorkerPool
from envkit.tokens.codec import ChatCodec
from envkit.trajectory.stop import FaultPlace, FaultRecord, StopReason
from envkit.trajectory.trajectory import Trajectory

_NO_LIMIT_S: Final = 86_400.0
_CHECK_S: Final = 120.0
"""Deadline of an engine's self-check. A slower engine faces only the limits of the episodes."""


class AnyPlayer(ABC):
    """Plays the episodes of a run: a `Player`, or workers with one `Player` each."""

    config: RolloutConfig
    _episodes: Supervision

    async def play(
        self,
        env: str | AnyEnv | EnvFactory,
        spec: EpisodeSpec | None = None,
        *,
        interrupt: Interrupt | None = None,
    ) -> tuple[Trajectory, ...]:
        """Play one episode and return a record for each role that replied.

        An environment with one agent gives one record. The records of several agents share
        `rollout_id` in their metadata, and their episode and group ids end with the role. Any
        failure inside the episode becomes a faulted record.

        Args:
            env: A registered id, made with the configuration's `env_kwargs`; an environment, which
                the caller closes; a function that builds one, which is closed after the episode;
                or a `Source`. Environments of an id or a source are kept for later episodes.
                Workers take an id, a source or a function of a module.
            spec: The episode to play; None draws one.
            interrupt: Ends the episode early with a valid partial trajectory.

        Raises:
            UnknownNameError: No environment has that id.
            ConfigurationError: Engine, sampling and environment are incompatible.
            RunFailedError: This player's first episodes all failed in the same way, too many
                failed in a row (`RolloutConfig.breaker`), or the tokens of several differ from the
                full render.
        """
        if isinstance(env, str):
            env = source_of(registration.spec(env).id, self.config.env_kwargs)
        spec = spec or EpisodeSpec()
        # A record needs the name even if the environment is never built.
        spec = spec if spec.env_id else replace(spec, env_id=_env_id(env))
        return await self.play_spec(env, spec, interrupt or Interrupt())

    async def resume(
        self,
        trajectory: Trajectory,
        env: str | AnyEnv | EnvFactory,
        *,
        member: int = 0,
        interrupt: Interrupt | None = None,
    ) -> tuple[Trajectory, ...]:
        """Resume an aborted trajectory, images included, and return the whole record.

        The environment is restored from its snapshot, or by replaying the recorded replies and
        comparing every outcome. A reply that was cut off is continued: its tokens so far
        keep their own segment, log-probabilities and weight version.

        Args:
            trajectory: A trajectory whose `stop_reason` is ABORTED.
            env: As for `play`.
            member: `EpisodeSpec.member` of the episode.
            interrupt: As for `play`.

        Raises:
            ConfigurationError: The trajectory was not aborted, or has no seed.
            RunFailedError: As for `play`.
        """
        return await self.play(env, resumed_spec(trajectory, member), interrupt=interrupt)

    @abstractmethod
    async def play_spec(
        self, env: AnyEnv | EnvFactory, spec: EpisodeSpec, interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        """Play or continue an episode; `play` and `resume` call this.

        Args:
            env: As for `play`.
            spec: The episode, with the name of its environment.
            interrupt: Ends the episode early with a valid partial trajectory.

        Raises:
            ConfigurationError: As for `play`.
            RunFailedError: As for `play`.
        """

    def expect(self, concurrency: int) -> None:
        """Tell how many episodes a run plays at once, which one cause may fault together.

        Args:
            concurrency: At least 1.
        """
        self._episodes.breaker.expect(concurrency)

    def report(self, played: tuple[Trajectory, ...]) -> None:
        """Count an episode that the caller turned into a fault, such as after repeated aborts.

        Args:
            played: Its records.

        Raises:
            RunFailedError: Too many episodes failed in a row.
        """
        self._episodes.report(played)

    @property
    @abstractmethod
    def availability(self) -> Watched:
        """Whether episodes can be played now."""

    @abstractmethod
    async def end_session(self, episode_id: str) -> None:
        """End an engine session that `snapshots` kept open; unknown ids are ignored.

        Args:
            episode_id: Id of the episode.
        """

    @abstractmethod
    async def check_engines(self, interrupt: Interrupt) -> None:
        """Run the self-checks of the engines that have one; a run does so when it starts.

        Args:
            interrupt: Ends a slow check; the run then continues without it.

        Raises:
            ConfigurationError: An engine would fail every episode.
        """

    @abstractmethod
    async def roles_of(self, env: AnyEnv | EnvFactory) -> tuple[str, ...]:
        """Return the roles of an environment with several agents; empty if it has one agent.

        Args:
            env: As for `play`; a function or a source is called.

        Raises:
            EnvFault: The environment could not be built.
            ConfigurationError: The environment does not accept its arguments.
        """

    @abstractmethod
    async def max_sessions(self, source: Source) -> int | None:
        """Return how many instances of an environment may exist at once; None is unlimited.

        Args:
            source: Builds the first instance, which is kept for an episode.

        Raises:
            ConfigurationError: The environment does not accept its arguments.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the environments kept for reuse and end the threads; closing twice is fine."""


class Player(AnyPlayer):
    """Plays and resumes any number of concurrent episodes with one engine and one codec."""

    def __init__(
        self,
        engine: Engine,
        codec: ChatCodec | None,
        config: RolloutConfig | None = None,
        *,
        roles: RolePlan | None = None,
    ) -> None:
        """Make a player on the running event loop.

        Args:
            engine: Samples the replies; the caller closes it.
            codec: Encodes the environments' messages. None for an engine that returns text, such as
                a `ChatEngine`: its trajectories have no token ledger and cannot be trained on.
            config: Limits, retries, sampling and isolation; None uses the defaults.
            roles: Settings per role for environments with several agents; None uses those of
                the configuration.

        Raises:
            ConfigurationError: The engine and the settings conflict, or the settings ask for
                workers.
        """
        self.config = config or RolloutConfig()
        if self.config.workers:
            raise ConfigurationError(
                "a Player plays in this process and cannot start workers, got "
                f"workers={self.config.workers}; drop workers, or use the player that has them"
            )
        self._setup = Setup(
            engine=engine,
            codec=codec,
            limits=self.config.limits,
            retries=self.config.retries,
            sampling=self.config.sampling_over(Sampling()),
            roles=roles or self.config.role_plan(),
            self_check=SelfCheck(self.config.sanity, self.config.sanity_share),
            history=self.config.history,
            agent=self.config.play_agent(),
        )
        self._pool = WorkerPool()
        # Environments with threads of their own could take the last one that the system gives, and
        # then wait for a call that the pool cannot run.
        self._pool.reserve()
        self._env_pools: dict[Source, EnvPool] = {}
        self._episodes = Supervision(
            self._setup.self_check, Breaker(self.config.breaker), engine.name
        )

    async def play_spec(
        self, env: AnyEnv | EnvFactory, spec: EpisodeSpec, interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        """Play or continue an episode with this player's engine, codec and threads."""
        async with self._episodes.admitted(spec, interrupt) as admission, self._lend(env) as host:
            setup = self._setup_of(spec, admission)
            if spec.snapshots is not None and spec.earlier is None:
                await check_forkable(setup, host)
            playing = play_any(setup, spec, host, interrupt)
            return await self._episodes.recorded(spec, playing, admission)

    async def end_session(self, episode_id: str) -> None:
        """End an engine session that `snapshots` kept open."""
        await end_session(self.engine, episode_id)

    async def roles_of(self, env: AnyEnv | EnvFactory) -> tuple[str, ...]:
        """Build the environment and return its roles, if it has several agents."""
        async with self._lend(env) as host:
            await host.ensure(timeout_s=self._setup.retries.reset_timeout_s)
            return host.env.roles if isinstance(host.env, MultiAgentEnv) else ()

    @property
    def engine(self) -> Engine:
        """The engine that samples the replies."""
        return self._setup.engine

    @property
    def availability(self) -> Watched:
        """Whether the engine answers, and episodes succeed."""
        return FirstOutage((self._episodes.breaker, availability_of(self.engine)))

    async def max_sessions(self, source: Source) -> int | None:
        """Return how many instances of an environment may exist at once; None is unlimited."""
        return await self._env_pool(source).max_sessions()

    async def check_engines(self, interrupt: Interrupt) -> None:
        """Run the self-checks of the engines that have one."""
        setup, roles = self._setup, self._setup.roles.engines
        if setup.codec is None:
            return
        # Roles often share an engine.
        for engine in dict.fromkeys((setup.engine, *roles.values())):
            if isinstance(engine, CheckingEngine):
                with suppress(CallCutError, TimeoutError):
                    async with asyncio.timeout(_CHECK_S):
                        await interrupt.cut(engine.check(setup.codec, setup.sampling))

    async def aclose(self) -> None:
        """Close the environments kept for reuse and end the threads; closing twice is fine."""
        pools, self._env_pools = self._env_pools, {}
        await asyncio.gather(*(pool.close() for pool in pools.values()))
        self._pool.close()

    def _setup_of(self, spec: EpisodeSpec, admission: Admission) -> Setup:
        """Return the setup with what the episode changes."""
        setup, most_s = self._setup, admission.patience_s
        if spec.limits is None and spec.sampling is None and most_s is None:
            return setup
        retries = setup.retries
        # A trial of the breaker must not wait for the engine longer than the player does.
        if most_s is not None:
            own_s = retries.engine_unavailable_s
            retries = replace(
                retries, engine_unavailable_s=most_s if own_s is None else min(own_s, most_s)
            )
        return replace(
            setup,
            limits=spec.limits or setup.limits,
            sampling=spec.sampling or setup.sampling,
            retries=retries,
        )

    @asynccontextmanager
    async def _lend(self, env: AnyEnv | EnvFactory) -> AsyncGenerator[EnvHost]:
        if isinstance(env, (EnvSource, FunctionSource)):
            async with self._env_pool(env).lend() as host:
                yield host
            return
        host = (
            EnvHost(self._pool, factory=self._isolated(env))
            if callable(env)
            else EnvHost(self._pool, env=self._in_this_process(env))
        )
        try:
            yield host
        finally:
            await host.close()

    def _env_pool(self, source: Source) -> EnvPool:
        pool = self._env_pools.get(source)
        if pool is None:
            timeout_s = self._setup.retries.reset_timeout_s
            pool = EnvPool(self._isolated(source), self._pool, timeout_s=timeout_s)
            self._env_pools[source] = pool
        return pool

    def _isolated(self, factory: EnvFactory) -> EnvFactory:
        if self.config.isolation == "none":
            return factory
        return isolate(
            factory,
            self.config.isolation,
            memory_mb=self.config.worker_memory_mb,
            start_timeout_s=self.config.retries.reset_timeout_s or _NO_LIMIT_S,
        )

    def _in_this_process(self, env: AnyEnv) -> AnyEnv:
        if not isinstance(cast(object, env), gymnasium.Env):
            raise ConfigurationError(
                f"play an environment, a function that builds one or an EnvSource, got {shown(env)}"
            )
        if self.config.isolation == "none":
            return env
        raise ConfigurationError("isolation needs a function, got a built environment")


async def play_through(
    player: AnyPlayer,
    env: AnyEnv | EnvFactory,
    spec: EpisodeSpec,
    *,
    earlier: Trajectory | None = None,
    interrupt: Interrupt | None = None,
    max_aborts: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[tuple[Trajectory, ...], int]:
    """Play an episode to its end even if the server aborts it, as during a weight update.

    Args:
        player: Plays the episode.
        env: As for `Player.play`.
        spec: The episode from its start. Its limits and sampling also apply when it is resumed.
        earlier: An aborted trajectory to resume first; None starts the episode.
        interrupt: As for `Player.play`.
        max_aborts: How often to resume the episode; one more abort is a transient fault of the
            engine.
        is_stopped: Whether the caller wants aborted episodes returned unchanged.

    Returns:
        The records, as from `Player.play`, and the number of aborts.

    Raises:
        RunFailedError: As for `Player.play`.
    """
    backoff, rng = Backoff(), random.Random()
    for aborts in count():
        one = spec
        if earlier is not None:
            one = resumed_spec(earlier, spec.member)
            one = replace(one, limits=spec.limits, sampling=spec.sampling)
        played = await player.play(env, one, interrupt=interrupt)
        if played[0].stop_reason is not StopReason.ABORTED or is_stopped():
            return played, aborts
        if aborts == max_aborts:
            faulted = tuple(_faulted(one, aborts + 1) for one in played)
            # The breaker saw aborts, which say nothing to it.
            player.report(faulted)
            return faulted, aborts + 1
        # Several roles, and an agent in the middle of its program, start over.
        earlier = played[0] if can_resume(played[0]) else None
        await asyncio.sleep(backoff.delay(aborts, rng))
    raise AssertionError("count() has no end")


def _faulted(trajectory: Trajectory, aborts: int) -> Trajectory:
    message = f"the server aborted the episode's request {aborts} times; is it being shut down?"
    fault = FaultRecord(where=FaultPlace.GENERATE, kind=FaultKind.TRANSIENT, message=message)
    return replace(trajectory, stop_reason=StopReason.ENGINE_FAULT, fault=fault, reward=None)


async def play(
    env: str | AnyEnv | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    limits: Limits | None = None,
    retries: RetryBudget | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    task: Task | None = None,
) -> Trajectory:
    """Play one episode of an environment with one agent and return its record.

    A failure inside the episode does not raise: it gives a trajectory with a fault, no reward and
    no trained tokens. `Player.play` accepts more settings, and environments with several agents.

    Args:
        env: A registered id; an environment, which the caller closes; or a function that builds
            one, which is closed here. Pass an id or a function if the environment is bound to the
            thread that creates it.
        engine: Samples the replies.
        codec: Encodes the environment's messages as the model's chat template does.
        limits: Limits of the episode; None leaves only the environment's own turn limit.
        retries: Deadlines and budgets; None uses the defaults.
        sampling: Temperature and length of replies; None uses the defaults.
        seed: Seed of the environment; None draws one, which the record contains.
        task: The task to play; None draws one with the seed.

    Raises:
        ConfigurationError: Engine, sampling and environment are incompatible, or the environment
            has several agents.
    """
    spec = EpisodeSpec(task=task, sampling=sampling)
    player = Player(engine, codec, _config(limits, retries))
    try:
        played = await player.play(env, spec if seed is None else replace(spec, seed=seed))
    finally:
        await player.aclose()
    if has_role(played[0]):
        raise ConfigurationError("this environment has several agents; use Player.play")
    return played[0]


async def resume(
    trajectory: Trajectory,
    env: str | AnyEnv | EnvFactory,
    engine: Engine,
    codec: ChatCodec,
    *,
    limits: Limits | None = None,
    retries: RetryBudget | None = None,
    sampling: Sampling | None = None,
) -> Trajectory:
    """Resume an aborted trajectory and return the whole record; see `Player.resume`.

    Args:
        trajectory: A trajectory whose `stop_reason` is ABORTED.
        env: As for `play`.
        engine: As for `play`.
        codec: As for `play`; it must use the same template as before.
        limits: As for `play`; the budgets include what the trajectory has already used.
        retries: As for `play`.
        sampling: As for `play`.

    Raises:
        ConfigurationError: The trajectory was not aborted, or has no seed.
    """
    player = Player(engine, codec, _config(limits, retries))
    try:
        return (await player.play(env, replace(resumed_spec(trajectory), sampling=sampling)))[0]
    finally:
        await player.aclose()


def _config(limits: Limits | None, retries: RetryBudget | None) -> RolloutConfig:
    return RolloutConfig(limits=limits or Limits(), retries=retries or RetryBudget())


def resumed_spec(trajectory: Trajectory, member: int = 0) -> EpisodeSpec:
    """Return the spec that continues an aborted trajectory's episode.

    Its limits include what the trajectory has already used.

    Raises:
        ConfigurationError: It cannot be resumed.
    """
    if trajectory.stop_reason is not StopReason.ABORTED:
        raise ConfigurationError(
            "only an aborted trajectory can be resumed, got one that ended with "
            f"{trajectory.stop_reason.value!r}"
        )
    if not can_resume(trajectory):
        raise ConfigurationError(
            "a role's trajectory cannot be resumed without its siblings, nor an agent in the "
            "middle of its program: play the episode again"
        )
    if trajectory.seed is None:
        raise ConfigurationError("a trajectory without a seed cannot be resumed")
    return EpisodeSpec(
        env_id=trajectory.env_id,
        seed=trajectory.seed,
        task=dict(trajectory.task) or None,
        episode_id=trajectory.episode_id,
        group_id=trajectory.group_id,
        member=member,
        metadata=trajectory.metadata,
        earlier=trajectory,
    )


def _env_id(env: AnyEnv | EnvFactory) -> str:
    if isinstance(env, (EnvSource, FunctionSource)):
        return env.env_id
    spec = getattr(env, "spec", None)  # a factory has none
    if spec is not None:
        return str(spec.id).removeprefix("envkit/")
    unwrapped = getattr(env, "unwrapped", None)
    return (
        type(unwrapped).__name__
        if isinstance(unwrapped, Env)
        else getattr(env, "__name__", type(env).__name__)
    )
