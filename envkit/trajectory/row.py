"""Training rows: what a trainer takes from a trajectory.

A row is a prompt and a response. Everything before the first model token of a row is its prompt,
and its response ends on a model token. Axes: R response ids.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from envkit.images import Image
from envkit.tokens.encoded import ImageFeatures, Tensors, concatenate


class RewardPlacement(StrEnum):
    """Where rewards stand in a per-token reward column."""

    LAST = "last"
    """The trajectory's reward on the last token of its last row, 0.0 elsewhere."""
    TURNS = "turns"
    """Each turn's reward on the last token of its reply."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training row of a trajectory."""

    prompt_ids: tuple[int, ...]
    """Train ids before the first model token of the row, image placeholders expanded."""
    response_ids: tuple[int, ...]  # (R,), never empty
    loss_mask: tuple[int, ...]  # (R,) of 0 and 1
    logprobs: tuple[float, ...]  # (R,) sampled distribution; 0.0 where the model sampled nothing
    images: tuple[Image, ...] = ()
    """Of prompt and response, in the order of their placeholders."""
    features: tuple[ImageFeatures, ...] = field(default=(), repr=False, compare=False)
    """Processor outputs of `images`; empty in a trajectory that was loaded from a file."""
    reward: float | None
    """The trajectory's reward on the last row, 0.0 on the others; None after a fault or an abort,
    where there is none."""
    turn_rewards: tuple[tuple[int, float], ...] = ()
    """For each rewarded turn: the index in `response_ids` of its last token, and its reward."""
    turns: tuple[int, ...]
    """Indices of the turns whose replies the row trains on."""
    weight_versions: tuple[str | None, ...] = ()
    """One for each run of sampled tokens; None where the engine did not tell."""
    is_last: bool
    is_placeholder: bool = False
    """Stands for a trajectory in which the model sampled nothing; nothing in it is trained."""

    @cached_property
    def tensors(self) -> Tensors:
        """The processor's outputs for `images`, concatenated once per key."""
        return concatenate(self.features)

    def token_rewards(self, placement: RewardPlacement = RewardPlacement.LAST) -> list[float]:
        """Return the rewards by response token, (R,); all 0.0 where there is no reward."""
        rewards = [0.0] * len(self.response_ids)
        if self.reward is None:
            return rewards
        if placement is RewardPlacement.LAST:
            rewards[-1] = self.reward
            return rewards
        for index, reward in self.turn_rewards:
            rewards[index] = reward
        return rewards
