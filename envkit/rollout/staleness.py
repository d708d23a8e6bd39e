"""Replies that weights of long ago have sampled: masked, or withheld with their group.

Importance weights correct for a policy that is a few updates old; beyond that their variance grows
without bound. The age of a token is counted in updates of the weights, as in SkyRL's
`max_staleness_steps` and TRL's `max_staleness`, from the newest ones that the run has seen.
"""

from dataclasses import replace
from enum import StrEnum
from typing import Final

from envkit.errors import ConfigurationError
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import STALE_TOKENS, Trajectory

_FIRST: Final = "default"
"""What SGLang and vLLM call the weights that they were started with."""


class Stale(StrEnum):
    """What happens to tokens that are too old."""

    MASK = "mask"
    """They get loss mask 0; the rest of the episode is trained."""
    DROP = "drop"
    """Their group is left out; `RolloutState.dropped` has it."""


class Freshness:
    """Knows the newest weights of a run."""

    def __init__(self, max_staleness: int) -> None:
        """Begin with no weights seen.

        Args:
            max_staleness: Updates after which a token is too old; 0 keeps only the newest weights'.
        """
        self._limit, self._newest = max_staleness, 0

    def note(self, trajectory: Trajectory) -> None:
        """Learn of newer weights.

        Raises:
            ConfigurationError: The engine does not number its weights.
        """
        sampled = (part for part in trajectory.segments if part.kind is SegmentKind.MODEL)
        self._newest = max([self._newest, *map(_version, sampled)])

    def masked(self, trajectory: Trajectory) -> Trajectory:
        """Return a record with its tokens masked where they are too old, counted in its metadata.

        Args:
            trajectory: One that was noted.
        """
        stale = {
            number
            for number, part in enumerate(trajectory.segments)
            if part.kind is SegmentKind.MODEL and self._newest - _version(part) > self._limit
        }
        if not stale:
            return trajectory
        segments = tuple(
            replace(part, loss_mask=(0,) * len(part.train_ids)) if number in stale else part
            for number, part in enumerate(trajectory.segments)
        )
        count = sum(sum(trajectory.segments[number].loss_mask) for number in stale)
        metadata = {**trajectory.metadata, STALE_TOKENS: count}
        return replace(trajectory, segments=segments, metadata=metadata)


def _version(segment: Segment) -> int:
    version = segment.weight_version
    if version == _FIRST:
        return 0
    try:
        return int(version or "")
    except ValueError as error:
        raise ConfigurationError(
            "tail.max_staleness counts updates, so the engine must name its weights by integers, "
            f"got {version!r}; name them so when you update them, or leave max_staleness out"
        ) from error
