"""Play policies that solve nothing on the same seeded tasks, and compare two graders."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from envkit.certification_hooks import CertificationHooks, StatesChance, StatesHooks
from envkit.checker.under_test import CheckedEpisode, oracle_of
from envkit.env import Env, Policy
from envkit.errors import ContractError, EnvFault
from envkit.ranges import at_least
from envkit.seeds import checked_seed, derive_seed
from envkit_certify.policies import Learned, Reply, ReplyContext, gold_of, trivial_policies

_KEPT_DISAGREEMENTS: Final = 20
_FREQUENT: Final = 8
"""Maximum frequent answers tried with the scorer."""
_LEARNED: Final = 500
"""Maximum oracle episodes from which the most frequent reply is learned."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """An answer that two graders score differently."""

    task_index: int
    """Index of the task, in seed order."""
    answer: str
    grade: float
    second_grade: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindReport:
    """What policies that solve nothing earn, and where two graders differ."""

    policies: tuple[PolicyResult, ...]
    """Trivial policies, best paid first; those without a return come last."""
    unplayed: Mapping[str, str]
    """Policies that do not apply, each with the reason."""
    oracle: PolicyResult | None
    """The oracle's result; None without an oracle."""
    chance_level: float | None
    """Declared by the environment; None if it declares none."""
    compared_answers: int
    """Answers scored by two graders; 0 without a second one."""
    disagreement_count: int
    disagreements: tuple[Disagreement, ...]
    """The first twenty disagreements."""

    @property
    def best(self) -> PolicyResult | None:
        """The trivial policy with the highest mean; None if none has one."""
        return next((result for result in self.policies if result.mean is not None), None)


def blind_report(
    env: Env,
    *,
    episodes: int = 100,
    seed: int = 0,
    hooks: CertificationHooks | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> BlindReport:
    """Measure what trivial policies earn and where two graders differ.

    Args:
        env: An environment without wrappers. It is reset and left open.
        episodes: Episodes per policy, on the same tasks.
        seed: Determines the tasks.
        hooks: Ways to guess and to grade; None uses the environment's `certification_hooks()`, if
            it has any.
        policies: More policies by name, such as a model that answers without looking.

    Raises:
        ConfigurationError: `episodes` is below 1, or the seed is not an integer of at least 0.
    """
    at_least(1, episodes=episodes)
    seed = checked_seed(seed)
    if hooks is None:
        hooks = env.certification_hooks() if isinstance(env, StatesHooks) else CertificationHooks()
    seeds = [derive_seed("audit", seed, number) for number in range(episodes)]
    oracle = oracle_of(env)
    learned = None
    if oracle is not None:
        others = (derive_seed("audit learning", seed, n) for n in range(min(episodes, _LEARNED)))
        learned = _learned(env, oracle, others)
    env.reset(seed=seeds[0])
    found, unplayed = trivial_policies(env, hooks, learned)
    played: dict[str, Reply] = {**found, **(policies or {})}
    results = [_result(env, name, reply, seeds) for name, reply in played.items()]
    solved = None if oracle is None else _result(env, "(oracle)", oracle, seeds)
    compared, disagreements = _compared(env, hooks, seeds)
    return BlindReport(
        policies=tuple(
            sorted(results, key=lambda r: -math.inf if r.mean is None else r.mean, reverse=True)
        ),
        unplayed=unplayed,
        oracle=solved,
        chance_level=float(env.chance_level) if isinstance(env, StatesChance) else None,
        compared_answers=compared,
        disagreement_count=len(disagreements),
        disagreements=tuple(disagreements[:_KEPT_DISAGREEMENTS]),
    )


class _BlindEpisode(CheckedEpisode):
    """An episode whose policies may also look back, and draw at random."""

    def __init__(self, env: Env, reply: Reply, seed: int) -> None:
        super().__init__(env, lambda _: reply(self._reply_context()), seed=seed)
        self._rng = random.Random(derive_seed("audit policy", seed))

    def _reply_context(self) -> ReplyContext:
        known = self.context()
        moments = [self.start, *self.steps]
        return ReplyContext(
            env=known.env,
            task=known.task,
            turn=known.turn,
            messages=known.messages,
            seed=known.seed,
            texts=[moment.observation["text"] for moment in moments],
            steps=self.steps,
            rng=self._rng,
        )


def _result(env: Env, name: str, reply: Reply, seeds: Iterable[int]) -> PolicyResult:
    returns: list[float] = []
    faults, problem = 0, None
    for seed in seeds:
        try:
            returns.append(_BlindEpisode(env, reply, seed).play().total)
        except EnvFault:
            faults += 1
        except ContractError:
            raise
        except Exception as error:  # noqa: BLE001  # that a reply makes an environment raise is a finding
            problem = problem or f"seed {seed}: {type(error).__name__}: {error}"
    return PolicyResult(name=name, returns=tuple(returns), faults=faults, problem=problem)


def _learned(env: Env, oracle: Policy, seeds: Iterable[int]) -> Learned:
    """Return the statistics of the oracle's episodes on other tasks."""
    counts: list[Counter[str]] = []
    answers: Counter[str] = Counter()
    questions: list[tuple[str, tuple[str, ...]]] = []
    for seed in seeds:
        try:
            episode = CheckedEpisode(env, oracle, seed=seed).play()
        except EnvFault:
            continue  # counted in the episodes that are played for the report
        counts += [Counter[str]() for _ in range(len(episode.replies) - len(counts))]
        for counter, reply, step in zip(counts, episode.replies, episode.steps, strict=False):
            counter[reply] += 1
            if step.reward > 0 and (gold := gold_of(episode.task, reply)) is not None:
                answers[gold] += 1
        questions.append((episode.start.observation["text"], episode.replies))
    return Learned(
        frequent=[counter.most_common(1)[0][0] for counter in counts] or [""],
        answers=[answer for answer, _ in answers.most_common(_FREQUENT)],
        questions=questions,
    )


def _compared(
    env: Env, hooks: CertificationHooks, seeds: Iterable[int]
) -> tuple[int, list[Disagreement]]:
    """Return how many answers two graders scored, and those that they score differently."""
    grade, second_grade, answers = hooks.grade, hooks.second_grade, hooks.answers
    if grade is None or second_grade is None or answers is None:
        return 0, []
    compared = 0
    found: list[Disagreement] = []
    for number, seed in enumerate(seeds):
        env.reset(seed=seed)
        for answer in answers(env.task):
            compared += 1
            first, second = grade(env.task, answer), second_grade(env.task, answer)
            if abs(first - second) > 1e-9:
                found.append(
                    Disagreement(task_index=number, answer=answer, grade=first, second_grade=second)
                )
    return compared, found
