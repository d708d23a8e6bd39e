"""Play the trivial policies of an audit on the same seeded tasks."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from envkit.audit_hooks import Audited, AuditHooks, StatesChance
from envkit.env import Env, Policy
from envkit.errors import ConfigurationError, ContractError, EnvFault
from envkit.messages import Message, message
from envkit.seeds import checked_seed, derive_seed
from envkit.turns import Step
from envkit_certify.audit.policies import (
    Lessons,
    Reply,
    ReplyContext,
    TrivialPolicy,
    Unplayed,
    gold_of,
    trivial_policies,
)
from envkit_certify.audit.report import AuditReport, Disagreement, PolicyResult, ranked

ORACLE: Final = "(oracle)"
_LONGEST_EPISODE: Final = 64
_KEPT_DISAGREEMENTS: Final = 20
_FREQUENT: Final = 8
"""Maximum frequent answers tried with the scorer."""
_LESSONS: Final = 500
"""Maximum oracle episodes from which the most frequent reply is learned."""

Progress = Callable[[int, int], None]
"""Called with the number of played episodes and the total."""


@dataclass(slots=True)
class _Tally:
    """A policy's episodes so far."""

    returns: list[float] = field(default_factory=list[float])
    faults: int = 0
    problem: str | None = None


def audit_env(
    env: Env,
    *,
    episodes: int = 100,
    seed: int = 0,
    hooks: AuditHooks | None = None,
    policies: Mapping[str, Policy] | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Measure what trivial policies earn and where two graders differ.

    Args:
        env: An environment without wrappers. The audit resets it and leaves it open.
        episodes: Episodes per policy, on the same tasks.
        seed: Determines the tasks.
        hooks: Ways to guess and to grade; None uses the environment's `audit_hooks()`, if it has
            any.
        policies: More policies by name, such as a model that answers without looking.
        progress: Called after each episode.

    Raises:
        ConfigurationError: `episodes` is below 1, or the seed is not an integer of at least 0.
    """
    audit = Audit(env, episodes=episodes, seed=seed, hooks=hooks, policies=policies)
    audit.run(progress)
    return audit.report()


class Audit:
    """An audit whose partial report is available while it runs."""

    def __init__(
        self,
        env: Env,
        *,
        episodes: int = 100,
        seed: int = 0,
        hooks: AuditHooks | None = None,
        policies: Mapping[str, Policy] | None = None,
    ) -> None:
        """Prepare an audit; the arguments are those of `audit_env`.

        Raises:
            ConfigurationError: `episodes` is below 1, or the seed is not an integer of at least 0.
        """
        if episodes < 1:
            raise ConfigurationError(f"episodes must be at least 1, got {episodes}")
        self._env, self._episodes, self._seed = env, episodes, checked_seed(seed)
        self._own = dict(policies or {})
        if hooks is None:
            hooks = env.audit_hooks() if isinstance(env, Audited) else AuditHooks()
        self._hooks = hooks
        self._tallies: dict[str, _Tally] = {}
        self._unplayed: tuple[Unplayed, ...] = ()
        self._compared = self._differing = 0
        self._disagreements: list[Disagreement] = []
        self._done = self._total = 0
        self._is_complete = False

    def run(self, progress: Progress | None = None) -> None:
        """Play everything. An exception such as KeyboardInterrupt may stop it."""
        told = progress or _silent
        oracle = _oracle_of(self._env)
        lessons = None if oracle is None else self._lessons(oracle)
        self._env.reset(seed=next(self._seeds()))
        found, unplayed = trivial_policies(self._env, self._hooks, lessons)
        self._unplayed = tuple(unplayed)
        found += [TrivialPolicy(name=name, reply=policy) for name, policy in self._own.items()]
        if oracle is not None:
            found.append(TrivialPolicy(name=ORACLE, reply=oracle))
        self._total = len(found) * self._episodes
        for policy in found:
            self._play(policy, told)
        self._compare_graders()
        self._is_complete = True

    def report(self) -> AuditReport:
        """Return the results so far."""
        results = {
            name: PolicyResult(
                name=name,
                returns=tuple(tally.returns),
                faults=tally.faults,
                problem=tally.problem,
            )
            for name, tally in self._tallies.items()
        }
        oracle = results.pop(ORACLE, None)
        spec, env = self._env.spec, self._env
        return AuditReport(
            env_id=type(env).__name__ if spec is None else spec.id.removeprefix("envkit/"),
            episodes=self._episodes,
            seed=self._seed,
            policies=ranked(list(results.values())),
            unplayed=self._unplayed,
            oracle=oracle,
            chance_level=float(env.chance_level) if isinstance(env, StatesChance) else None,
            compared_answers=self._compared,
            disagreement_count=self._differing,
            disagreements=tuple(self._disagreements),
            is_complete=self._is_complete,
        )

    def _seeds(self) -> Iterator[int]:
        return (derive_seed("audit", self._seed, n) for n in range(self._episodes))

    def _play(self, policy: TrivialPolicy, told: Progress) -> None:
        tally = self._tallies[policy.name] = _Tally()
        for seed in self._seeds():
            try:
                tally.returns.append(sum(step.reward for step in self._episode(policy.reply, seed)))
            except EnvFault:
                tally.faults += 1
            except ContractError:
                raise
            except Exception as error:  # noqa: BLE001  # that a reply makes an environment raise is a finding
                tally.problem = tally.problem or f"seed {seed}: {type(error).__name__}: {error}"
            self._done += 1
            told(self._done, self._total)

    def _episode(self, reply: Reply, seed: int) -> list[Step]:
        env = self._env
        observation, _ = env.reset(seed=seed)
        texts, steps = [observation["text"]], list[Step]()
        messages: list[Message] = []
        if env.system_prompt is not None:
            messages.append(message("system", env.system_prompt))
        messages.append(env.format_observation(observation))
        rng = random.Random(derive_seed("audit policy", seed))
        while len(steps) < _LONGEST_EPISODE:
            text = reply(
                ReplyContext(
                    env=env,
                    task=env.task,
                    turn=len(steps),
                    texts=texts,
                    messages=tuple(messages),
                    steps=steps,
                    seed=seed,
                    rng=rng,
                )
            )
            step = Step(*env.step(text))
            steps.append(step)
            messages += [message("assistant", text), env.format_observation(step.observation)]
            texts.append(step.observation["text"])
            if step.terminated or step.truncated:
                break
        return steps

    def _lessons(self, oracle: Reply) -> Lessons:
        """Return the statistics of the oracle's episodes on other tasks."""
        counts: list[Counter[str]] = []
        answers: Counter[str] = Counter()
        questions: list[tuple[str, list[str]]] = []
        for number in range(min(self._episodes, _LESSONS)):
            replies: list[str] = []
            texts: list[str] = []

            def noted(
                context: ReplyContext, replies: list[str] = replies, texts: list[str] = texts
            ) -> str:
                texts[:] = context.texts
                replies.append(oracle(context))
                return replies[-1]

            try:
                steps = self._episode(noted, derive_seed("audit learning", self._seed, number))
            except EnvFault:
                continue  # counted in the episodes that are played for the report
            counts += [Counter[str]() for _ in range(len(replies) - len(counts))]
            for counter, reply, step in zip(counts, replies, steps, strict=False):
                counter[reply] += 1
                if step.reward > 0 and (gold := gold_of(self._env.task, reply)) is not None:
                    answers[gold] += 1
            questions.append((texts[0], replies))
        return Lessons(
            frequent=[counter.most_common(1)[0][0] for counter in counts] or [""],
            answers=[answer for answer, _ in answers.most_common(_FREQUENT)],
            questions=questions,
        )

    def _compare_graders(self) -> None:
        hooks, env = self._hooks, self._env
        grade, second_grade, answers = hooks.grade, hooks.second_grade, hooks.answers
        if grade is None or second_grade is None or answers is None:
            return
        for number, seed in enumerate(self._seeds()):
            env.reset(seed=seed)
            for answer in answers(env.task):
                first, second = grade(env.task, answer), second_grade(env.task, answer)
                self._compared += 1
                if abs(first - second) <= 1e-9:
                    continue
                self._differing += 1
                if len(self._disagreements) < _KEPT_DISAGREEMENTS:
                    found = Disagreement(
                        task_index=number, answer=answer, grade=first, second_grade=second
                    )
                    self._disagreements.append(found)


def _silent(done: int, total: int) -> None:
    """Report no progress."""


def _oracle_of(env: Env) -> Reply | None:
    try:
        return env.oracle()
    except ConfigurationError:
        return None
