"""Certification lines: what blind policies earn, and whether two graders agree."""

from collections.abc import Iterator, Sequence
from typing import Final

from envkit.text import counted
from envkit.turns import Step
from envkit_certify.blind_report import PolicyResult
from envkit_certify.certified import CertifiedEnv
from envkit_certify.lines import CertificateLine, judged, skipped

_SCORER: Final = ("frequent answers with the scorer", "guesses with the scorer")
_TEXT_ONLY: Final = ("closed book", "reply of the most similar question")


def constants(subject: CertifiedEnv) -> CertificateLine:
    """Check what constants, frequent replies, guesses and copies earn."""
    others = [r for r in subject.blind.policies if r.name not in (*_SCORER, *_TEXT_ONLY)]
    return _paid(subject, "constants", others)


def scorer(subject: CertifiedEnv) -> CertificateLine:
    """Check what guessing with the environment's own scorer earns."""
    return _paid(subject, "scorer", _named(subject, _SCORER), _SCORER)


def text_only(subject: CertifiedEnv) -> CertificateLine:
    """Check whether the question alone, or the reply to a similar one, solves tasks."""
    return _paid(subject, "text only", _named(subject, _TEXT_ONLY), _TEXT_ONLY)


def _named(subject: CertifiedEnv, names: Sequence[str]) -> list[PolicyResult]:
    return [result for result in subject.blind.policies if result.name in names]


def _paid(
    subject: CertifiedEnv, name: str, results: Sequence[PolicyResult], names: Sequence[str] = ()
) -> CertificateLine:
    """Return the line for some blind policies: the best mean return, and any that earn too much."""
    if not results:
        unplayed = subject.blind.unplayed
        reasons = [f"{policy}: {why}" for policy, why in unplayed.items() if policy in names]
        return skipped(name, "; ".join(reasons) or "no policy applies")
    problems = [f"{r.name} makes it raise: {r.problem}" for r in results if r.problem is not None]
    episodes = f"{counted(subject.plan.episodes, 'episode')} each"
    detail = f"best mean return of {counted(len(results), 'policy')}, {episodes}"
    return subject.judged(name, {r.name: r.returns for r in results}, detail, problems)


def graders(subject: CertifiedEnv) -> CertificateLine:
    """Compare the grader and the rewards with a second grader."""
    report = subject.blind
    if not report.compared_answers:
        return skipped("graders", "no hooks 'grade', 'second_grade' and 'answers'")
    problems = [
        f"task {entry.task_index}: {entry.answer[:60]!r}: "
        f"{entry.grade:g} and {entry.second_grade:g}"
        for entry in report.disagreements
    ]
    problems += _paid_otherwise(subject)
    detail = f"of {report.compared_answers} answers graded differently by the second grader"
    return judged("graders", report.disagreement_count, detail, problems=problems)


def _paid_otherwise(subject: CertifiedEnv) -> Iterator[str]:
    """Yield answers on which the environment's reward and the second grader disagree."""
    grade, answers = subject.hooks.second_grade, subject.hooks.answers
    assert grade is not None  # the report compared answers
    assert answers is not None
    for seed in subject.few_seeds:
        subject.env.reset(seed=seed)
        for answer in answers(subject.env.task):
            subject.env.reset(seed=seed)
            task = subject.env.task
            step = Step(*subject.env.step(subject.hooks.reply(answer)))
            if (step.reward > 0) != (grade(task, answer) > 0):
                yield (
                    f"seed {seed}: {answer[:60]!r} earns {step.reward:g}, "
                    f"and the second grader says {grade(task, answer):g}"
                )
