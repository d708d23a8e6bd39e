"""What shipped environments tell `certify`: their graders agree, and guessing does not pay."""

from typing import Any

import pytest
from fakes.search_backend import MemoryBackend, tasks

import envkit
from envkit_certify.blind_report import BlindReport, blind_report
from envkit_geo3k.certifying import answers, numbers, second_grade
from envkit_search.certifying import second_match

GUESSES = {"random choice", "every choice at once", "closed book"}


def reported(env_id: str, episodes: int = 12, **arguments: Any) -> BlindReport:
    env: Any = envkit.make(env_id, disable_env_checker=True, **arguments)
    return blind_report(env.unwrapped, episodes=episodes)


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("geo3k-v0", {}),
        ("canary-v0", {}),
        pytest.param("search-v0", {"corpus": "facts"}, marks=pytest.mark.slow),
        pytest.param("search-v0", {"corpus": "facts", "protocol": "tools"}, marks=pytest.mark.slow),
        ("search-v0", {"corpus_options": {"seed": 1, "size": 100}}),
        ("search-v0", {"tasks": tasks(), "backend": MemoryBackend()}),
    ],
)
def test_graders_agree_and_guesses_are_played(env_id: str, arguments: dict[str, Any]) -> None:
    report = reported(env_id, **arguments)

    played = {result.name: result for result in report.policies}
    assert played.keys() >= GUESSES
    assert all(result.problem is None for result in report.policies)
    assert report.compared_answers >= 100
    assert report.disagreement_count == 0, report.disagreements[:3]
    assert report.oracle is not None
    assert report.oracle.mean == pytest.approx(1.0)


def test_guessing_with_the_scorer_of_geo3k_is_heard() -> None:
    env: Any = envkit.make("geo3k-v0", disable_env_checker=True).unwrapped
    hooks = env.certification_hooks()
    env.reset(seed=1)
    assert hooks.confirms_guess(env.step(hooks.ask(env.task["answer"])))
    env.reset(seed=1)
    assert not hooks.confirms_guess(env.step(hooks.ask("none")))


def test_numbers_of_a_question_are_its_choices() -> None:
    assert numbers({"question": "AB = 12 and BC = 4.5. Find 12x."}) == ["12", "4.5"]
    assert numbers({"question": "Find x."}) == ["90"]


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("\\boxed{42 \\sqrt{37}}", "42 \\sqrt{37}", 1.0),
        ("255.476", "42 \\sqrt{37}", 1.0),
        ("255.5", "42 \\sqrt{37}", 1.0),
        ("255", "42 \\sqrt{37}", 0.0),
        ("(-1.5, 0)", "(-\\frac{3}{2}, 0)", 1.0),
        ("-1.5", "(-\\frac{3}{2}, 0)", 0.0),
        ("22.61", "22.6", 1.0),
        ("22.7", "22.6", 0.0),
        ("__import__('os')", "22.6", 0.0),
    ],
)
def test_second_grader_of_geo3k(answer: str, gold: str, score: float) -> None:
    assert second_grade(answer, gold) == score


def test_answers_of_geo3k_hold_right_and_wrong_ones() -> None:
    task = {"answer": "\\frac{20 \\sqrt{3}}{3}"}
    scores = {second_grade(answer, task["answer"]) for answer in answers(task)}
    assert scores == {0.0, 1.0}


@pytest.mark.parametrize(
    ("answer", "accepted", "is_right"),
    [
        ("The Oslo.", "Oslo", True),
        ("-3", "3", False),
        ("3.50", "3.5", True),
        ("3,141", "3141", True),
        ("31,41", "3141", False),
        ("35 km", "3.5 km", False),
        ("O-", "O+", False),
        ("“O-”", "O-", True),
        ("C#", "C++", False),
        ("Jean-Paul", "JeanPaul", True),
        ("A", "a", True),
        ("", "a", False),
    ],
)
def test_second_grader_of_search(answer: str, accepted: str, is_right: bool) -> None:
    assert second_match(answer, accepted) is is_right
