"""Forms in which models write answers and files write gold answers, and hostile look-alikes."""

import json
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fakes.budget import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envkit_geo3k import How, grade, load_tasks
from envkit_geo3k.answer_text import last_boxed
from envkit_geo3k.grading import is_readable

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
