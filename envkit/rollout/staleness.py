"""Tokens sampled by outdated weights: masked, or dropped with their group.

Importance weights correct for a policy that is a few updates old; beyond that their variance grows
without bound. A token's age is the number of weight updates between its version and the newest one
that the run has seen, as in SkyRL's `max_staleness_steps` and TRL's `max_staleness`.
"""

import math
from dataclasses import replace
from enum import StrEnum
from typing import Final

from envkit.errors import ConfigurationError
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.trajectory import STALE_TOKENS, Trajectory

_FIRST: Final = "default"
"""SGLang's and vLLM's name for the weights that they were started with."""


class Stale(StrEnum):
    """What happens to tokens that are too old."""

    MASK = "mask"
    """They get loss mask 0; the rest of the episode is trained on."""
    DROP = "drop"
    """Their group is left out and kept in `RolloutState.dropped`."""


class Freshness:
    """Tracks the newest weights of a run."""

    def __init__(self, max_staleness: int) -> None:
        """Start with no weights seen.

        Args:
            max_staleness: Maximum age of a token in updates; 0 keeps only tokens of the newest
                weights.
        """
        self._limit, self._newest = max_staleness, -math.inf

    def note(self, trajectory: Trajectory) -> None:
        """Record the weight versions of a trajectory.

        Raises:
            ConfigurationError: A weight version is not an integer.
        """
        sampled = (part for part in trajectory.segments if part.kind is SegmentKind.MODEL)
        self._newest = max([self._newest, *map(_version, sampled)])

    def masked(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with its stale tokens masked, and counted in its metadata.

        Args:
            trajectory: One that was passed to `note`.
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
            "tail.max_staleness counts updates, so weight versions must be integers, got "
            f"{version!r}; set an integer with each update, or leave max_staleness out"
        ) from error
