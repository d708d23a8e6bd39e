"""What a policy without eyes can know: `scripts/geo3k/leaks.py`, and what it must not find."""

import importlib.util
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fakes.matrix import share

from envkit_geo3k import FAMILIES, ProceduralSource
from envkit_geo3k.source import LEVELS

_SCRIPT = Path(__file__).parents[3] / "scripts" / "geo3k" / "leaks.py"
_spec = importlib.util.spec_from_file_location("geo3k_leaks", _SCRIPT)
assert _spec is not None
assert _spec.loader is not None
leaks: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leaks)

KINDS = [(family, level) for family in FAMILIES for level in LEVELS]


def _problems(family: str, level: int, count: int, seed: int = 6) -> list[dict[str, Any]]:
    source = ProceduralSource(families=[family], level=level, seed=seed)
    return [source.task(index) for index in range(count)]


@pytest.mark.parametrize(("family", "level"), share(KINDS, of=4))
def test_problem_needs_a_number_from_its_figure(family: str, level: int) -> None:
    for problem in _problems(family, level, 2):
        assert not leaks.follows_from_text(problem), problem["question"]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_problem_with_all_numbers_in_its_text_needs_no_figure(family: str) -> None:
    """Otherwise the measurement above would find nothing because it knows too little."""
    for level in (1, 3):
        for problem in _problems(family, level, 3):
            givens = [{**given, "shown": "text"} for given in problem["givens"]]
            told = {**problem, "givens": givens}
            assert leaks.follows_from_text(told) == (family != "coordinates"), problem


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_problems_of_a_level_leak_at_most_what_the_docs_say(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the problems that are guessed have labels, which take most of the time."""
    with monkeypatch.context() as patch:
        leaks.unlabel(patch.setattr)
        train = [ProceduralSource(level=level, seed=1).task(index) for index in range(4000)]
    test = [ProceduralSource(level=level, seed=2).task(index) for index in range(1000)]
    assert leaks.text_only_rate(test) <= 0.01
    assert leaks.frequent_rate(train, test) <= 0.05
    assert leaks.learned_rate(train, test) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_families_pay_learned_guesses_at_most_what_the_docs_say(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without labels, which say nothing about the answers and take most of the time."""

    leaks.unlabel(monkeypatch.setattr)
    earned: dict[str, float] = {}
    for family in FAMILIES:
        tasks = _problems(family, level, 900)
        earned[family] = leaks.learned_rate(tasks[:600], tasks[600:])
    # 5%, and three standard errors; a grid has few points.
    assert {f: rate for f, rate in earned.items() if rate > 0.088 and f != "coordinates"} == {}
    assert earned["coordinates"] <= 0.12


def test_unknowns_of_algebra_problems_have_no_favourites() -> None:
    source = ProceduralSource(level=2, seed=3)
    golds = Counter(source.task(index)["answer"] for index in range(150))
    assert sum(count for _, count in golds.most_common(leaks.GUESSES)) <= 0.12 * 150


def test_hard_problem_states_something_in_its_text() -> None:
    for family in sorted(set(FAMILIES) - {"coordinates"}):
        for problem in _problems(family, 4, 4):
            assert "text" in {given["shown"] for given in problem["givens"]}, problem


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("AB = 12√3. Find x.", (12 * math.sqrt(3),)),
        ("The area of the shaded ring is 45π.", (45 * math.pi,)),
        ("The length of minor arc AB is 17π/2. OA = 1.5.", (8.5 * math.pi, 1.5)),
        ("m∠ABC = 47.5°. Find sin A.", (47.5,)),
        ("AB = √5 and CD = 3x - 2.", (math.sqrt(5), 3.0, 2.0)),
    ],
)
def test_wording_reads_numbers_and_forgets_names(text: str, numbers: tuple[float, ...]) -> None:
    wording = leaks.Wording.of(text)
    assert wording.numbers == pytest.approx(numbers)
    assert wording.template == leaks.Wording.of(text.replace("A", "Z").replace("B", "Y")).template


def test_blind_policy_finds_a_relation_and_a_favourite() -> None:
    def task(question: str, value: Fraction) -> dict[str, Any]:
        return {"question": question, "values": [float(value)]}

    known = [task(f"AB = {n}. Find AC.", Fraction(n, 2)) for n in range(20, 40)]
    known += [task("Find x.", Fraction(n % 3)) for n in range(9)]
    policy = leaks.BlindPolicy(known)
    assert (45.0,) in policy.guesses("PQ = 90. Find PR.")
    assert {(0.0,), (1.0,), (2.0,)} <= set(policy.guesses("Find x."))
    assert policy.guesses("What is this?") == []
