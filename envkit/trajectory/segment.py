"""Segments of a token ledger: runs of ids with the same role in the loss.

Axes: T train ids of a segment, W wire ids (W <= T).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Literal, get_args, overload

import numpy as np

from envkit.errors import LedgerFault
from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures
from envkit.trajectory.columns import Column, Packed, packed_ids, packed_logprobs, packed_mask

ColumnName = Literal["wire_ids", "train_ids", "loss_mask", "logprobs"]

LOGPROB_SLACK: Final = 2**-7
"""How far above 0 a log-probability may be: one rounding step of bfloat16 at probability 1.

Engines that compute in half precision return such values. They are clamped to 0 and counted."""


class SegmentKind(StrEnum):
    """The kind of a segment, which determines its loss mask."""

    PROMPT = "prompt"
    """The start of a sequence. A later prompt in a trajectory starts a branch, because the history
    was rewritten or another conversation started (see `sequence`)."""
    MODEL = "model"
    """Exactly the tokens that the engine sampled."""
    OBSERVATION = "observation"
    """The environment's messages, with the template's tokens around them."""


def _mask_of_kind(segment: "Segment") -> tuple[int, ...]:
    return (int(segment.kind is SegmentKind.MODEL),) * segment.token_count


def _wire_ids(segment: "Segment") -> tuple[int, ...]:
    return segment.wire_ids


def _zeros(segment: "Segment") -> tuple[float, ...]:
    return (0.0,) * segment.token_count


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One run of the ledger. Only a MODEL segment can have mask 1.

    Columns are stored as arrays, at most 16 bytes per token. Reading one builds a tuple of exactly
    the recorded numbers, so read it once and keep it. `token_count` and `array` build no tuple.
    """

    kind: SegmentKind
    turn: int
    """Index, from 0, of this model reply, or of the reply that follows this segment."""
    wire_ids: Column[int] = Column(packed_ids)  # noqa: RUF009  # (W,)
    train_ids: Column[int] = Column(packed_ids, _wire_ids)  # noqa: RUF009
    """(T,) ids with images expanded; None means the wire ids."""
    loss_mask: Column[int] = Column(packed_mask, _mask_of_kind)  # noqa: RUF009
    """(T,) of 0 and 1; None means 1 in MODEL segments and 0 elsewhere."""
    logprobs: Column[float] = Column(packed_logprobs, _zeros)  # noqa: RUF009
    """(T,) of the sampled distribution; None means 0.0 everywhere, as outside MODEL."""
    images: tuple[Image, ...] = ()
    features: tuple[ImageFeatures, ...] = field(default=(), repr=False, compare=False)
    """Processor outputs of `images`; empty in a trajectory that was loaded from a file."""
    reward: float | None = None
    """Reward of the turn, on MODEL segments; None elsewhere, or if no reward was computed."""
    weight_version: str | None = None
    finish_reason: str | None = None
    """`FinishReason` of the engine, on MODEL segments."""
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    """Anything else the engine reported (routed experts, ...), on MODEL segments."""

    @classmethod
    def packed_as(cls, **attributes: object) -> "Segment":
        """Return a segment with these attributes, columns as arrays, checked as any other.

        Args:
            attributes: A value for each field, each column under its name with an underscore.
        """
        made = object.__new__(cls)
        made.__dict__.update(attributes)
        made.__post_init__()
        return made

    def __post_init__(self) -> None:
        """Check that the columns are consistent.

        Raises:
            LedgerFault: The lengths differ, the mask is not 0/1, a segment other than MODEL has a
                mask or log-probability, or wire and train ids of a MODEL segment differ.
        """
        _, train, mask, logprobs = self.packed()
        if train is None and mask is None and logprobs is None:
            if self.images and self.kind is SegmentKind.MODEL:
                raise self._foreign_ids()
            return
        self._check_columns(mask, logprobs)

    def _check_columns(self, mask: Packed | None, logprobs: Packed | None) -> None:
        """Check columns that are given in full, and drop those that are implied."""
        wire, train = self.array("wire_ids"), self.array("train_ids")
        count = len(train)
        lengths = (count, *(count if one is None else len(one) for one in (mask, logprobs)))
        if len(set(lengths)) != 1:
            raise LedgerFault(
                f"train_ids, loss_mask and logprobs must have equal lengths, got {lengths} "
                f"in the {self.kind} segment of turn {self.turn}"
            )
        is_model = self.kind is SegmentKind.MODEL
        is_same = wire is train or np.array_equal(wire, train)
        if is_model and (not is_same or self.images):
            raise self._foreign_ids()
        if not is_model and any(one is not None and one.any() for one in (mask, logprobs)):
            raise LedgerFault(
                f"only model segments can have mask 1 or log-probabilities, got some in the "
                f"{self.kind} segment of turn {self.turn}"
            )
        if is_same:
            object.__setattr__(self, "_train_ids", None)
        if mask is not None and (mask == int(is_model)).all():
            object.__setattr__(self, "_loss_mask", None)
        if logprobs is not None and not any(logprobs.tobytes()):  # -0.0 is kept
            object.__setattr__(self, "_logprobs", None)

    def _foreign_ids(self) -> LedgerFault:
        return LedgerFault(
            "a model segment has exactly the sampled ids and no images, got "
            f"{len(self.array('wire_ids'))} wire ids, {self.token_count} train ids and "
            f"{len(self.images)} images in turn {self.turn}"
        )

    @property
    def token_count(self) -> int:
        """Number of train ids, T."""
        held = self.__dict__  # asked so often that a call of `stored` counts
        train = held["_train_ids"]
        return len(held["_wire_ids"] if train is None else train)

    @property
    def trained_token_count(self) -> int:
        """Number of tokens with mask 1."""
        mask = self.stored("loss_mask")
        if mask is not None:
            return int(mask.sum())
        return self.token_count if self.kind is SegmentKind.MODEL else 0

    def array(self, name: ColumnName) -> Packed:
        """Return a column as a read-only array, without a copy if it is stored."""
        stored = self.stored(name)
        if stored is not None:
            return stored
        if name == "train_ids":
            return self.array("wire_ids")
        if name == "logprobs":
            return np.zeros(self.token_count, np.float32)
        return np.full(self.token_count, self.kind is SegmentKind.MODEL, np.int8)

    def stored(self, name: ColumnName) -> Packed | None:
        """Return a column as a read-only array; None if it follows from the rest."""
        return self.__dict__[_SLOTS[name]]

    def packed(self) -> tuple[Packed, Packed | None, Packed | None, Packed | None]:
        """Return wire ids, train ids, mask and log-probabilities as `stored` does."""
        held = self.__dict__
        return held["_wire_ids"], held["_train_ids"], held["_loss_mask"], held["_logprobs"]

    def with_reward(self, reward: float | None) -> "Segment":
        """Return the segment with the reward of its turn."""
        return self._with("reward", reward)

    def with_turn(self, turn: int) -> "Segment":
        """Return the segment as part of another turn."""
        return self._with("turn", turn)

    def without_features(self) -> "Segment":
        """Return the segment without the processor's outputs."""
        return self._with("features", ())

    def with_extras(self, extras: Mapping[str, Any]) -> "Segment":
        """Return the segment with other reports of the engine."""
        return self._with("extras", extras)

    def as_context(self) -> "Segment":
        """Return the segment as context of another sequence, with mask 0 and shared ids."""
        if self.kind is not SegmentKind.MODEL:
            return self
        return self._with("_loss_mask", _no_loss(self.token_count))

    def _with(self, changed: str, value: object) -> "Segment":
        copy = object.__new__(Segment)  # the columns were checked when they were recorded
        for name in _STORED:
            object.__setattr__(copy, name, value if name == changed else getattr(self, name))
        return copy


@lru_cache(maxsize=4096)
def _no_loss(count: int) -> Packed:
    """Return a mask of zeros, which all shared segments of that length hold together."""
    return np.broadcast_to(np.int8(0), count)


_SLOTS: Final[Mapping[str, str]] = {name: f"_{name}" for name in get_args(ColumnName)}
_STORED: Final = tuple(_SLOTS.get(one.name, one.name) for one in fields(Segment))
"""The attributes of a segment."""


@overload
def column_of(
    segments: Sequence[Segment], name: Literal["wire_ids", "train_ids", "loss_mask"]
) -> tuple[int, ...]: ...


@overload
def column_of(segments: Sequence[Segment], name: Literal["logprobs"]) -> tuple[float, ...]: ...


def column_of(segments: Sequence[Segment], name: ColumnName) -> tuple[float, ...]:
    """Return a column of several segments, concatenated."""
    parts = [segment.array(name) for segment in segments]
    return tuple(np.concatenate(parts).tolist()) if parts else ()
