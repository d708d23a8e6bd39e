"""Certification lines: what blind policies earn, and whether two graders agree."""

from collections.abc import Iterator, Sequence
from typing import Final

from envkit.text import counted
from envkit.turns import Step
from envkit_certify.audit import PolicyResult
from envkit_certify.bench import Bench, lower_bound
from envkit_certify.lines import Line, judged, skipped

_SCORER: Final = ("frequent answers with the scorer", "guesses with the scorer")
_TEXT_ONLY: Final = ("closed book", "reply of the most similar question")


def constants(bench: Bench) -> Line:
    """Check what constants, frequent replies, guesses and copies earn."""
    others = [r for r in bench.audit.policies if r.name not in (*_SCORER, *_TEXT_ONLY)]
    return _paid(bench, "constants", others)


def scorer(bench: Bench) -> Line:
    """Check what guessing with the environment's own scorer earns."""
    return _paid(bench, "scorer", _named(bench, _SCORER), _SCORER)


def text_only(bench: Bench) -> Line:
    """Check whether the question alone, or the reply to a similar one, solves tasks."""
    return _paid(bench, "text only", _named(bench, _TEXT_ONLY), _TEXT_ONLY)


def _named(bench: Bench, names: Sequence[str]) -> list[PolicyResult]:
    return [result for result in bench.audit.policies if result.name in names]


def _paid(
    bench: Bench, name: str, results: Sequence[PolicyResult], names: Sequence[str] = ()
) -> Line:
    """Return the line for some blind policies: the best mean return, and any that earn too much."""
    if not results:
        reasons = [f"{e.name}: {e.reason}" for e in bench.audit.unplayed if e.name in names]
        return skipped(name, "; ".join(reasons) or "no policy applies")
    problems = [
        f"{result.name} makes it raise: {result.problem}"
        for result in results
        if result.problem is not None
    ]
    problems += [
        f"{result.name} earns {result.mean:.3g}, above the limit {bench.limit:.3g}"
        for result in results
        if lower_bound(result.returns) > bench.limit
    ]
    played = [r for r in results if r.mean is not None]
    best = max((r.mean or 0.0 for r in played), default=None)
    evidence = [f"{r.name}: {r.mean:.4f}" for r in played if r.mean]
    episodes = f"{counted(bench.plan.episodes, 'episode')} each"
    detail = f"best mean return of {counted(len(results), 'policy')}, {episodes}"
    return judged(name, best, detail, problems=problems, evidence=evidence)


def graders(bench: Bench) -> Line:
    """Compare the grader and the rewards with a second grader."""
    report = bench.audit
    if not report.compared_answers:
        return skipped("graders", "no hooks 'grade', 'second_grade' and 'answers'")
    problems = [
        f"task {entry.task_index}: {entry.answer[:60]!r}: "
        f"{entry.grade:g} and {entry.second_grade:g}"
        for entry in report.disagreements
    ]
    problems += _paid_otherwise(bench)
    detail = f"of {report.compared_answers} answers graded differently by the second grader"
    return judged("graders", report.disagreement_count, detail, problems=problems)


def _paid_otherwise(bench: Bench) -> Iterator[str]:
    """Yield answers on which the environment's reward and the second grader disagree."""
    grade, answers = bench.hooks.second_grade, bench.hooks.answers
    assert grade is not None  # the report compared answers
    assert answers is not None
    for seed in bench.few_seeds:
        bench.env.reset(seed=seed)
        for answer in answers(bench.env.task):
            bench.env.reset(seed=seed)
            task = bench.env.task
            step = Step(*bench.env.step(bench.hooks.reply(answer)))
            if (step.reward > 0) != (grade(task, answer) > 0):
                yield (
                    f"seed {seed}: {answer[:60]!r} earns {step.reward:g}, "
                    f"and the second grader says {grade(task, answer):g}"
                )
