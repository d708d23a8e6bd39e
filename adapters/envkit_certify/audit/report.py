"""Results of an audit."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from envkit_certify.audit.policies import Unplayed


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """Returns of one policy."""

    name: str
    returns: tuple[float, ...]
    """Sum of rewards per episode, in seed order."""
    faults: int = 0
    """Episodes with an infrastructure fault; they have no return."""
    problem: str | None = None
    """The first exception other than a fault, which no reply may cause; None if there was none."""

    @property
    def mean(self) -> float | None:
        """Mean return; None if no episode has one."""
        return math.fsum(self.returns) / len(self.returns) if self.returns else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean; None for fewer than two episodes."""
        count, mean = len(self.returns), self.mean
        if mean is None or count < 2:
            return None
        variance = math.fsum((value - mean) ** 2 for value in self.returns) / (count - 1)
        return math.sqrt(variance / count)

    @property
    def paid_share(self) -> float | None:
        """Fraction of episodes with a return above 0; None if no episode has one."""
        count = len(self.returns)
        return sum(value > 0 for value in self.returns) / count if count else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {
            "policy": self.name,
            "episodes": len(self.returns),
            "mean": self.mean,
            "standard_error": self.standard_error,
            "best": max(self.returns, default=None),
            "paid_share": self.paid_share,
            "faults": self.faults,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """An answer that two graders score differently."""

    task_index: int
    """Index of the task, in seed order."""
    answer: str
    grade: float
    second_grade: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The result of an audit."""

    env_id: str
    episodes: int
    """Planned episodes per policy."""
    seed: int
    policies: tuple[PolicyResult, ...]
    """Trivial policies, best paid first."""
    unplayed: tuple[Unplayed, ...]
    oracle: PolicyResult | None
    """The oracle's result; None without an oracle."""
    chance_level: float | None
    """Declared by the environment; None if it declares none."""
    compared_answers: int
    """Answers scored by two graders; 0 without a second one."""
    disagreement_count: int
    disagreements: tuple[Disagreement, ...]
    """The first twenty disagreements."""
    is_complete: bool
    """False if the audit was stopped early; the figures cover the played episodes."""

    @property
    def best(self) -> PolicyResult | None:
        """The trivial policy with the highest mean; None if none has one."""
        return next((result for result in self.policies if result.mean is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        best = self.best
        return {
            "env_id": self.env_id,
            "episodes": self.episodes,
            "seed": self.seed,
            "is_complete": self.is_complete,
            "best_policy": None if best is None else best.name,
            "best_mean_reward": None if best is None else best.mean,
            "chance_level": self.chance_level,
            "oracle": None if self.oracle is None else self.oracle.to_json(),
            "policies": [result.to_json() for result in self.policies],
            "unplayed": [asdict(entry) for entry in self.unplayed],
            "compared_answers": self.compared_answers,
            "disagreement_count": self.disagreement_count,
            "disagreements": [asdict(entry) for entry in self.disagreements],
        }


def ranked(results: Sequence[PolicyResult]) -> tuple[PolicyResult, ...]:
    """Return the results, best paid first; those without a return come last."""
    return tuple(
        sorted(results, key=lambda r: (r.mean is None, -(r.mean if r.mean is not None else 0.0)))
    )
