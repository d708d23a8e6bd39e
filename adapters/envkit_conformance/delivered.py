"""What an adapter passes to its trainer, read back from the trainer's own object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from numpy.typing import NDArray

from envkit.images import Image
from envkit.trajectory import RewardPlacement, Row, Trajectory


class Shape(StrEnum):
    """Number of rows that an adapter builds from a trajectory."""

    WHOLE = "whole"
    """One row per trajectory, as from `whole_row`."""
    STEPS = "steps"
    """One row per turn, as from `step_rows`."""
    CALLS = "calls"
    """One row per turn in the order in which the model was asked, as from `call_rows`."""
    MERGED = "merged"
    """One row per run of turns that extend each other, as from `step_rows(merge=True)`."""


class Content(StrEnum):
    """Content of a recording that some trainers cannot accept."""

    IMAGES = "images"
    SEQUENCES = "several sequences"
    """Its history was rewritten or branched, so the trajectory is more than one row."""
    NO_LEDGER = "no ledger"
    """A chat endpoint played it, so there are no tokens: every projection must refuse it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeliveredRow:
    """One training row as the trainer holds it.

    Fill it from the trainer's own object (a Sample, an output class, a batch), never from the
    trajectory: the suite looks for what was lost on the way.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    loss_mask: Sequence[int]
    """One entry per response id."""
    logprobs: Sequence[float] | None
    """One entry per response id; None if the trainer received none."""
    reward: float | None = None
    """The row's reward as one number; None if the trainer expects per-token rewards."""
    token_rewards: Sequence[float] | None = None
    """One entry per response id; None if the trainer expects one number."""
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, "NDArray[Any]"])
    """The processor's outputs for the row's images; empty if the trainer computes them."""
    images: Sequence[Image] | None = None
    """The row's images if the trainer receives images; None if it only takes tensors."""
    is_last: bool = True
    """Whether the row is marked as the trajectory's last."""
    is_unscorable: bool = False
    """Whether the row is marked as having no reward. A placeholder reward is not compared."""

    @classmethod
    def of(
        cls, row: Row, *, placement: RewardPlacement | None = None, with_images: bool = False
    ) -> "DeliveredRow":
        """Return a row of the core as if a trainer held it.

        Args:
            row: A row of a projection.
            placement: Puts the reward on this token; None gives one number.
            with_images: Whether to include images next to the tensors.
        """
        return cls(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            loss_mask=row.loss_mask,
            logprobs=row.logprobs,
            reward=row.reward if placement is None else None,
            token_rewards=None if placement is None else row.token_rewards(placement),
            tensors=row.tensors,
            images=row.images if with_images else None,
            is_last=row.is_last,
            is_unscorable=row.reward is None,
        )


class Deliver(Protocol):
    """Passes one trajectory to a trainer and reads back what arrived."""

    def __call__(self, trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
        """Return the rows in the trainer's order.

        Args:
            trajectory: From a rollout, including the features of its images.
            filler_id: As for `envkit.trajectory.whole_row`.

        Raises:
            ConfigurationError: The trajectory holds content that the adapter declares it cannot
                carry.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One way from a trajectory to a trainer, as the suite checks it."""

    name: str
    shape: Shape
    deliver: Deliver
    cannot_carry: frozenset[Content] = frozenset()
    """What the trainer cannot accept. The suite checks that `deliver` refuses it."""
    reward_placement: RewardPlacement = RewardPlacement.LAST
    """Which token `DeliveredRow.token_rewards` uses; ignored for a single number."""
    rewards_every_row: bool = False
    """Whether the trainer takes the trajectory's whole reward with each of several rows, and with
    the row of a fork, on their last tokens (verl). False takes 0.0 with all rows but the last."""
    omits_unscored: bool = False
    """Whether a trajectory without a reward gives no row, since the trainer's batch size may vary
    (TRL's async worker)."""
