"""The pieces of a token ledger: runs of ids that share a role in the loss.

Axes: T train ids of a segment, W wire ids of it (W <= T).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from envkit.errors import LedgerFault
from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures

LOGPROB_SLACK: Final = 2**-7
"""How far above 0 a log-probability may lie: one rounding step of bfloat16 at probability 1.

Engines that compute in half precision report such values; they are clamped to 0 and counted."""


class SegmentKind(StrEnum):
    """What a segment is, which decides its loss mask."""

    PROMPT = "prompt"
    """The start of a sequence. A second one in a trajectory starts a new sequence there, because
    the template rewrote the history (policy "rerender")."""
    MODEL = "model"
    """Exactly what the engine sampled."""
    OBSERVATION = "observation"
    """What the environment said, with the template's tokens around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One run of the ledger. Only a MODEL segment can have mask 1."""

    kind: SegmentKind
    turn: int
    """Index of the model reply that this is, or that follows it, from 0."""
    wire_ids: tuple[int, ...]  # (W,)
    train_ids: tuple[int, ...]  # (T,)
    loss_mask: tuple[int, ...]  # (T,) of 0 and 1
    logprobs: tuple[float, ...]  # (T,) sampled distribution; 0.0 outside MODEL
    images: tuple[Image, ...] = ()
    features: tuple[ImageFeatures, ...] = field(default=(), repr=False, compare=False)
    """Processor outputs of `images`; empty in a trajectory that was loaded from a file."""
    reward: float | None = None
    """Of the turn, on MODEL segments; None elsewhere, and where no reward was computed."""
    weight_version: str | None = None
    finish_reason: str | None = None
    """`FinishReason` of the engine, on MODEL segments."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """What the engine reported besides (routed experts, ...), on MODEL segments."""

    def __post_init__(self) -> None:
        """Refuse a segment whose columns do not line up.

        Raises:
            LedgerFault: Unequal lengths, a mask that is not 0/1, a mask or log-probability outside
                a MODEL segment, or MODEL ids that differ between wire and train.
        """
        lengths = (len(self.train_ids), len(self.loss_mask), len(self.logprobs))
        if len(set(lengths)) != 1:
            raise LedgerFault(
                f"train_ids, loss_mask and logprobs must have one length, got {lengths} "
                f"in the {self.kind} segment of turn {self.turn}"
            )
        if self.kind is SegmentKind.MODEL:
            if self.wire_ids != self.train_ids or self.images:
                raise LedgerFault(
                    "a model segment is exactly the sampled ids and has no image, got "
                    f"{len(self.wire_ids)} wire ids, {len(self.train_ids)} train ids and "
                    f"{len(self.images)} images in turn {self.turn}"
                )
            if not set(self.loss_mask) <= {0, 1}:
                raise LedgerFault(f"loss masks are 0 or 1, got {sorted(set(self.loss_mask))}")
        elif any(self.loss_mask) or any(self.logprobs):
            raise LedgerFault(
                f"only model segments carry loss or log-probabilities, got some in the {self.kind} "
                f"segment of turn {self.turn}"
            )

    def with_reward(self, reward: float | None) -> "Segment":
        """Return the segment with the reward of its turn."""
        changed = object.__new__(Segment)  # its columns were checked when they were recorded
        for name in Segment.__slots__:
            object.__setattr__(changed, name, reward if name == "reward" else getattr(self, name))
        return changed


def sequences_of(segments: Iterable[Segment]) -> tuple[tuple[Segment, ...], ...]:
    """Split a ledger where the template rewrote the history; usually one group."""
    groups: list[list[Segment]] = []
    for segment in segments:
        if segment.kind is SegmentKind.PROMPT or not groups:
            groups.append([])
        groups[-1].append(segment)
    return tuple(tuple(group) for group in groups)
