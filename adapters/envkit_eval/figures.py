"""Results of an evaluation: success, reward, pass@k and cost per line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from envkit.errors import ConfigurationError
from envkit.metrics.intervals import (
    Interval,
    mean_interval,
    pass_all_k,
    pass_at_k,
    share_interval,
)
from envkit.viewer.pairs import MeanDifference
from envkit_eval.prices import Price
from envkit_eval.samples import Problem, Sample, by_number, episodes_of, problems_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks with its 95% interval."""

    mean: float
    interval: Interval | None
    """The interval; None for too few tasks, or if all have the same reward."""
    tasks: int

    @classmethod
    def of(cls, values: Sequence[float], *, samples: int | None = None) -> "Estimate | None":
        """Return the estimate from one value per task; None without any.

        Args:
            values: One per task.
            samples: For shares, the samples of all tasks; None for values that are not shares.
        """
        if not values:
            return None
        is_share = samples is not None
        return cls(
            mean=sum(values) / len(values),
            interval=share_interval(values, samples=samples) if is_share else mean_interval(values),
            tasks=len(values),
        )


def with_interval(
    found: Estimate | MeanDifference | None,
    *,
    factor: float = 1,
    digits: int = 3,
    unit: str = "",
    sign: str = "",
) -> str:
    """Return a mean and its interval, such as "0.719 [0.602, 0.820]"; "-" without one.

    Args:
        found: The mean.
        factor: Multiplies the numbers, such as 100 for percent.
        digits: Digits after the decimal point.
        unit: Follows the mean.
        sign: "+" also shows the sign of a positive number.
    """
    if found is None:
        return "-"
    form = f"{sign}.{digits}f"
    text = f"{factor * found.mean:{form}}{unit}"
    if found.interval is None:
        return text
    low, high = factor * found.interval.low, factor * found.interval.high
    return f"{text} [{low:{form}}, {high:{form}}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRow:
    """The results of an environment, or of one of its families, levels or roles.

    Faulted and aborted episodes have no reward. They are counted but excluded from every mean.
    """

    env_id: str
    tag: str | None = None
    """"family", "level", "role" or another tag; None for the whole environment."""
    value: str | None = None
    """Value of the tag."""
    tasks: int
    """Tasks with at least one rewarded episode."""
    episodes: int
    """Rewarded ones."""
    ungraded: int = 0
    """Those rewarded 0 because the grader failed on what the policy left."""
    undeclared: int = 0
    """Those for which the environment declares no success; excluded from success and pass@k."""
    faulted: int
    aborted: int
    success: Estimate | None
    """Share of a task's samples that solved it; equal to pass@1. None if no success is declared."""
    reward: Estimate | None
    pass_at: Mapping[int, Estimate] = field(default_factory=dict[int, Estimate])
    """pass@k by k. A task with fewer than k rewarded samples is excluded for that k."""
    pass_all: Mapping[int, Estimate] = field(default_factory=dict[int, Estimate])
    """pass^k by k: all of k samples solve the task. Over the same tasks as pass@k."""
    turns: float | None
    prompt_tokens: float | None
    reply_tokens: float | None
    images: float | None
    seconds: float | None
    cost: float | None = None
    """Cost of all episodes in dollars, including faulted ones; None without a price."""

    @property
    def fault_share(self) -> float:
        """Share of the finished episodes ended by infrastructure."""
        finished = self.episodes + self.faulted
        return self.faulted / finished if finished else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


def check_pass_at(pass_at: Iterable[int], samples: int) -> tuple[int, ...]:
    """Return the distinct values of k in order; the default is 1, 2, 4, ... and `samples`.

    Raises:
        ConfigurationError: A k exceeds the number of samples.
    """
    asked = sorted(set(pass_at))
    for k in asked:
        if not 1 <= k <= samples:
            raise ConfigurationError(
                f"pass@k needs at least k episodes per task, got k={k} with {samples}: "
                f"raise --group to {k}, or ask for a smaller k"
            )
    if asked:
        return tuple(asked)
    doubled = [2**n for n in range(samples.bit_length()) if 2**n < samples]
    return (*doubled, samples)


def lines_of(
    samples: Sequence[Sample], *, by: Sequence[str], pass_at: Sequence[int], price: Price | None
) -> list[EvalRow]:
    """Return one line per environment, each followed by lines for its roles and tags.

    Args:
        samples: Samples of any number of environments; their order is kept.
        by: Tags in output order. A tag with a single value is omitted.
        pass_at: Values of k.
        price: Price of the model; None omits costs.
    """
    lines: list[EvalRow] = []
    for env_id in dict.fromkeys(one.env_id for one in samples):
        own = [one for one in samples if one.env_id == env_id]
        episodes = episodes_of(own)
        lines.append(_line(episodes, env_id, pass_at, price))
        groups: list[tuple[str, Sequence[Sample], Callable[[Sample], str | None]]] = [
            ("role", own, lambda one: one.role),
            *((tag, episodes, lambda one, tag=tag: one.tags.get(tag)) for tag in by),
        ]
        for tag, kept, value_of in groups:
            values = {value for one in kept if (value := value_of(one)) is not None}
            if len(values) > 1:
                lines += [
                    _line([o for o in kept if value_of(o) == v], env_id, pass_at, price, tag, v)
                    for v in sorted(values, key=by_number)
                ]
    return lines


def _line(
    samples: Sequence[Sample],
    env_id: str,
    pass_at: Sequence[int],
    price: Price | None,
    tag: str | None = None,
    value: str | None = None,
) -> EvalRow:
    problems = list(problems_of(samples).values())
    rewarded = [one for one in samples if one.reward is not None]
    rewards = [problem.reward for problem in problems]
    judged = [problem for problem in problems if problem.judged]
    is_binary = {one.reward for one in rewarded} <= {0.0, 1.0}
    return EvalRow(
        env_id=env_id,
        tag=tag,
        value=value,
        tasks=len(problems),
        episodes=len(rewarded),
        ungraded=sum(one.is_ungraded for one in samples),
        faulted=sum(one.is_faulted for one in samples),
        aborted=sum(one.is_aborted for one in samples),
        undeclared=sum(one.solved is None for one in rewarded),
        success=Estimate.of(
            [one.solved / one.judged for one in judged], samples=sum(one.judged for one in judged)
        ),
        reward=Estimate.of(rewards, samples=len(rewarded) if is_binary else None),
        pass_at=_passed(problems, pass_at, pass_at_k),
        pass_all=_passed(problems, pass_at, pass_all_k),
        turns=_mean(rewarded, lambda one: one.turns),
        prompt_tokens=_mean(rewarded, lambda one: one.prompt_tokens),
        reply_tokens=_mean(rewarded, lambda one: one.reply_tokens),
        images=_mean(rewarded, lambda one: one.images),
        seconds=_mean(rewarded, lambda one: one.seconds),
        cost=None if price is None else sum(price.cost(one) for one in samples),
    )


def _passed(
    problems: Sequence[Problem], pass_at: Sequence[int], share: Callable[[int, int, int], float]
) -> dict[int, Estimate]:
    found: dict[int, Estimate] = {}
    for k in pass_at:
        enough = [problem for problem in problems if problem.judged >= k]
        values = [share(one.judged, one.solved, k) for one in enough]
        # An attempt of k samples is one trial, so there are fewer trials than samples.
        estimate = Estimate.of(values, samples=sum(one.judged // k for one in enough))
        if estimate is not None:
            found[k] = estimate
    return found


def _mean(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float | None:
    return sum(map(value, samples)) / len(samples) if samples else None
