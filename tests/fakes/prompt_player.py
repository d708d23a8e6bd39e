"""A player whose episodes end as a test decides, without an environment or an engine."""

from collections.abc import Awaitable, Callable
from typing import Any

from fakes.trajectories import build

from envkit.rollout import EpisodeSpec, Interrupt, RolloutConfig
from envkit.trajectory import StopReason, Trajectory

Ending = Callable[[int, int, Interrupt], Awaitable[StopReason]]
"""Takes group, member and interrupt of an episode; returns how it ends."""


class PromptPlayer:
    """Records what a run asks of its player."""

    availability: Any = None

    def __init__(self, config: RolloutConfig, ending: Ending) -> None:
        self.config, self._ending = config, ending
        self.played: list[EpisodeSpec] = []
        self.resumed: list[Trajectory] = []

    async def play(
        self, env: object, spec: EpisodeSpec | None = None, *, interrupt: Any = None, **_: Any
    ) -> tuple[Trajectory, ...]:
        assert spec is not None
        self.played.append(spec)
        return await self._ended(spec.episode_id, spec.group_id, dict(spec.metadata), interrupt)

    async def resume(
        self, trajectory: Trajectory, env: object, *, interrupt: Any = None, **_: Any
    ) -> tuple[Trajectory, ...]:
        self.resumed.append(trajectory)
        metadata = dict(trajectory.metadata)
        return await self._ended(trajectory.episode_id, trajectory.group_id, metadata, interrupt)

    async def _ended(
        self, episode_id: str, group_id: str | None, metadata: dict[str, Any], interrupt: Interrupt
    ) -> tuple[Trajectory, ...]:
        reason = await self._ending(metadata["group"], metadata["member"], interrupt)
        return (
            build(
                (), stop_reason=reason, episode_id=episode_id, group_id=group_id, metadata=metadata
            ),
        )

    async def end_session(self, episode_id: str) -> None:
        raise NotImplementedError

    async def check_engines(self, interrupt: Interrupt) -> None:
        return

    async def roles_of(self, env: object) -> tuple[str, ...]:
        raise NotImplementedError

    async def max_sessions(self, source: object) -> int | None:
        return None

    async def aclose(self) -> None:
        raise NotImplementedError
