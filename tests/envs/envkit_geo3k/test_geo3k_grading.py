"""Exact numbers, and the forms in which models and files write answers."""

import json
import math
import random
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fakes.budget import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit_geo3k import How, Rounding, grade, load_tasks
from envkit_geo3k.answer_text import last_boxed
from envkit_geo3k.exact import PI, Exact
from envkit_geo3k.grading import is_readable

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


FORMS: list[tuple[str, str, int]] = [
    tuple(json.loads(line))
    for line in Path(__file__).with_name("geo3k_forms.jsonl").read_text("utf-8").splitlines()
]

"""Answer, gold, score."""

PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEA"
    "G7buVgAAAABJRU5ErkJggg=="
)


def test_right_answers_in_forms_that_models_write_are_read() -> None:
    refused = [(a, g, grade(a, g).how) for a, g, score in FORMS if score and not grade(a, g).score]
    assert not refused
    assert sum(score for *_, score in FORMS) > 250


def test_no_wrong_answer_in_a_hostile_form_passes() -> None:
    passed = [(a, g, grade(a, g).how) for a, g, score in FORMS if grade(a, g).score > score]
    assert not passed
    assert sum(not score for *_, score in FORMS) > 350


_WRAPPERS = (
    r"\textcolor{red}{%s}",
    r"{\color{blue} %s}",
    r"\color[rgb]{1,0,0}%s",
    r"\boxed{%s}",
    r"$%s$",
    r"答案是 %s",
    r"x等于 %s",
    r"\begin{aligned} x &= %s \end{aligned}",
    r"\overset{\frown}{AB} = %s",
    r"\mathbf{%s}",
    r"%s厘米",
    r"\text{面积} = %s \text{平方厘米}",
)

_OUTSIDE = (r"\boxed{%s}", r"答案：%s", r"$$%s$$", r"\textcolor{red}{%s}", "%s")  # noqa: RUF001


def _shown(value: Fraction, form: int) -> str:
    """Return a fraction in one of the forms that print its terms."""
    top, bottom = value.numerator, value.denominator
    sign = "-" if top < 0 else ""
    return (
        f"{top}/{bottom}",
        rf"\frac{{{top}}}{{{bottom}}}",
        rf"{{{top} \over {bottom}}}",
        rf"{sign}\dfrac{{{abs(top)}}}{{{bottom}}}",
        rf"{{{3 * top} \over {3 * bottom}}}",
    )[form]


_FRACTIONS = st.builds(Fraction, st.integers(-40, 40), st.integers(2, 30)).filter(
    lambda value: value.denominator > 1
)


@settings(max_examples=examples(300), deadline=None)
@given(
    _FRACTIONS, _FRACTIONS, st.integers(0, 4), st.sampled_from(_WRAPPERS), st.sampled_from(_OUTSIDE)
)
def test_wrapped_fraction_is_right_exactly_when_its_value_is(
    truth: Fraction, claim: Fraction, form: int, inside: str, outside: str
) -> None:
    gold = f"{truth.numerator}/{truth.denominator}"
    for value in (truth, claim):
        answer = outside % (inside % _shown(value, form))
        assert grade(answer, gold, "exact").score == (value == truth), answer


_GROUPS = [wrapper for wrapper in _WRAPPERS if "{%s}" in wrapper or " %s}" in wrapper]


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 99), st.integers(1, 99), st.sampled_from(_GROUPS))
def test_group_never_joins_two_numbers(first: int, second: int, wrapper: str) -> None:
    for answer in (f"{first}{wrapper % second}", f"{wrapper % first}{second}"):
        if not wrapper.startswith("\\boxed"):  # what stands outside a box is not the answer
            assert grade(answer, f"{first}{second}").score == 0.0, answer


_TERMS = st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(-9, 9))


def _polynomial(terms: tuple[int, int, int], order: tuple[int, ...], letter: str) -> str:
    parts = [f"{terms[n]}" + ("", letter, f"{letter}^2")[n] for n in order]
    return " + ".join(parts).replace("+ -", "- ")


@settings(max_examples=examples(200), deadline=None)
@given(_TERMS, _TERMS, st.permutations((0, 1, 2)), st.sampled_from("nxkmst"))
def test_formula_is_right_exactly_when_its_terms_are(
    truth: tuple[int, int, int], claim: tuple[int, int, int], order: list[int], letter: str
) -> None:
    assume(truth[1] or truth[2])
    gold = _polynomial(truth, (2, 1, 0), letter)
    assert is_readable(gold)
    for terms in (truth, claim):
        answer = _polynomial(terms, tuple(order), letter)
        assert grade(answer, gold).score == (terms == truth), (answer, gold)
        assert grade(f"y = {answer}", f"y = {gold}").score == (terms == truth)
        if letter not in "uv":
            assert grade(_polynomial(terms, tuple(order), "v"), gold).score == 0.0


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.integers(-20, 20), min_size=2, max_size=4, unique=True),
    st.lists(st.integers(-20, 20), min_size=1, max_size=4),
    st.sampled_from([" or ", ", ", " and ", r" \text{ or } ", "或"]),
)
def test_several_values_are_right_exactly_when_all_are(
    truth: list[int], claim: list[int], separator: str
) -> None:
    gold = " or ".join(map(str, truth))
    for values in (truth[::-1], claim):
        answer = separator.join(f"x = {value}" for value in values)
        assert grade(answer, gold).score == (sorted(values) == sorted(truth)), (answer, gold)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
def test_ratio_is_compared_relatively_at_every_size(a: int, b: int, c: int, d: int) -> None:
    for size in ("", "e-10", "e-13", "e9"):
        assert grade(f"{a}{size}:{b}{size}", f"{c}:{d}").score == (a * d == b * c)
        assert grade(f"{a}:{b}", f"{c}{size}:{d}{size}").score == (a * d == b * c)
        assert grade(f"{a}{size}", f"{c}{size}").score == (a == c)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 23), st.integers(0, 9))
def test_clock_time_equals_only_itself(hour: int, minute: int, other: int, early: int) -> None:
    gold, claim = f"{hour}:{minute:02}", f"{other}:{early:02}"
    assert grade(claim, gold).score == ((hour, minute) == (other, early)), (claim, gold)
    assert grade(f"{hour:02}:{minute:02}", gold).score == 1.0


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed 12", "12"),
        (r"so $x = \boxed 12$, as asked", "12"),
        (r"\(\boxed -3.5\) holds", "-3.5"),
        (r"It is \boxed 12. Then we check 13.", "12"),
        ("\\boxed 12\n13", "12"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{13} or \boxed 12", "12"),
        (r"\boxed 13 or \boxed{12}", "12"),
        (r"\boxed{7 \over 2}", r"{7 \over 2}"),
        (r"I put the answer into \boxed later", None),
        (r"write \boxed as LaTeX does", None),
        (r"it is in \boxed (see above)", None),
        (r"use \boxed . Then stop.", None),
        (r"\boxed (2, 5) is the point", "(2, 5) is the point"),
        (r"\boxed .5", ".5"),
        (r"\boxed", None),
        (r"\boxed{12", None),
    ],
)
def test_box_without_braces_ends_with_its_formula(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    "gold",
    [
        "4 n - 2",
        r"\pm 3",
        "3 or 4",
        "y = 2x + 1",
        r"2 \pm \sqrt{3}",
        r"\frac{a + b}{2}",
        "(90 - x)°",
        r"2\theta",
        "180(n - 2)",
        "x^2 + y^2 = 25",
        "x = 3, x = -3",
    ],
)
def test_gold_that_is_not_one_value_is_read(gold: str) -> None:
    assert is_readable(gold)
    assert grade(gold, gold).score == 1.0
    for other in ("1", "x", "y = 2x + 2", "3 or 5", "0 = 0", r"\pm 4", "n"):
        assert grade(other, gold).score == 0.0


@pytest.mark.parametrize("gold", ["D", "AB", "x > 3", "a rhombus", "3 cats", "No. 5", "xy", "?"])
def test_gold_that_is_text_is_not_read(gold: str) -> None:
    assert not is_readable(gold)
    assert grade("5", gold).how is How.GOLD_UNREADABLE


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_load_says_which_gold_answers_stay_text(tmp_path: Path) -> None:
    answers = ["12", "D", "4 n - 2", r"\pm 3", "x > 3", "3 or 4", "y = 2x + 1", "a rhombus"]
    rows = [{"images": [PNG], "problem": "Find x.", "answer": answer} for answer in answers]
    path = _write(tmp_path / "a.jsonl", rows)

    with pytest.warns(RuntimeWarning, match=r"3 of 8 answers .*: rows 2, 5, 8 of a\.jsonl"):
        source = load_tasks(path)

    assert source.unread == {"a.jsonl": (2, 5, 8)}
    assert source.size == 8


def test_words_that_answer_other_questions_are_no_surprise(tmp_path: Path) -> None:
    row = {"doc_id": 1, "question": "What is it?", "image": PNG}
    words = [{**row, "target": text} for text in ("a red car", "cat", "yes", "12")]
    path = _write(tmp_path / "a.jsonl", words)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_tasks(path).unread == {}

    path = _write(
        tmp_path / "b.jsonl", [*words, {**row, "target": "D"}, {**row, "target": "x > 3"}]
    )
    with pytest.warns(RuntimeWarning, match=r"rows 5, 6 of b\.jsonl"):
        assert load_tasks(path).unread == {"b.jsonl": (5, 6)}


def test_long_list_of_rows_is_cut(tmp_path: Path) -> None:
    rows = [{"images": [PNG], "problem": "Find x.", "answer": "D"}] * 25
    with pytest.warns(RuntimeWarning, match=r"18, 19, 20 and 5 more of a\.jsonl"):
        load_tasks(_write(tmp_path / "a.jsonl", rows))


_ANY_FRACTION = st.fractions(min_value=-50, max_value=50, max_denominator=20)


def _number(parts: tuple[Fraction, int, bool, Fraction]) -> Exact:
    coefficient, radicand, with_pi, rest = parts
    root = coefficient * Exact.sqrt(radicand)
    return (root * PI if with_pi else root) + rest


_NUMBERS = st.tuples(_ANY_FRACTION, st.integers(1, 90), st.booleans(), _ANY_FRACTION).map(_number)


@given(_NUMBERS, _NUMBERS)
def test_exact_arithmetic_agrees_with_floats(a: Exact, b: Exact) -> None:
    assert math.isclose(float(a + b), float(a) + float(b), abs_tol=1e-9)
    assert math.isclose(float(a - b), float(a) - float(b), abs_tol=1e-9)
    assert math.isclose(float(a * b), float(a) * float(b), rel_tol=1e-9, abs_tol=1e-9)


@given(_NUMBERS)
def test_exact_latex_and_plain_text_are_read_back_as_the_same_value(number: Exact) -> None:
    value = f"{float(number):.12f}"
    assert grade(number.latex(), value, "exact").score == 1.0
    assert grade(number.plain(), value, "exact").score == 1.0


@given(st.integers(1, 400), st.integers(1, 400))
def test_exact_numbers_that_are_equal_compare_equal(a: int, b: int) -> None:
    assert Exact.sqrt(a) * Exact.sqrt(b) == Exact.sqrt(a * b)
    assert Exact.sqrt(a * a) == Exact.of(a)
    assert Exact.sqrt(Fraction(a, b)) * b == Exact.sqrt(a * b)
    assert (Exact.sqrt(a) * PI) / Exact.sqrt(a) == PI


@pytest.mark.parametrize(
    ("number", "latex", "plain"),
    [
        (Exact.of(0), "0", "0"),
        (Exact.of(-7), "-7", "-7"),
        (Exact.of(Fraction(5, 2)), r"\frac{5}{2}", "2.5"),
        (Exact.of(Fraction(5, 3)), r"\frac{5}{3}", "5/3"),
        (Exact.sqrt(884), r"2 \sqrt{221}", "2√221"),
        (Exact.sqrt(Fraction(3, 4)), r"\frac{\sqrt{3}}{2}", "√3/2"),
        (PI, r"\pi", "π"),
        (100 - 25 * PI, r"100 - 25 \pi", "100 - 25π"),
        (PI * Fraction(-8, 3), r"-\frac{8 \pi}{3}", "-8π/3"),
        (Exact.of(6) / PI, r"\frac{6}{\pi}", "6/π"),
    ],
)
def test_exact_numbers_are_written_as_in_a_textbook(number: Exact, latex: str, plain: str) -> None:
    assert (number.latex(), number.plain()) == (latex, plain)


def test_exact_refuses_what_has_no_exact_value() -> None:
    with pytest.raises(ConfigurationError, match="at least 0, got -3"):
        Exact.sqrt(-3)
    with pytest.raises(ConfigurationError, match=r"one non-zero term, got √2 \+ 1"):
        _ = Exact.of(1) / (1 + Exact.sqrt(2))
