"""The record of one episode: its ledger, its turns and how it ended.

Everything that a trainer or a report needs is derived from the segments. Axes: T train ids of the
trajectory's sequence, K turns.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envkit.errors import ConfigurationError, StorageError
from envkit.images import Image
from envkit.messages import Message
from envkit.tokens.encoded import Tensors, concatenate
from envkit.trajectory.projection import rows_of
from envkit.trajectory.row import Row
from envkit.trajectory.segment import Segment, SegmentKind
from envkit.trajectory.stop import StopReason
from envkit.trajectory.turn import TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """A failure that ended an episode."""

    where: str
    """"reset", "step", "generate", "encode" or "ledger"."""
    kind: str
    """`FaultKind` value."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode, finished, faulted or aborted."""

    episode_id: str
    env_id: str
    seed: int | None
    task: Mapping[str, Any]
    group_id: str | None = None
    """Episodes of one task that a trainer compares share it; None outside a group."""
    segments: tuple[Segment, ...]
    turns: tuple[TurnRecord, ...]
    messages: tuple[Message, ...]
    """The conversation for people to read; never tokenised again."""
    reward: float | None
    """Sum of the turns' rewards; None after a fault and for an aborted episode."""
    stop_reason: StopReason
    fault: FaultRecord | None = None
    reset_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    initial_observation_hash: str | None = None
    """Equal across a group: proof that its members started from the same state."""
    env_restarts: int = 0
    """Whole-episode restarts with a fresh environment, after steps that could not be recovered."""
    duration_seconds: float = 0.0
    engine: str = ""
    env_snapshot: bytes | None = field(default=None, repr=False)
    """State of the environment at an abort, for `resume`; None where the env has no snapshot."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the caller wants to keep with it; JSON data."""

    @property
    def is_faulted(self) -> bool:
        """Whether infrastructure ended the episode: no reward, no trained token."""
        return self.stop_reason.is_fault

    @property
    def token_count(self) -> int:
        """Train ids of all segments, over every sequence."""
        return sum(len(segment.train_ids) for segment in self.segments)

    @property
    def trained_token_count(self) -> int:
        """Those of them with mask 1; 0 for a faulted episode."""
        if self.is_faulted:
            return 0
        return sum(sum(segment.loss_mask) for segment in self.segments)

    def train_ids(self) -> tuple[int, ...]:
        """Return the whole sequence, (T,), placeholders expanded."""
        return tuple(i for segment in self._single() for i in segment.train_ids)

    def wire_ids(self) -> tuple[int, ...]:
        """Return the whole sequence with one placeholder per image."""
        return tuple(i for segment in self._single() for i in segment.wire_ids)

    def loss_mask(self) -> tuple[int, ...]:
        """Return the mask, (T,) of 0 and 1; all 0 for a faulted trajectory."""
        if self.is_faulted:
            return (0,) * sum(len(segment.train_ids) for segment in self._single())
        return tuple(i for segment in self._single() for i in segment.loss_mask)

    def logprobs(self) -> tuple[float, ...]:
        """Return log-probabilities of the sampled distribution, (T,); 0.0 where mask is 0."""
        return tuple(i for segment in self._single() for i in segment.logprobs)

    def images(self) -> tuple[Image, ...]:
        """Return every image of the ledger, in the order of the placeholders."""
        return tuple(image for segment in self._single() for image in segment.images)

    def tensors(self) -> Tensors:
        """Return the processor's outputs for `images()`, concatenated once per key."""
        return concatenate(f for segment in self._single() for f in segment.features)

    def sequences(self) -> tuple[tuple[Segment, ...], ...]:
        """Return the segments split where the template rewrote the history; usually one group."""
        groups: list[list[Segment]] = []
        for segment in self.segments:
            if segment.kind is SegmentKind.PROMPT or not groups:
                groups.append([])
            groups[-1].append(segment)
        return tuple(tuple(group) for group in groups)

    def steps(self, *, merge: bool = False) -> tuple[Row, ...]:
        """Return training rows; none where the model sampled nothing (see `projection`).

        Args:
            merge: False gives a row for each model turn, with everything before it as its prompt.
                True gives one row for each run of turns whose prompts extend each other exactly.
        """
        return rows_of(self, merge=merge)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trajectory to a file of its own, its images into `images/` beside it.

        Raises:
            StorageError: The file cannot be written; one that was there stays as it was.
        """
        from envkit.trajectory import storage  # the layer above, which knows this class

        storage.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trajectory":
        """Read a file that holds exactly one trajectory; `envkit.trajectory.load` reads any number.

        Raises:
            StorageError: The file cannot be read, or holds none or more than one.
        """
        from envkit.trajectory import storage

        rows = storage.load(path)
        if len(rows) != 1:
            raise StorageError(
                f"Trajectory.load reads a file of one trajectory, got {len(rows)} "
                f"in {str(path)!r}; use envkit.trajectory.load"
            )
        return rows[0]

    def _single(self) -> Sequence[Segment]:
        if sum(segment.kind is SegmentKind.PROMPT for segment in self.segments) > 1:
            raise ConfigurationError(
                "this trajectory is more than one sequence, because the template rewrote its "
                "history; use steps(merge=True) instead"
            )
        return self.segments
