"""A player whose episodes end as a test decides, without an environment or an engine."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from fakes.trajectories import Context, Reply, build

from envkit.rollout import EpisodeSpec, Interrupt, RolloutConfig
from envkit.rollout.player import AnyPlayer
from envkit.trajectory import StopReason, Trajectory

Ending = Callable[[int, int, Interrupt], Awaitable[StopReason]]
"""Takes group, member and interrupt of an episode; returns how it ends."""


class PromptPlayer(AnyPlayer):
    """Records what a run asks of its player."""

    availability: Any = None

    def __init__(self, config: RolloutConfig, ending: Ending) -> None:
        self.config, self._ending = config, ending
        self.played: list[EpisodeSpec] = []
        self.resumed: list[Trajectory] = []

    async def play_spec(
        self, env: object, spec: EpisodeSpec, interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        if spec.earlier is None:
            self.played.append(spec)
        else:
            self.resumed.append(spec.earlier)
        metadata = dict(spec.metadata)
        reason = await self._ending(metadata["group"], metadata["member"], interrupt)
        name, group = spec.episode_id, spec.group_id
        return (build((), stop_reason=reason, episode_id=name, group_id=group, metadata=metadata),)

    async def end_session(self, episode_id: str) -> None:
        raise NotImplementedError

    def expect(self, concurrency: int) -> None:
        return

    def report(self, played: tuple[Trajectory, ...]) -> None:
        raise NotImplementedError

    async def check_engines(self, interrupt: Interrupt) -> None:
        return

    async def roles_of(self, env: object) -> tuple[str, ...]:
        raise NotImplementedError

    async def max_sessions(self, source: object) -> int | None:
        return None

    async def aclose(self) -> None:
        raise NotImplementedError


class TreePlayer(PromptPlayer):
    """Plays trunks and forks of a few turns of three tokens each, with a state before each."""

    def __init__(self, *, turns: int = 4, purposes: Mapping[int, str] | None = None) -> None:
        super().__init__(RolloutConfig(), _ends_well)
        self.turns, self.purposes = turns, dict(purposes or {})
        self.interrupts: list[Any] = []
        self.specs: list[EpisodeSpec] = []
        self.members: dict[str, int] = {}
        self.states: dict[str, dict[int, bytes]] = {}
        self.forks: dict[str, Trajectory] = {}
        self.ended: list[str] = []
        self.running = self.most = 0

    async def play_spec(
        self, env: object, spec: EpisodeSpec, interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        self.interrupts.append(interrupt)
        if spec.earlier is not None:
            return await self.play_fork(spec, spec.earlier)
        assert spec.snapshots is not None
        self.specs.append(spec)
        spec.snapshots.update({n: f"{n} of trunk".encode() for n in range(self.turns)})
        return (self.leaf(spec.episode_id, group_id=spec.group_id, seed=spec.seed),)

    async def play_fork(self, spec: EpisodeSpec, fork: Trajectory) -> tuple[Trajectory, ...]:
        assert spec.snapshots is not None
        name = spec.episode_id
        self.forks[name], self.members[name], self.states[name] = fork, spec.member, spec.snapshots
        self.running += 1
        self.most = max(self.most, self.running)
        for _tick in range(3):  # all workers start before the first fork ends
            await asyncio.sleep(0)
        self.running -= 1
        return (self.leaf(name, group_id=fork.group_id, origin=fork.origin, seed=fork.seed),)

    def leaf(self, name: str, **values: Any) -> Trajectory:
        """Return a finished episode."""
        replies = [Reply(observation=Context(text_ids=(11,))) for _ in range(self.turns - 1)]
        found = build([*replies, Reply()], episode_id=name, **values)
        turns = (replace(one, purpose=self.purposes.get(one.turn)) for one in found.turns)
        return replace(found, turns=tuple(turns))

    async def end_session(self, episode_id: str) -> None:
        self.ended.append(episode_id)


async def _ends_well(group: int, member: int, interrupt: Interrupt) -> StopReason:
    return StopReason.TERMINATED
