"""What a run plays, and how far it is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envkit.errors import ConfigurationError
from envkit.rollout.availability import Watched
from envkit.rollout.tail import ParkedGroup
from envkit.tasks import Task
from envkit.trajectory.trajectory import Trajectory

Played = tuple[Trajectory, ...]
"""The records of one episode: one, or with several agents one for each role."""
Deliver = Callable[[Played], Awaitable[object]]
"""Takes the records of a finished episode; returns once they are safe."""


@dataclass(kw_only=True)
class RolloutState:
    """How far a run is. Updated in place; a progress bar may read it at any time.

    Give it to one run after another to continue what a tail has parked.
    """

    total: int = 0
    """Episodes that were asked for."""
    started: int = 0
    finished: int = 0
    """Delivered, dropped, or about to be."""
    in_flight: int = 0
    undelivered: int = 0
    """Finished episodes that wait to be written."""
    most_undelivered: int = 0
    """The highest that `undelivered` ever was."""
    faulted: int = 0
    """Delivered with a fault."""
    retried: int = 0
    """Faulted episodes that were played again."""
    dropped: list[Trajectory] = field(default_factory=list[Trajectory])
    """Members of groups that a fault (DROP_GROUP) or stale tokens (`Stale.DROP`) withheld."""
    cut: list[Trajectory] = field(default_factory=list[Trajectory])
    """Members of groups that the tail stopped and left out."""
    parked: list[ParkedGroup] = field(default_factory=list[ParkedGroup])
    """Groups that the tail stopped, for the next run with this state."""
    availability: Watched | None = None
    """Of the engine, or of the workers that play; None before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Which episodes a run plays."""

    episodes: int
    """How many in all; a multiple of `group_size`."""
    group_size: int = 1
    """Members of a group play one task from one initial state."""
    concurrency: int = 64
    """Episodes at once; an environment's `max_sessions` lowers it."""
    tasks: Sequence[Task | None] | None = None
    """Task of each group, in order; None draws them with the seed."""
    seeds: Sequence[int | None] | None = None
    """Seed of each group, in order; None derives it from the run's."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON data to keep with every record."""

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit together.

        Raises:
            ConfigurationError: See the message.
        """
        for name in ("episodes", "group_size", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.episodes % self.group_size:
            raise ConfigurationError(
                f"episodes counts trajectories and must be a multiple of group_size, got "
                f"{self.episodes} episodes in groups of {self.group_size}"
            )

    def check(self, *, new_groups: int) -> None:
        """Refuse fewer tasks or seeds than there are groups to start.

        Raises:
            ConfigurationError: See the message.
        """
        for name in ("tasks", "seeds"):
            given: Sequence[object] | None = getattr(self, name)
            if given is not None and len(given) < new_groups:
                raise ConfigurationError(
                    f"{new_groups} new groups need as many {name}, got {len(given)}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What an earlier, interrupted run has left."""

    delivered: frozenset[int] = frozenset()
    """Indices of the episodes that need not be played: group * group_size + member."""
    unfinished: Mapping[int, Trajectory] = field(default_factory=dict[int, Trajectory])
    """Aborted trajectories to resume, by index."""
    starts: Mapping[int, str] = field(default_factory=dict[int, str])
    """Hash of the first observation of groups that have begun, by group."""
