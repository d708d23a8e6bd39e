"""Equal gradients: recorded episodes through adapters into the trainers' own losses.

Token-for-token equal rows can still train differently: by what a group's mean counts, by what a
loss divides by, by how many rows an episode has. This suite compares what comes out at the end.
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
