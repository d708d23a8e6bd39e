import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes.budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.errors import ConfigurationError
from envkit_geo3k import Grade, How, Rounding, grade

CORRECT = [
    # numbers, signs, decimals, thousands
    ("17", "17"),
    ("+17", "17"),
    ("-4.50", "-4.5"),
    (".75", "0.75"),
    ("6.", "6"),
    ("12,500", "12500"),
    ("1,234,567.5", "1234567.5"),
    ("1{,}250", "1250"),
    ("2.5e2", "250"),
    # fractions and mixed numbers
    ("14/8", r"\frac{7}{4}"),
    (r"\dfrac{21}{9}", "7/3"),
    (r"\frac34", "0.75"),
    (r"\frac 3 4", "0.75"),
    (r"\tfrac{1}{-2}", "-0.5"),
    ("3 1/4", "3.25"),
    (r"3\frac{1}{4}", r"\frac{13}{4}"),
    ("2½", "2.5"),
    (r"-\frac{9}{12}", "-3/4"),
    (r"\frac{\frac{1}{2}}{3}", "1/6"),
    # roots
    ("5√7", r"5 \sqrt{7}"),
    ("√50", r"5\sqrt2"),
    (r"\sqrt{\frac{9}{4}}", "1.5"),
    (r"\sqrt[3]{27}", "3"),
    ("4sqrt(3)", r"4 \sqrt { 3 }"),
    ("sqrt 12 / 2", r"\sqrt{3}"),
    (r"\frac{10}{\sqrt{5}}", r"2\sqrt{5}"),
    (r"\sqrt{2}\cdot\sqrt{8}", "4"),
    (r"12^{1/2}", r"2\sqrt3"),
    (r"2\sqrt{3}+\sqrt{12}", r"4\sqrt{3}"),
    # pi
    ("9π", r"9\pi"),
    ("pi*49", r"49 \pi"),
    (r"\frac{5\pi}{3}", r"\frac{5}{3}\pi"),
    (r"100-25\pi", r"25(4-\pi)"),
    # trigonometry in degrees
    (r"8\cos 60^\circ", "4"),
    (r"\tan 45", "1"),
    (r"\sin^2 30^{\circ}", "1/4"),
    (r"\arccos(0.5)", "60"),
    (r"\cos^{-1}(0)", "90"),
    # wrappers, units, names
    (r"\boxed{\frac{7}{2}}", "3.5"),
    (r"The answer is \boxed{42}.", "42"),
    (r"$$ 8 $$", "8"),
    (r"\(8\)", "8"),
    (r"\left( \frac{3}{2} \right)", "1.5"),
    (r"\text{28}", "28"),
    ("28 cm", "28"),
    ("28 square feet", "28"),
    (r"28\text{ cm}^2", "28"),
    (r"28 \mathrm{~m}^{2}", "28"),
    ("28 in.", "28"),
    ("65°", "65"),
    ("65 degrees", "65"),
    (r"65^{\circ}", "65"),
    ("x = 13", "13"),
    ("PQ=13", "13"),
    (r"m\angle PQR = 65^\circ", "65"),
    ("∠1 = 65°", "65"),
    (r"\overline{AB} = 13", "13"),
    (r"\text{Area} = 13", "13"),
    (r"AC = \sqrt{144+25} = 13", "13"),
    (r"AB = 2\sqrt{5} \approx 4.47", r"2\sqrt{5}"),
    (r"\approx 4.47", r"2\sqrt{5}"),
    # percent, tuples, ratios
    ("45%", "45"),
    (r"45\%", "0.45"),
    ("0.45", r"45\%"),
    ("(2, -3)", "(2,-3)"),
    (r"\left(\frac{1}{2}, 4\right)", "(0.5, 4)"),
    ("M(2, 5)", "(2, 5)"),
    ("6:9", "2:3"),
    ("6 to 9", "2:3"),
    ("2/3", "2:3"),
    ("1:2:3", "2:4:6"),
]
WRONG = [
    ("18", "17"),
    ("-17", "17"),
    ("1000001", "1000000"),
    (r"\frac{4}{7}", r"\frac{7}{4}"),
    ("x = 13 = 14", "13"),
    ("13 or 14", "13"),
    ("13, 14", "13"),
    ("(3, 2)", "(2, 3)"),
    ("(2, 3, 4)", "(2, 3)"),
    ("3:2", "2:3"),
    ("0:0", "2:3"),
    ("36", "0.36"),
    ("10", r"10\pi"),
    ("5", r"5\sqrt{2}"),
    ("AB", "13"),
    ("x", "13"),
    ("", "13"),
    ("   ", "13"),
    (r"\boxed{}", "13"),
    ("2 3", "6"),
    ("1/0", "0"),
    (r"\sqrt{-4}", "2"),
    ("nan", "0"),
    ("inf", "0"),
    ("1_000", "1000"),
    ("٣", "3"),
]
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


@pytest.mark.parametrize(("answer", "gold"), CORRECT)
def test_grade_accepts_other_forms_of_the_value(answer: str, gold: str) -> None:
    assert grade(answer, gold, Rounding.EXACT if "4.47" not in answer else "round").score == 1.0


@pytest.mark.parametrize(("answer", "gold"), WRONG)
def test_grade_refuses_other_values_and_hedging(answer: str, gold: str) -> None:
    assert grade(answer, gold).score == 0.0


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


def test_grade_refuses_an_unknown_policy() -> None:
    with pytest.raises(ConfigurationError, match="rounding must be one of"):
        grade("1", "1", "loose")


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: f"{bomb[:12]!r}x{len(bomb)}")
def test_grade_survives_bombs_as_answer_and_as_gold(bomb: str) -> None:
    """One that the grader works out would take minutes; `benchmarks/grading.py` measures them."""
    assert grade(bomb, "3.5").score == 0.0
    assert grade("3.5", bomb).score == 0.0
    grade(bomb, bomb)


def test_grade_gives_the_same_verdicts_from_many_threads() -> None:
    cases = [(answer, gold) for answer, gold in [*CORRECT, *WRONG]] * 4
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
