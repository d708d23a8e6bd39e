"""A player whose episodes are played by workers on a Ray cluster."""

import asyncio
import itertools
import pickle
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from envkit.errors import ConfigurationError, EnvFault, EnvkitError, FaultKind
from envkit.rollout.availability import FirstOutage, Watched
from envkit.rollout.breaker import Breaker
from envkit.rollout.config import RolloutConfig
from envkit.rollout.host import AnyEnv, EnvFactory
from envkit.rollout.interrupt import CallCutError, Interrupt
from envkit.rollout.player import AnyPlayer
from envkit.rollout.self_check import SelfCheck
from envkit.rollout.setup import EpisodeSpec
from envkit.rollout.sources import EnvSource, FunctionSource, Source
from envkit.rollout.supervision import Supervision
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory
from envkit_ray import messages
from envkit_ray.cluster import load_ray
from envkit_ray.line import WorkerLostError
from envkit_ray.options import RayOptions
from envkit_ray.workers import Workers

_STOP_S: Final = 15.0
"""Seconds beyond an interrupt's grace period for a worker to deliver its episodes."""
_NAME: Final = "ray"


class Stop:
    """Forwards a caller's interrupt to the workers, as if it were a request."""

    def __init__(self, interrupt: Interrupt, workers: Workers) -> None:
        self.name = uuid.uuid4().hex
        self.users = 0
        """Episodes that the interrupt ends."""
        self._interrupt, self._workers = interrupt, workers

    @property
    def reason(self) -> StopReason | None:
        """Why the interrupt has fired; None if it has not."""
        return self._interrupt.reason

    async def abort(self, request_id: str) -> None:
        """Fire it in every worker; the interrupt repeats this until all episodes are back."""
        reason = self.reason
        if reason is not None:
            for member in self._workers.members:
                self._workers.tell(member, "stop", request_id, reason, self._interrupt.grace_s)


class RayPlayer(AnyPlayer):
    """Plays episodes on Ray actors; used in place of an `envkit.rollout.Player`.

    An episode whose worker dies starts again on another one, with the same id, and counts the loss
    in `env_restarts`. An episode lost too often becomes a faulted trajectory. A player belongs to
    the event loop that created it.
    """

    def __init__(
        self,
        make_player: messages.MakePlayer,
        config: RolloutConfig,
        *,
        keeps_features: bool = False,
        follows: Callable[[], object] | None = None,
    ) -> None:
        """Store the settings; the workers start with the first call, or with `start`.

        Args:
            make_player: Makes the `Player` of a worker, in the worker: a function of a module, or
                `functools.partial` of one. It may be asynchronous. Its settings are `config`
                without `workers`.
            config: `workers` is their number, `player_options` are `RayOptions`.
            keeps_features: Send the processor's tensors of images with the trajectories. They are
                50 to 100 times as large as the rest; a trainer that needs them saves computing
                them again.
            follows: Returns a value of this process that workers must know, such as a count of
                weight updates; the `follow` method of their players is called when it changes. None
                passes nothing.

        Raises:
            MissingDependencyError: Ray is not installed.
            ConfigurationError: The options are wrong, or `make_player` cannot be pickled.
        """
        self.config = config
        self._options = RayOptions.of(config)
        load_ray()
        recipe = messages.pickled(make_player, "make_player")
        self._workers = Workers(
            config.workers,
            self._options,
            recipe,
            keeps_features=keeps_features,
            follows=follows,
        )
        self._starting: asyncio.Task[None] | None = None
        self._episodes = Supervision(
            SelfCheck(config.sanity, config.sanity_share), Breaker(config.breaker), _NAME
        )
        self._packed: dict[Source, messages.Packed] = {}
        self._stops: dict[Interrupt, Stop] = {}
        self._names = itertools.count()

    async def start(self) -> None:
        """Join the cluster and start the workers, once; other methods do so on their first call.

        Raises:
            ConfigurationError: No cluster answers, the workers do not fit or start in time, or one
                of them cannot play; the message says why.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._workers.start())
        await asyncio.shield(self._starting)

    @property
    def availability(self) -> Watched:
        """Whether any worker answers and reaches its engine, and episodes succeed."""
        return FirstOutage((self._episodes.breaker, self._workers))

    @property
    def processes(self) -> tuple[tuple[str, int], ...]:
        """Host and process id of every worker that answers."""
        greeted = [one.hello for one in self._workers.members if one.is_up]
        return tuple((hello.host, hello.pid) for hello in greeted if hello is not None)

    @property
    def lost_calls(self) -> int:
        """Attempts at episodes that ended with their worker."""
        return self._workers.lost_calls

    async def play_spec(
        self, env: AnyEnv | EnvFactory, spec: EpisodeSpec, interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        """Play or continue an episode on a worker.

        Args:
            env: A `Source`, or a function of a module that builds an environment.
            spec: As for `Player.play_spec`.
            interrupt: As for `Player.play_spec`.

        Raises:
            ConfigurationError: As for `Player.play`, from the worker; or a built environment.
            RunFailedError: As for `Player.play`.
        """
        if spec.earlier is not None:
            spec = replace(spec, earlier=messages.without_features(spec.earlier))
        order = messages.Order(source=self._pack(env), spec=spec, interrupt="", reason=None)
        async with self._episodes.admitted(spec, interrupt) as admission:
            playing = self._played(order, interrupt)
            return await self._episodes.recorded(spec, playing, admission)

    async def end_session(self, episode_id: str) -> None:
        """End an engine's session that was kept open for forks, on the worker that has it."""
        for member in self._workers.members:
            self._workers.tell(member, "end_session", episode_id)

    async def check_engines(self, interrupt: Interrupt) -> None:  # of the interface
        """Start the workers; each lets its engines check themselves.

        Raises:
            ConfigurationError: As for `start`.
        """
        await self.start()

    async def roles_of(self, env: AnyEnv | EnvFactory) -> tuple[str, ...]:
        """Return the roles of an environment with several agents; empty if it has one agent.

        Raises:
            EnvFault: It could not be built.
            ConfigurationError: Its arguments are wrong, or a worker lacks its package.
        """
        roles: list[tuple[str, ...]] = await self._ask("roles_of", env, most=1)
        return roles[0]

    async def max_sessions(self, source: Source) -> int | None:
        """Return how many instances all workers may have at once; None is unlimited.

        Raises:
            EnvFault: Every worker is lost and none recovers.
            ConfigurationError: A worker cannot build it: its arguments are wrong, or the worker
                lacks its package.
        """
        found: list[int | None] = await self._ask("max_sessions", source, most=self.config.workers)
        known = [most for most in found if most is not None]
        # One worker without a limit can play all episodes.
        if len(known) < len(found):
            return None
        return sum(known) + min(known) * (
            self.config.workers - len(known)
        )  # some are being revived

    async def aclose(self) -> None:
        """Close the workers with everything they hold; safe to call twice."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self._workers.close()

    async def _played(self, order: messages.Order, interrupt: Interrupt) -> tuple[Trajectory, ...]:
        """Play an order until it is answered or the interrupt's time is up."""
        await self.start()
        with self._stopping(interrupt) as stop:
            try:
                return await interrupt.cut(self._attempts(order, stop), patience_s=_STOP_S)
            except CallCutError:
                return (order.spec.earlier or self._episodes.without_play(order.spec, None),)

    @contextmanager
    def _stopping(self, interrupt: Interrupt) -> Generator[Stop]:
        """Forward the interrupt to the workers while an episode is played."""
        stop = self._stops.get(interrupt)
        if stop is None:
            stop = self._stops[interrupt] = Stop(interrupt, self._workers)
            interrupt.enter(stop.name, stop)
        stop.users += 1
        try:
            yield stop
        finally:
            stop.users -= 1
            if not stop.users:
                interrupt.leave(stop.name)
                del self._stops[interrupt]

    async def _attempts(self, order: messages.Order, stop: Stop) -> tuple[Trajectory, ...]:
        spec = order.spec
        for attempt in range(self._options.max_attempts):
            # Servers and environments can distinguish it from the lost one. What is resumed keeps
            # its id: its first tokens were sampled under it.
            if attempt and order.spec.earlier is None:
                spec = replace(spec, episode_id=f"{order.spec.episode_id}~{attempt}")
            sent = replace(order, spec=spec, interrupt=stop.name, reason=stop.reason)
            try:
                answer = await self._once(sent)
            except WorkerLostError:
                self._workers.lost_calls += 1
                continue
            return messages.accepted(order.spec, answer, attempt)
        raise EnvFault(
            f"the episode's Ray worker was lost {self._options.max_attempts} times "
            "(player_options.max_attempts); if its environment runs out of memory or ends the "
            "process, isolation: process contains that",
            kind=FaultKind.CRASHED,
        )

    async def _once(self, order: messages.Order) -> messages.Answer:
        name, data = str(next(self._names)), pickle.dumps(order, protocol=5)
        member = await self._workers.lend(order.spec.group_id)
        try:
            return await self._workers.ask(member, name, data)
        except asyncio.CancelledError:
            self._workers.tell(member, "cancel", name)
            raise
        finally:
            self._workers.give_back(member)

    def _pack(self, env: AnyEnv | EnvFactory) -> messages.Packed:
        """Serialise an environment's source, with the same result each time."""
        if isinstance(env, EnvSource):
            return env
        if not callable(env):
            raise ConfigurationError(
                "workers build environments themselves, got one that is already built "
                f"({type(env).__name__}); pass its id, an EnvSource or a function of a module"
            )
        if not isinstance(env, FunctionSource):
            return messages.pickled(env, "the environment's factory")
        # Workers know an environment by these bytes, which pickling again may change.
        if env not in self._packed:
            self._packed[env] = messages.pickled(env, "the environment's factory")
        return self._packed[env]

    async def _ask(self, method: str, env: AnyEnv | EnvFactory, *, most: int) -> list[Any]:
        """Ask workers about an environment; return the answers of those that live, at least one.

        Args:
            method: Method of `Worker`.
            env: What to ask about.
            most: How many workers to ask.
        """
        packed = self._pack(env)
        await self.start()
        for _ in range(self._options.max_attempts):
            up = await self._workers.up()
            calls = [self._workers.call(one, method, packed) for one in up[:most]]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            found = [one for one in answers if not isinstance(one, WorkerLostError)]
            for one in found:
                if isinstance(one, EnvkitError):
                    one.add_note("raised by a Ray worker: every node needs the same packages")
                if isinstance(one, BaseException):
                    raise one
            if found:
                return found
        raise EnvFault(
            f"Ray workers were lost {self._options.max_attempts} times while they built the "
            "environment (player_options.max_attempts)",
            kind=FaultKind.CRASHED,
        )
