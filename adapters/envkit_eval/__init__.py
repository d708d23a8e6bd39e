"""Evaluations of models and policies on fixed tasks, with confidence intervals."""

from envkit_eval.figures import Estimate, EvalRow, check_pass_at, lines_of
from envkit_eval.paired import ChangedOutcome, Comparison, Difference, Side, compare, read_side
from envkit_eval.prices import Price, price_of, read_price
from envkit_eval.samples import TAGS, Problem, Sample, episodes_of, problems_of

__all__ = [
    "TAGS",
    "ChangedOutcome",
    "Comparison",
    "Difference",
    "Estimate",
    "EvalRow",
    "Price",
    "Problem",
    "Sample",
    "Side",
    "check_pass_at",
    "compare",
    "episodes_of",
    "lines_of",
    "price_of",
    "problems_of",
    "read_price",
    "read_side",
]
