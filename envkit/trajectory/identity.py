"""The identity of episodes, so that figures over several files count each once."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from envkit.trajectory.trajectory import Trajectory

REPEATED = "repeated"
"""Reason for leaving out an episode, for people."""


def identity(trajectory: Trajectory) -> bytes | None:
    """Return a key that only records of the same episode share; None for one without an id."""
    if not trajectory.episode_id:
        return None
    replies = (turn.response_text for turn in trajectory.turns)
    start = trajectory.initial_observation_hash or ""
    task = (trajectory.env_id, repr(trajectory.seed), start)
    outcome = (trajectory.stop_reason.value, repr(trajectory.reward))
    parts = (trajectory.episode_id, *task, *outcome, *replies)
    text = "".join(f"{len(part)} {part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class SeenEpisodes:
    """Remembers episodes by their id, task, replies and outcome: 32 bytes each.

    The id alone is not enough, because a trainer's dump numbers its samples. A record without an
    id repeats no other.
    """

    def __init__(self) -> None:
        self._keys = set[bytes]()

    def add(self, key: bytes | None) -> bool:
        """Return whether this is the first record of its episode.

        Args:
            key: The `identity` of the record.
        """
        if key is None:
            return True
        is_new = key not in self._keys
        self._keys.add(key)
        return is_new

    def first(
        self, trajectories: Iterable[Trajectory], left_out: Counter[str]
    ) -> Iterator[Trajectory]:
        """Yield the trajectories that are new, and count the others as `REPEATED`."""
        for trajectory in trajectories:
            if self.add(identity(trajectory)):
                yield trajectory
            else:
                left_out[REPEATED] += 1
