"""Cases of the gradient suite, and how a trainer takes part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from envkit.trajectory import Trajectory
from envkit_conformance.delivered import Shape

if TYPE_CHECKING:
    from fakes.gradients.policy import Policy

GROUP_SIZE: Final = 4
"""Episodes per prompt in every set of episodes."""
CONSTANT_TOKENS: Final = 512
"""The constant that `Reduction.CONSTANT` divides by."""
CLIP: Final = 0.2
"""PPO's clip range: beyond this distance from 1, the ratio to the old policy has no gradient."""
COSINE_TOLERANCE: Final = 1e-6
NORM_TOLERANCE: Final = 1e-4


class Reduction(StrEnum):
    """How token losses become one number, for N episodes with T_e trained tokens in episode e."""

    EPISODE_MEAN = "episode-mean"
    """1 / (N T_e): every episode has the same weight."""
    TOKEN_MEAN = "token-mean"
    """1 / sum of T_e: every token has the same weight."""
    CONSTANT = "constant"
    """1 / (N C) with C = `CONSTANT_TOKENS` (Dr. GRPO: Liu et al. 2025, "Understanding R1-Zero-Like
    Training", section 3.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """One setting of the loss: GRPO's advantages, PPO's clipped ratio, no KL and no entropy."""

    reduction: Reduction
    is_scaled: bool = False
    """Whether advantages are divided by the group's standard deviation."""
    is_off_policy: bool = False
    """False uses the policy's own log-probabilities as the old ones, so every ratio is 1.

    True uses `Policy.old_logprobs`, with ratios on both sides of the clip.
    """

    @property
    def name(self) -> str:
        """For tables."""
        words = [self.reduction.value]
        words += ["scaled"] if self.is_scaled else []
        words += ["off-policy"] if self.is_off_policy else []
        return ", ".join(words)


CASES: Final = (
    *(LossCase(reduction=one) for one in Reduction),
    LossCase(reduction=Reduction.TOKEN_MEAN, is_scaled=True),
    LossCase(reduction=Reduction.TOKEN_MEAN, is_off_policy=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Why a trainer's gradient differs from the plain formula, and what to set."""

    reason: str
    setting: str
    """Setting that makes them equal, or "none"."""
    norm_ratio: float | None = None
    """The trainer's norm over the plain one, where the direction is the same; None if the
    direction differs too."""


Backward = Callable[["Policy", Sequence[Trajectory], Shape, LossCase], None]
"""Computes the gradient of one optimizer step and leaves it in the policy's parameters.

The trajectories are whole groups of `GROUP_SIZE`, identified by `group_id`; a faulted one has no
reward. They go through the adapter as in a run, with its default fault handling, then through the
trainer's own reward normalisation, advantages and loss. A ConfigurationError refuses the case.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPath:
    """One path from trajectories to a gradient through a trainer."""

    name: str
    """The path's name, such as "verl-v1"."""
    shapes: tuple[Shape, ...]
    """Row shapes that the adapter can make."""
    reductions: frozenset[Reduction]
    """Reductions that the trainer supports."""
    takes_images: bool
    backward: Backward
    explain: Callable[[Shape, LossCase, Sequence[Trajectory]], Difference | None]
    """Return the known difference for a case; None if the gradients are equal."""
    tolerance: float = NORM_TOLERANCE
    """Tolerance of the norm ratio."""
