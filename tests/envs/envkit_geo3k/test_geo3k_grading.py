import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from fakes.budget import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envkit_geo3k import Grade, How, Rounding, grade

CASES: list[tuple[str, str, int, str]] = [
    tuple(json.loads(line))
    for line in Path(__file__).with_name("geo3k_answers.jsonl").read_text("utf-8").splitlines()
]
"""Answer, gold, score, rule: what docs/environments/geo3k.md says of each answer."""
RULES = sorted({rule for *_, rule in CASES})
BOMBS = [
    "9**9**9**9",
    "9^9^9^9",
    "2^(2^(2^(2^(2^2))))",
    "99999999!",
    "7" * 5000,
    "7" * 390,
    "(" * 5000 + "1" + ")" * 5000,
    "(" * 190 + "1" + ")" * 190,
    "{" * 200,
    "-" * 390 + "1",
    "--" * 20 + "1" + "+1" * 150,
    r"\sqrt" * 70 + "2",
    r"\frac" * 60 + "1",
    r"\sin" * 90 + "1",
    r"\boxed{" * 60 + "1" + "}" * 60,
    r"\text{" * 60 + "1" + "}" * 60,
    r"\boxed{" * 20000,
    "1" + "0" * 300 + "e99",
    "1e308*1e308",
    ",".join("1" * 100),
    ":" * 300,
    "=" * 300,
    r"\approx" * 50,
    "\x00\ud800\U0001f600",
    "a" * 399,
    "x=" * 150,
]


@pytest.mark.parametrize("rule", RULES)
def test_grade_follows_the_policy(rule: str) -> None:
    differing = [
        (answer, gold, score, grade(answer, gold).how)
        for answer, gold, score, of_rule in CASES
        if of_rule == rule and grade(answer, gold).score != score
    ]
    assert not differing


def test_page_names_the_rules_of_all_cases() -> None:
    page = (Path(__file__).parents[3] / "docs/environments/geo3k.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| ([a-z]+) \| [A-Z`]", page, re.MULTILINE)) == RULES


def test_grade_accepts_nothing_more_when_exact() -> None:
    exact = {case for case in CASES if grade(case[0], case[1], Rounding.EXACT).score}
    rounded = {case for case in CASES if grade(case[0], case[1], Rounding.ROUND).score}
    assert exact < rounded
    assert {rule for *_, rule in rounded - exact} <= {
        "rounding",
        "claims",
        "ratio",
        "angle",
        "unit",
    }


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "rounded"),
    [
        ("29.73", r"2\sqrt{221}", 0.0, 1.0),
        ("29.7", r"2\sqrt{221}", 0.0, 1.0),
        ("29.74", r"2\sqrt{221}", 0.0, 0.0),
        ("30", r"2\sqrt{221}", 0.0, 0.0),
        ("3.14", r"\pi", 0.0, 1.0),
        ("3.1", r"\pi", 0.0, 0.0),
        ("0.667", "2/3", 0.0, 1.0),
        ("8.08", "8.1", 0.0, 1.0),
        ("8.16", "8.1", 0.0, 0.0),
        (r"\sqrt{65}", "8.1", 0.0, 1.0),
        ("8", "8.1", 0.0, 0.0),
        ("8.04", "8", 0.0, 0.0),
        ("(1.41, 3)", r"(\sqrt{2}, 3)", 0.0, 1.0),
        ("8.0", "8", 1.0, 1.0),
    ],
)
def test_grade_rounds_only_where_the_policy_says_so(
    answer: str, gold: str, exact: float, rounded: float
) -> None:
    assert grade(answer, gold, "exact").score == exact
    assert grade(answer, gold, "round").score == rounded


@pytest.mark.parametrize(
    ("answer", "gold", "how"),
    [
        (" 30 ", "30", How.TEXT),
        ("30.0", "30", How.VALUE),
        ("1.41", r"\sqrt{2}", How.ROUNDED),
        ("31", "30", How.DIFFERENT),
        ("thirty", "30", How.UNREADABLE),
        ("9**9**9**9", "30", How.UNREADABLE),
        (None, "30", How.NO_ANSWER),
        ("31", "a rhombus", How.GOLD_UNREADABLE),
        (r"\text{a rhombus}", "a rhombus", How.TEXT),
    ],
)
def test_grade_says_why(answer: str | None, gold: str, how: How) -> None:
    verdict = grade(answer, gold)
    assert verdict == Grade(verdict.score, how)
    assert verdict.how == how


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: f"{bomb[:12]!r}x{len(bomb)}")
def test_grade_survives_bombs_as_answer_and_as_gold(bomb: str) -> None:
    """One that the grader works out would take minutes; `benchmarks/grading.py` measures them."""
    assert grade(bomb, "3.5").score == 0.0
    assert grade("3.5", bomb).score == 0.0
    grade(bomb, bomb)


@pytest.mark.slow
def test_grade_gives_the_same_verdicts_from_many_threads() -> None:
    cases = [(answer, gold) for answer, gold, *_ in CASES]
    random.Random(5).shuffle(cases)
    alone = [grade(*case) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(grade, *zip(*cases, strict=True)))
    assert together == alone


_PIECES = st.sampled_from(
    [
        *"0123456789+-*/^(){}[],.:=%!| ",
        *("\\frac", "\\sqrt", "\\boxed{", "\\text{", "\\left(", "\\right)", "\\pi", "π", "√", "°"),
        *("\\circ", "\\approx", "\\angle", "sin", "\\tan", "x", "AB", "cm", "**", "$", "½", "²"),
        *("'", '"', "\\$", " is ", " to ", "x=", "y=", "/s", "^{-1}", "square ", "1/2", "{,}"),
    ]
)


@settings(max_examples=examples(400), deadline=None)
@given(st.one_of(st.lists(_PIECES, max_size=60).map("".join), st.text(max_size=80)))
def test_grade_never_raises(text: str) -> None:
    for answer, gold in ((text, "3.5"), ("3.5", text), (text, text)):
        verdict = grade(answer, gold)
        assert verdict.score in (0.0, 1.0)
        assert isinstance(verdict.how, How)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(-999, 999), st.integers(1, 60), st.integers(1, 400))
def test_grade_knows_a_surd_in_every_notation(top: int, bottom: int, radicand: int) -> None:
    gold = rf"\frac{{{top} \sqrt{{{radicand}}}}}{{{bottom}}}"
    for answer in (
        f"{top}√{radicand}/{bottom}",
        f"({top}*sqrt({radicand}))/{bottom}",
        rf"\boxed{{\dfrac{{{top}}}{{{bottom}}}\sqrt{{{radicand}}}}}",
        rf"x = {top} \cdot {radicand}^{{1/2}} \div {bottom} \text{{ cm}}",
    ):
        assert grade(answer, gold, "exact").score == 1.0
    assert grade(f"{top}√{radicand}/{bottom} + 1", gold, "exact").score == 0.0


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 99), st.integers(1, 99), st.integers(2, 99))
def test_grade_never_joins_numbers_across_a_space(first: int, second: int, third: int) -> None:
    # 1 1/10 is 11/10, as a mixed number and not because the digits were joined.
    assume(first + Fraction(second, third) != Fraction(int(f"{first}{second}"), third))
    for space in (" ", r"\,", r"\ ", "~", "\u00a0", "\n", "} {"):
        assert grade(f"{first}{space}{second}", f"{first}{second}").score == 0.0
        assert grade(f"{first}{space}{second}/{third}", f"{first}{second}/{third}").score == 0.0
