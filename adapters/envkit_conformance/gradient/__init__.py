"""Compare gradients: recorded episodes go through adapters into the trainers' own losses.

Rows with equal tokens can still train differently, depending on which episodes a group mean counts,
what the loss divides by, and how many rows an episode has. This suite compares the final gradient.
"""

from envkit_conformance.gradient.cases import (
    CLIP,
    CONSTANT_TOKENS,
    GROUP_SIZE,
    Difference,
    GradientPath,
    LossCase,
    Reduction,
)
from envkit_conformance.gradient.policy import Policy
from envkit_conformance.gradient.stored import Pair, Stored, load_gradients, pairs, save_gradients
from envkit_conformance.gradient.suite import Comparison, Verdict, compare_paths

__all__ = [
    "CLIP",
    "CONSTANT_TOKENS",
    "GROUP_SIZE",
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
