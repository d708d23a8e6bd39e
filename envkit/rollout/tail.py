"""The long tail of a batch: when the batch is complete, and what happens to running episodes.

A few long episodes can hold up a synchronous trainer's whole batch. Starting more groups than the
batch needs, and stopping once it is complete, keeps the engine busy. This biases the batch towards
short episodes unless the stragglers are continued. slime's over-sampling with partial rollouts and
DAPO's dynamic sampling (arXiv 2503.14476) use the same idea.
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
"""Tolerance: 100 groups times 1.1 are 110, not 111."""


class Stragglers(StrEnum):
    """What happens to groups that are incomplete once the batch is complete."""

    WAIT = "wait"
    """There are none: the batch waits for all groups."""
    DROP = "drop"
    """They are stopped, excluded, and kept in `RolloutState.cut`."""
    PARK = "park"
    """They are stopped; the next run with the same `RolloutState` continues them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """When a batch is complete."""

    oversample: float = 1.0
    """Groups to start, as a multiple of the requested groups."""
    stop_at: float = 1.0
    """Share of the requested groups that completes the batch."""
    then: Stragglers = Stragglers.WAIT
    max_staleness: int | None = None
    """Maximum age of a sampled token in weight updates, relative to the newest weights that the run
    has seen when it delivers the episode. None is unlimited. The engine's weight versions must be
    integers."""
    stale: Stale = Stale.MASK

    def __post_init__(self) -> None:
        """Validate the numbers.

        Raises:
            ConfigurationError: See the message.
        """
        check_fields(self, "tail")
        if self.oversample < 1:
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
                "tail.then 'wait' waits for every group, so oversample and stop_at have no effect; "
                "set then to 'drop' or 'park'"
            )

    @property
    def cuts(self) -> bool:
        """Whether stragglers are stopped."""
        return self.then is not Stragglers.WAIT

    def started(self, groups: int) -> int:
        """Return how many groups to start for a batch of `groups`."""
        return math.ceil(groups * self.oversample - _ROUNDING)

    def needed(self, groups: int) -> int:
        """Return how many complete groups complete a batch of `groups`."""
        return max(1, math.ceil(groups * self.stop_at - _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedGroup:
    """A group that a batch stopped, for a later one to continue."""

    group_id: str
    seed: int
    task: Task | None
    initial_observation_hash: str | None
    """None if no member had started."""
    members: Mapping[int, tuple[Trajectory, ...]] = field(
        default_factory=dict[int, tuple[Trajectory, ...]]
    )
    """Records by member, finished or aborted; a member without records starts over."""
    times: int
    """How many batches have parked the group."""

    def is_complete(self, group_size: int) -> bool:
        """Whether all members have ended."""
        ended = [played for played in self.members.values() if not is_aborted(played)]
        return len(ended) == group_size


def is_aborted(played: tuple[Trajectory, ...]) -> bool:
    """Return whether the episode was aborted."""
    return any(one.stop_reason is StopReason.ABORTED for one in played)


def marked(trajectory: Trajectory, mark: Mapping[str, object]) -> Trajectory:
    """Return the record with more metadata."""
    return replace(trajectory, metadata={**trajectory.metadata, **mark})
