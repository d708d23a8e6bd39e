"""Rewards: convert a grade to named terms that add up to the reward.

A reward is any function from an `EpisodeGrade` to terms, such as `{"exact": 1.0}`. The named ones
are in `REWARDS`; a mapping of weights over `TERMS` defines others: `{"exact": 0.8, "format": 0.2}`.

The partial credits are those of Search-R1 (verl/utils/reward_score/qa_em_format.py), with the
values in its comments; the arguments of its function default to 0. With structure s, retrieval r
and final f:

| answer | form kept | reward |
| --- | --- | --- |
| right | yes | 1 |
| right | no | 1 - s |
| wrong | yes, and an accepted answer was retrieved | s + r |
| wrong | yes | s |
| wrong | no | f |
| none | no | 0 |
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from envkit.errors import ConfigurationError, UnknownNameError
from envkit_search.grading import EpisodeGrade

Terms = dict[str, float]
Reward = Callable[[EpisodeGrade], Terms]

TERMS: Final[Mapping[str, Callable[[EpisodeGrade], float]]] = {
    "exact": lambda verdict: float(verdict.is_exact),
    "f1": lambda verdict: verdict.f1,
    "format": lambda verdict: float(verdict.is_well_formed),
    "retrieval": lambda verdict: float(verdict.has_gold),
    "answered": lambda verdict: float(verdict.is_answered),
    "searches": lambda verdict: float(verdict.searches),
}
"""Terms that a mapping of weights may name. All are 0 to 1, except `searches`, a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCredits:
    """The partial credits of the format-aware reward."""

    structure: float = 0.2
    retrieval: float = 0.1
    final: float = 0.1

    def __post_init__(self) -> None:
        """Reject credits that would make a wrong answer worth more than a right one.

        Raises:
            ConfigurationError: A credit is negative, or a wrong answer would earn too much.
        """
        wrong = max(self.structure + self.retrieval, self.final)
        if min(self.structure, self.retrieval, self.final) < 0 or wrong >= 1 - self.structure:
            raise ConfigurationError(
                "format credits must be at least 0 and leave a wrong answer below a right one: "
                f"max(structure + retrieval, final) < 1 - structure, got {self}"
            )

    def terms(self, verdict: EpisodeGrade) -> Terms:
        """Return the terms of the table in the module's docstring."""
        if verdict.is_well_formed:
            found = not verdict.is_exact and verdict.has_gold
            return {
                "answer": 1.0 - self.structure if verdict.is_exact else 0.0,
                "format": self.structure,
                "retrieval": self.retrieval if found else 0.0,
            }
        if verdict.is_exact:
            return {"answer": 1.0 - self.structure}
        return {"attempt": self.final if verdict.is_answered else 0.0}


def _format(verdict: EpisodeGrade) -> Terms:
    return FormatCredits().terms(verdict)


REWARDS: Final[Mapping[str, Reward]] = {
    "exact": lambda verdict: {"exact": float(verdict.is_exact)},
    "f1": lambda verdict: {"f1": verdict.f1},
    "format": _format,
    "em_compat": _format,
}
"""Named rewards.

`em_compat` is `format` over an episode that is read and graded as in Search-R1, whose comparison
ignores ASCII punctuation: see `grading`.
"""


def reward_of(
    reward: str | Mapping[str, float] | Reward, credits_: FormatCredits | None = None
) -> Reward:
    """Return the reward function for an argument.

    Args:
        reward: A name from `REWARDS`, weights over `TERMS`, or a function.
        credits_: Credits for "format" and "em_compat"; None uses the defaults.

    Raises:
        UnknownNameError: There is no such reward or term.
        ConfigurationError: There is no weight, a weight is not finite, or credits are unused.
    """
    if credits_ is not None and reward not in ("format", "em_compat"):
        raise ConfigurationError(
            "format_credits belong to reward='format' or 'em_compat', "
            f"got them with reward={reward!r}"
        )
    if isinstance(reward, str):
        if reward not in REWARDS:
            raise UnknownNameError.suggest("search reward", reward, REWARDS)
        return REWARDS[reward] if credits_ is None else credits_.terms
    return reward if callable(reward) else _weighted(reward)


def _weighted(weights: Mapping[str, Any]) -> Reward:
    if not weights:
        raise ConfigurationError("a reward needs at least one weighted term, got an empty mapping")
    for name, weight in weights.items():
        if name not in TERMS:
            raise UnknownNameError.suggest("reward term", name, TERMS)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigurationError(f"the weight of {name!r} must be a number, got {weight!r}")
        if not math.isfinite(weight):
            raise ConfigurationError(f"the weight of {name!r} must be finite, got {weight!r}")
    chosen = dict(weights)
    return lambda verdict: {
        name: float(weight) * TERMS[name](verdict) for name, weight in chosen.items()
    }
