"""What an adapter hands to its trainer, read back from the trainer's own object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from numpy.typing import NDArray

from envkit.images import Image
from envkit.trajectory import RewardPlacement, Row, Trajectory


class Shape(StrEnum):
    """How many rows an adapter makes of a trajectory."""

    WHOLE = "whole"
    """One row for a trajectory, as `whole_row` gives it."""
    STEPS = "steps"
    """One row for a turn, as `step_rows` gives them."""
    MERGED = "merged"
    """One row for each run of turns that extend each other, as `step_rows(merge=True)`."""


class Content(StrEnum):
    """What is in a recording that some trainers have no way to take."""

    IMAGES = "images"
    SEQUENCES = "several sequences"
    """The template rewrote its history, so the trajectory is no single sequence of tokens."""
    NO_LEDGER = "no ledger"
    """A chat endpoint played it, so there are no tokens: every projection must refuse it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeliveredRow:
    """One training row as the trainer has it.

    Fill it from the trainer's own object (a Sample, an output class, a batch), never from the
    trajectory: what is lost on the way is what the suite looks for.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    loss_mask: Sequence[int]
    """One entry for each response id."""
    logprobs: Sequence[float] | None
    """One entry for each response id; None if the trainer was given none."""
    reward: float | None = None
    """The row's reward as one number; None if the trainer takes rewards by token."""
    token_rewards: Sequence[float] | None = None
    """One entry for each response id; None if the trainer takes one number."""
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, "NDArray[Any]"])
    """The processor's outputs for the row's images; empty if the trainer computes them."""
    images: Sequence[Image] | None = None
    """The row's images where the trainer is given images; None if it takes tensors alone."""
    is_last: bool = True
    """Whether the trainer is told that no row of the trajectory follows."""
    is_unscorable: bool = False
    """Whether the trainer is told to leave the row's reward out. A number that stands in for it is
    not compared."""

    @classmethod
    def of(
        cls, row: Row, *, placement: RewardPlacement | None = None, pictures: bool = False
    ) -> "DeliveredRow":
        """Return a row of the core as if a trainer had it.

        Args:
            row: Of a projection.
            placement: Gives the rewards by token; None gives one number.
            pictures: Give images beside the tensors.
        """
        return cls(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            loss_mask=row.loss_mask,
            logprobs=row.logprobs,
            reward=row.reward if placement is None else None,
            token_rewards=None if placement is None else row.token_rewards(placement),
            tensors=row.tensors,
            images=row.images if pictures else None,
            is_last=row.is_last,
            is_unscorable=row.reward is None,
        )


class Deliver(Protocol):
    """Hands one trajectory to a trainer and reads back what arrived."""

    def __call__(self, trajectory: Trajectory, *, filler_id: int) -> Sequence[DeliveredRow]:
        """Return the rows in the trainer's order.

        Args:
            trajectory: Of a rollout, features of its images included.
            filler_id: As for `envkit.trajectory.whole_row`.

        Raises:
            ConfigurationError: The trajectory holds what the adapter declared that it cannot carry.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One way from a trajectory to a trainer, as the suite checks it."""

    name: str
    shape: Shape
    deliver: Deliver
    cannot_carry: frozenset[Content] = frozenset()
    """What the trainer cannot take. The suite then checks that `deliver` refuses it."""
    reward_placement: RewardPlacement = RewardPlacement.LAST
    """Where `DeliveredRow.token_rewards` stand; without meaning for one number."""
    rewards_every_row: bool = False
    """Whether the trainer takes the trajectory's whole reward with each of several rows, and with
    the row of a fork, on their last tokens (verl). False takes 0.0 with all rows but the last."""
    omits_unscored: bool = False
    """Whether a trajectory without a reward gives no row at all, because the trainer's batches are
    of any size (TRL's async worker)."""
