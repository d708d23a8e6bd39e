"""Compare gradients: recorded episodes go through adapters into the trainers' own losses.

Rows with equal tokens can still train differently, depending on which episodes a group mean counts,
what the loss divides by, and how many rows an episode has. This suite compares the final gradient.
"""

from fakes.gradients.cases import (
    CLIP,
    CONSTANT_TOKENS,
    GROUP_SIZE,
    Difference,
    GradientPath,
    LossCase,
    Reduction,
)
from fakes.gradients.policy import Policy
from fakes.gradients.stored import Pair, Stored, load_gradients, pairs, save_gradients
from fakes.gradients.suite import Compared, Comparison, Verdict, compare_paths

__all__ = [
    "CLIP",
    "CONSTANT_TOKENS",
    "GROUP_SIZE",
    "Compared",
    "Comparison",
    "Difference",
    "GradientPath",
    "LossCase",
    "Pair",
    "Policy",
    "Reduction",
    "Stored",
    "Verdict",
    "compare_paths",
    "load_gradients",
    "pairs",
    "save_gradients",
]
