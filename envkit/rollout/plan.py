"""The plan of a run, and its progress."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envkit.errors import ConfigurationError
from envkit.ranges import at_least
from envkit.rollout.availability import Watched
from envkit.rollout.tail import ParkedGroup, Tail
from envkit.seeds import checked_seed
from envkit.tasks import Task
from envkit.trajectory.trajectory import Trajectory

Played = tuple[Trajectory, ...]
"""The records of one episode: one per role if it has several agents, else one."""
Deliver = Callable[[Played], Awaitable[object]]
"""Takes the records of a finished episode and returns once they are stored."""


@dataclass(kw_only=True)
class RolloutState:
    """Progress of a run, updated in place; a progress bar may read it at any time.

    Pass the same state to consecutive runs to continue the groups that the tail parked.
    """

    total: int = 0
    """Episodes in the batch."""
    started: int = 0
    finished: int = 0
    """Delivered, dropped, or about to be."""
    in_flight: int = 0
    undelivered: int = 0
    """Finished episodes that are waiting to be delivered."""
    most_undelivered: int = 0
    """Peak of `undelivered`."""
    faulted: int = 0
    """Delivered with a fault."""
    retried: int = 0
    """Faulted episodes that were retried."""
    dropped: list[Trajectory] = field(default_factory=list[Trajectory])
    """Members of groups dropped for a fault (DROP_GROUP) or stale tokens (`Stale.DROP`)."""
    cut: list[Trajectory] = field(default_factory=list[Trajectory])
    """Members of groups that the tail stopped and excluded."""
    parked: list[ParkedGroup] = field(default_factory=list[ParkedGroup])
    """Groups that the tail stopped; the next run with this state continues them."""
    availability: Watched | None = None
    """Whether the engine, or the remote workers, answer; None before the run."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several jobs that share the episodes of a run; each plays every N-th group."""

    index: int = 0
    """From 0 to `count` - 1."""
    count: int = 1

    def __post_init__(self) -> None:
        """Validate the numbers.

        Raises:
            ConfigurationError: The index is not below the count.
        """
        if not 0 <= self.index < self.count:
            raise ConfigurationError(
                f"a shard is I/N with I from 0 to N - 1, such as 0/4 to 3/4, got {self}"
            )

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Return the shard that `str` names, such as "0/4".

        Raises:
            ConfigurationError: The text names none.
        """
        numbers = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if numbers is None:
            raise ConfigurationError(
                f"a shard is I/N, two numbers such as 0/4, got {text!r:.80}; an empty number is a "
                "variable that is not set"
            )
        return cls(int(numbers[1]), int(numbers[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def groups(self, total: int) -> range:
        """Return the numbers of the shard's groups.

        Args:
            total: Number of groups of the whole run.
        """
        return range(self.index, total, self.count)

    def share(self, episodes: int, group_size: int) -> int:
        """Return the number of the shard's episodes.

        Args:
            episodes: Number of episodes of the whole run.
            group_size: Episodes per group.
        """
        return len(self.groups(episodes // group_size)) * group_size

    def check(self, groups: int, tail: Tail) -> None:
        """Check that every shard has a group and that none needs to know about the others.

        Args:
            groups: Number of groups of the whole run.
            tail: What happens to the run's long episodes.

        Raises:
            ConfigurationError: See the message.
        """
        if self.count > groups:
            raise ConfigurationError(
                f"every shard needs a group to play, got {self.count} shards of {groups} groups"
            )
        if self.count > 1 and tail.cuts:
            raise ConfigurationError(
                f"tail.then {tail.then.value!r} decides over the whole run, which no shard sees: "
                "remove it, or play the run as one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The episodes that a run plays."""

    episodes: int
    """Total number of episodes; a multiple of `group_size`."""
    group_size: int = 1
    """Episodes per group; all members play the same task from the same initial state."""
    concurrency: int = 64
    """Maximum number of concurrent episodes; an environment's `max_sessions` lowers it."""
    tasks: Sequence[Task | None] | None = None
    """Task of each group, in order; None draws it with the seed."""
    seeds: Sequence[int | None] | None = None
    """Seed of each group, in order; None derives it from the run's seed."""
    shard: Shard = field(default_factory=Shard)
    """The groups that this run plays; the other fields describe all of them."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON data to store with every record."""

    def __post_init__(self) -> None:
        """Validate the counts and seeds.

        Raises:
            ConfigurationError: See the message.
        """
        at_least(
            1,
            episodes=self.episodes,
            group_size=self.group_size,
            concurrency=self.concurrency,
        )
        if self.episodes % self.group_size:
            raise ConfigurationError(
                f"the number of episodes (-n) must be a multiple of the group size (--group), got "
                f"{self.episodes} episodes in groups of {self.group_size}"
            )
        if self.seeds is not None:
            seeds = [None if seed is None else checked_seed(seed) for seed in self.seeds]
            object.__setattr__(self, "seeds", seeds)

    def check(self, *, new_groups: int) -> None:
        """Check that there is a task and a seed for every group to start.

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
    """The state that an interrupted run left behind."""

    delivered: frozenset[int] = frozenset()
    """Indices of the episodes that are done: group * group_size + member."""
    unfinished: Mapping[int, Trajectory] = field(default_factory=dict[int, Trajectory])
    """Aborted trajectories to resume, by index."""
    starts: Mapping[int, str] = field(default_factory=dict[int, str])
    """Hash of the first observation of each group that has started, by group."""
    retried: int = 0
    """Number of faulted episodes that are played again."""
    rescued: int = 0
    """Number of trajectories that an earlier process had to write elsewhere, and are moved now."""
