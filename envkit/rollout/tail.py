"""The long tail of a batch: when it is complete, and what becomes of the episodes still running.

A few long episodes can hold a synchronous trainer's whole batch. Starting more groups than the
batch needs and stopping once it is complete keeps the engine busy, at the price of a bias towards
short episodes unless the stragglers are continued. The same idea as slime's over-sampling with
partial rollouts and as DAPO's dynamic sampling (arXiv 2503.14476).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from envkit.errors import ConfigurationError
from envkit.rollout.setting_types import check_fields
from envkit.rollout.staleness import Stale
from envkit.tasks import Task
from envkit.trajectory.stop import StopReason
from envkit.trajectory.trajectory import Trajectory

_ROUNDING: Final = 1e-9
"""1.1 times 10 groups are 11, not 12."""


class Stragglers(StrEnum):
    """What happens to groups that are not complete when the batch is."""

    WAIT = "wait"
    """The batch is complete when all of them are."""
    DROP = "drop"
    """They are stopped and left out; `RolloutState.cut` has them."""
    PARK = "park"
    """They are stopped, and continued by the next run that gets the same `RolloutState`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """When a batch is complete."""

    oversample: float = 1.0
    """Groups that may be started for each one that is asked for."""
    stop_at: float = 1.0
    """Share of the groups asked for that completes the batch."""
    then: Stragglers = Stragglers.WAIT
    max_staleness: int | None = None
    """Updates of the weights after which a sampled token is too old, counted to the newest ones
    that the run has seen when it delivers the episode; None bounds nothing. It needs an engine that
    names its weights by integers."""
    stale: Stale = Stale.MASK

    def __post_init__(self) -> None:
        """Refuse numbers that make no batch.

        Raises:
            ConfigurationError: See the message.
        """
        check_fields(self, "tail")
        if not 1 <= self.oversample < math.inf:
            raise ConfigurationError(f"tail.oversample must be at least 1, got {self.oversample}")
        if not 0 < self.stop_at <= 1:
            raise ConfigurationError(
                f"tail.stop_at must be above 0 and at most 1, got {self.stop_at}"
            )
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigurationError(
                f"tail.max_staleness must be at least 0, or null, got {self.max_staleness}"
            )
        if not self.cuts and (self.oversample, self.stop_at) != (1, 1):
            raise ConfigurationError(
                "tail.then 'wait' waits for every group, so oversample and stop_at mean nothing; "
                "set then to 'drop' or 'park'"
            )

    @property
    def cuts(self) -> bool:
        """Whether stragglers are stopped."""
        return self.then is not Stragglers.WAIT

    def started(self, groups: int) -> int:
        """Return how many groups a batch of so many may start."""
        return math.ceil(groups * self.oversample - _ROUNDING)

    def needed(self, groups: int) -> int:
        """Return how many complete groups make the batch complete."""
        return max(1, math.ceil(groups * self.stop_at - _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedGroup:
    """A group that a batch stopped, for a later one to continue."""

    group_id: str
    seed: int
    task: Task | None
    initial_observation_hash: str | None
    """None if no member had begun."""
    members: Mapping[int, tuple[Trajectory, ...]] = field(
        default_factory=dict[int, tuple[Trajectory, ...]]
    )
    """Records by member, finished or aborted; a member without any starts anew."""
    times: int = 1
    """How many batches have parked it."""

    def is_complete(self, group_size: int) -> bool:
        """Whether all its members have ended."""
        ended = [played for played in self.members.values() if not is_aborted(played)]
        return len(ended) == group_size


def is_aborted(played: tuple[Trajectory, ...]) -> bool:
    """Return whether somebody stopped the episode."""
    return any(one.stop_reason is StopReason.ABORTED for one in played)


def marked(trajectory: Trajectory, mark: Mapping[str, object]) -> Trajectory:
    """Return the record with more metadata."""
    return replace(trajectory, metadata={**trajectory.metadata, **mark})
