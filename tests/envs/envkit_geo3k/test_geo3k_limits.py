"""The rules of grading at their limits: tolerances, digits, ties, zeros."""

from typing import Any

import pytest

from envkit.errors import ConfigurationError
from envkit_geo3k import Grade, How, grade
from envkit_geo3k.grading import is_readable

WRONG = {How.DIFFERENT, How.UNREADABLE, How.NO_ANSWER, How.GOLD_UNREADABLE}


def how(answer: Any, gold: str, policy: str = "round") -> How:
    score, reason = grade(answer, gold, policy)
    assert score == (0.0 if reason in WRONG else 1.0)
    return reason


@pytest.mark.parametrize("answer", [None, "", " \n", 30, ["30"], {"x": 1}])
def test_answer_that_is_not_a_text_is_no_answer(answer: Any) -> None:
    assert grade(answer, "30") == Grade(0.0, How.NO_ANSWER)


def test_answer_with_the_same_text_is_correct_whatever_it_says() -> None:
    assert grade(" a b ", "a b\n") == Grade(1.0, How.TEXT)
    assert grade("30", " 30") == Grade(1.0, How.TEXT)


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("A  Rhombus", "a rhombus", How.TEXT),
        (r"\boxed{a rhombus}", "a rhombus.", How.TEXT),
        ("a - b?", "a-b ?", How.TEXT),
        ("a rhombuses", "a rhombus", How.GOLD_UNREADABLE),
        ("Fig 1a?", "fig 1a?", How.GOLD_UNREADABLE),
        ("fig  1a ?", "fig 1a?", How.TEXT),
        (".", "," * 401, How.GOLD_UNREADABLE),
        ("5", "," * 401, How.GOLD_UNREADABLE),
        ("a" * 401, "a rhombus", How.UNREADABLE),
        ("a" * 401, "5", How.UNREADABLE),
        ("thirty", "5", How.UNREADABLE),
    ],
)
def test_gold_that_is_not_a_value_is_compared_as_text(
    answer: str, gold: str, expected: How
) -> None:
    assert how(answer, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        # Plain decimals: a relative 1e-12.
        ("1000000.0000005", "1000000", How.VALUE),
        ("1000000.000005", "1000000", How.DIFFERENT),
        # Expressions without a decimal: a relative 1e-9.
        ("1000000000500/1000000", "1000000000000/1000000", How.VALUE),
        ("1000000002000/1000000", "1000000000000/1000000", How.DIFFERENT),
        ("1000000000500/1000000", "1000000", How.VALUE),
        ("1000000", "1000000002000/1000000", How.DIFFERENT),
        # A decimal on one side: a relative 1e-6.
        ("29.732137", r"2\sqrt{221}", How.VALUE),
        (r"2\sqrt{221}", "29.732137", How.VALUE),
        ("29.7321", r"2\sqrt{221}", How.DIFFERENT),
        (r"2\sqrt{221}", "29.7321", How.DIFFERENT),
        (r"4.2000001\pi", r"4.2\pi", How.VALUE),
        (r"4.20001\pi", r"4.2\pi", How.DIFFERENT),
        # A gold value of zero: an absolute 1e-9.
        ("0.0000000005", "0", How.VALUE),
        ("-0.0000000005", "0", How.VALUE),
        ("0.000000001", "0", How.VALUE),
        ("0.000000005", "0", How.DIFFERENT),
        (r"0 \approx 0.0000000005", "0", How.VALUE),
        # Any other gold value: relative, however small.
        ("0", "0.0000000005", How.DIFFERENT),
        ("0.0000000005", "0.0000000006", How.DIFFERENT),
        ("-0.0000000005", "0.0000000005", How.DIFFERENT),
        ("5e-10", "0.0000000005", How.VALUE),
        (r"\frac{1}{2000000000}", "0.0000000005", How.VALUE),
        # Terms that cancel: 1e-12 of the largest.
        (r"\cos 90", "0", How.VALUE),
        ("0", r"\cos 90", How.VALUE),
        ("0", r"\sqrt{2}^2 - 2", How.VALUE),
        ("0", r"1000 - 1000 + 0.0000000005", How.VALUE),
        ("0", r"1 - 1 + 0.0000000005", How.DIFFERENT),
        (r"100 - 100 + 0.0000000005", "0.0000000007", How.DIFFERENT),
        (r"1000 - 1000 + 0.0000000005", "0.0000000007", How.VALUE),
    ],
)
def test_value_is_equal_within_the_tolerance_of_its_notation(
    answer: str, gold: str, expected: How
) -> None:
    assert how(answer, gold, "exact") is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        # The claim rounds an exact gold value: one decimal and three digits at least.
        ("29.7", r"2\sqrt{221}", How.ROUNDED),
        ("2.97", r"\frac{2\sqrt{221}}{10}", How.ROUNDED),
        ("0.297", r"\frac{2\sqrt{221}}{100}", How.ROUNDED),
        ("0.30", r"\frac{2\sqrt{221}}{100}", How.DIFFERENT),
        ("3.0", r"\frac{2\sqrt{221}}{10}", How.DIFFERENT),
        ("297", r"20\sqrt{221}", How.DIFFERENT),
        ("29.8", r"2\sqrt{221}", How.DIFFERENT),
        ("29.6", r"2\sqrt{221}", How.DIFFERENT),
        (r"14.87 \cdot 2", r"2\sqrt{221}", How.DIFFERENT),
        # The claim is a factor of pi.
        (r"1.33\pi", r"\frac{4\pi}{3}", How.ROUNDED),
        (r"1.34\pi", r"\frac{4\pi}{3}", How.DIFFERENT),
        (r"1.3\pi", r"\frac{4\pi}{3}", How.DIFFERENT),
        # The gold value is a factor of pi, so the claim may be coarser but not finer.
        ("13.2", r"4.2\pi", How.ROUNDED),
        (r"4.21\pi", r"4.2\pi", How.DIFFERENT),
        # The gold value is a decimal: the claim may be finer.
        ("8.08", "8.1", How.ROUNDED),
        (r"\sqrt{65}", "8.1", How.ROUNDED),
        (r"2.57\pi", "8.1", How.ROUNDED),
        (r"\sqrt{67}", "8.1", How.DIFFERENT),
        ("8.0", "8.1", How.DIFFERENT),
        ("8", "8.1", How.DIFFERENT),
        ("9", "8.96", How.DIFFERENT),
        ("8.1", "8.08", How.DIFFERENT),
        ("8.4", "8", How.DIFFERENT),
        (r"\sqrt{65}", "8", How.DIFFERENT),
        (f"8.{'0' * 380}1", "8", How.VALUE),
        (r"\sqrt{65}", f"8.{'0' * 380}1", How.DIFFERENT),
    ],
)
def test_rounding_keeps_enough_digits(answer: str, gold: str, expected: How) -> None:
    assert how(answer, gold) is expected
    if expected is How.ROUNDED:
        assert how(answer, gold, "exact") is How.DIFFERENT


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("0.35", "0.4", How.ROUNDED),
        ("0.45", "0.4", How.DIFFERENT),
        ("-0.35", "-0.4", How.ROUNDED),
        ("-0.45", "-0.4", How.DIFFERENT),
        ("0.349999", "0.4", How.DIFFERENT),
        ("0.449999", "0.4", How.ROUNDED),
        ("0.450001", "0.4", How.DIFFERENT),
        ("2.675", "2.68", How.ROUNDED),
        ("2.675", "2.67", How.DIFFERENT),
        ("1.005", "1.01", How.ROUNDED),
        ("123456789.005", "123456789.01", How.ROUNDED),
        ("123456789.005", "123456789.00", How.DIFFERENT),
        ("2.125", r"\frac{17}{8}", How.VALUE),
        ("2.13", r"\frac{17}{8}", How.ROUNDED),
        ("2.12", r"\frac{17}{8}", How.DIFFERENT),
        (r"2.13\pi", r"\frac{17\pi}{8}", How.ROUNDED),
        (r"2.12\pi", r"\frac{17\pi}{8}", How.DIFFERENT),
    ],
)
def test_rounding_takes_ties_away_from_zero(answer: str, gold: str, expected: How) -> None:
    assert how(answer, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (r"x = 5 = 5.0", "5", How.VALUE),
        (r"x = 5 = 6", "5", How.DIFFERENT),
        (r"x = 6 = 5", "5", How.DIFFERENT),
        (r"\frac{2}{3} = 0.667", "2/3", How.ROUNDED),
        (r"0.667 = \frac{2}{3}", "2/3", How.ROUNDED),
        (r"\frac{2}{3} \approx 0.7", "2/3", How.VALUE),
        (r"\frac{2}{3} \approx \frac{4}{6}", "2/3", How.VALUE),
        (r"\frac{2}{3} \approx 0.8", "2/3", How.DIFFERENT),
        (r"\frac{2}{3} \approx \frac{7}{10}", "2/3", How.DIFFERENT),
        (r"\frac{2}{3} \approx (0.7, 0.7)", "2/3", How.DIFFERENT),
        (r"(\frac{2}{3}, 1) \approx (0.7, 1)", "(2/3, 1)", How.VALUE),
        (r"(\frac{2}{3}, 1) \approx (0.7, 1, 1)", "(2/3, 1)", How.DIFFERENT),
        (r"(\frac{2}{3}, 1) \approx (0.7, 2)", "(2/3, 1)", How.DIFFERENT),
        (r"(\frac{2}{3}, 1) \approx [0.7, 1]", "(2/3, 1)", How.DIFFERENT),
        # The first value is the one that a later one rounds.
        (r"0.667 = \frac{2}{3} \approx 0.6667", "2/3", How.DIFFERENT),
        (r"\frac{2}{3} = 0.667 \approx 0.6667", "2/3", How.ROUNDED),
        # The last value of the gold answer is the answer.
        ("5", "2 + 4 = 5", How.VALUE),
        ("6", "2 + 4 = 5", How.DIFFERENT),
    ],
)
def test_every_value_that_an_answer_claims_is_compared(
    answer: str, gold: str, expected: How
) -> None:
    assert how(answer, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("(1, 2.0)", "(1, 2)", How.VALUE),
        ("(1, 3)", "(1, 2)", How.DIFFERENT),
        ("(3, 2)", "(1, 2)", How.DIFFERENT),
        ("(1, 2, 3)", "(1, 2)", How.DIFFERENT),
        ("(1, 2)", "(1, 2, 3)", How.DIFFERENT),
        ("[1, 2]", "(1, 2)", How.DIFFERENT),
        ("1:2", "(1, 2)", How.DIFFERENT),
        ("(1.414, 2)", r"(\sqrt{2}, 2)", How.ROUNDED),
        ("(1.415, 2)", r"(\sqrt{2}, 2)", How.DIFFERENT),
        ("(1, 2 cm)", "(1, 2 m)", How.DIFFERENT),
    ],
)
def test_point_is_compared_coordinate_by_coordinate(answer: str, gold: str, expected: How) -> None:
    assert how(answer, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("4:6", "2:3", How.VALUE),
        ("-4:-6", "2:3", How.VALUE),
        ("2/3:1", "2:3", How.VALUE),
        ("1:1.5", "2:3", How.VALUE),
        ("-2/3:-1", "2:3", How.VALUE),
        ("4:6.00001", "2:3", How.DIFFERENT),
        ("4:6.000001", "2:3", How.VALUE),
        ("3:2", "2:3", How.DIFFERENT),
        ("2:3 cm", "2:3 m", How.DIFFERENT),
        ("4:6:8", "2:3:4", How.VALUE),
        ("4:6:9", "2:3:4", How.DIFFERENT),
        ("4:7:8", "2:3:4", How.DIFFERENT),
        ("5:6:8", "2:3:4", How.DIFFERENT),
        ("4:6", "2:3:4", How.DIFFERENT),
        ("2:3:4", "2:3", How.DIFFERENT),
        ("2/3", "2:3", How.VALUE),
        ("0.6666667", "2:3", How.VALUE),
        ("3/2", "2:3", How.DIFFERENT),
        ("2:3", "2/3", How.DIFFERENT),
        ("5", "5:1", How.VALUE),
        ("-5", "5:-1", How.VALUE),
        ("0", "0:3", How.VALUE),
        ("3", "3:0", How.DIFFERENT),
        ("0.5", "2:3:4", How.DIFFERENT),
        # Zeros.
        ("0:0", "2:3", How.DIFFERENT),
        ("0:0:0", "2:3:4", How.DIFFERENT),
        ("0:3", "2:3", How.DIFFERENT),
        ("2:0", "2:3", How.DIFFERENT),
        ("0:0", "0:3", How.DIFFERENT),
        ("5:7", "0:0", How.DIFFERENT),
        ("0:5", "0:0", How.DIFFERENT),
        ("0:6", "0:3", How.VALUE),
        ("6:0", "3:0", How.VALUE),
        ("0:1:1", "0:2:3", How.DIFFERENT),
        ("0:4:6", "0:2:3", How.VALUE),
    ],
)
def test_ratio_is_compared_by_its_proportions(answer: str, gold: str, expected: How) -> None:
    assert how(answer, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("12 cm", "12", How.VALUE),
        ("12", "12 cm", How.VALUE),
        ("12 cm", "12.0 cm", How.VALUE),
        ("12 m", "12 cm", How.DIFFERENT),
        ("1.5 rad", "1.5", How.DIFFERENT),
        ("1.5 rad", "1.50 rad", How.VALUE),
        (r"\pi/2 rad", r"\frac{\pi}{2}", How.VALUE),
    ],
)
def test_unit_may_be_missing_but_must_not_differ(answer: str, gold: str, expected: How) -> None:
    assert how(answer, gold) is expected


def test_grade_refuses_an_unknown_policy() -> None:
    with pytest.raises(ConfigurationError, match="rounding must be one of"):
        grade("1", "1", "loose")


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("9:00", "3:00", How.DIFFERENT),
        ("3:00", "03:00", How.VALUE),
        ("3:05", "3:05:00", How.DIFFERENT),
        ("3:05", "3:15", How.DIFFERENT),
        ("9:30", "09:30", How.VALUE),
        ("09:30", "9:30", How.VALUE),
        ("09:10", "9:10", How.VALUE),
        ("9:10", "18:20", How.VALUE),  # ratios
        ("09:10", "18:20", How.DIFFERENT),
        ("3:01", "3:1", How.DIFFERENT),
        ("3:1", "3:01", How.DIFFERENT),
        ("3:09", "3:9", How.DIFFERENT),
        ("0.6", "3:05", How.DIFFERENT),  # a time has no quotient
        ("(3, 5)", "3:05", How.DIFFERENT),
        ("1e-10:1e-10", "3:2", How.DIFFERENT),
        ("3e-10:2e-10", "3:2", How.VALUE),
    ],
)
def test_clock_time_is_no_ratio(answer: str, gold: str, expected: How) -> None:
    assert how(answer, gold) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("4 or 3", "3 or 4", How.VALUE),
        ("3", "3 or 4", How.UNREADABLE),
        ("3 or 4 or 5", "3 or 4", How.DIFFERENT),
        ("3 or 5", "3 or 4", How.DIFFERENT),
        ("2 or 4", "3 or 4", How.DIFFERENT),
        ("1.41 or 3", r"3 or \sqrt{2}", How.ROUNDED),
        ("3 or 8.08", "3 or 8.1", How.ROUNDED),
        ("3 or 8.1", "3 or 8.08", How.DIFFERENT),
        ("3 or 4 cm", "3 or 4", How.VALUE),
        ("3 m or 4 cm", "3 cm or 4 cm", How.DIFFERENT),
        ("3 or 4 rad", "3 or 4", How.DIFFERENT),
        ("3 or 4", "3  or 4.", How.TEXT),
        ("3", "3 or 3", How.GOLD_UNREADABLE),
        ("4n - 2", "4 n - 2", How.VALUE),
        ("4 n-2", "4 n - 2", How.TEXT),
        ("4n + 2", "4 n - 2", How.DIFFERENT),
        ("4m - 2", "4 n - 2", How.UNREADABLE),
        ("8", "5 m + 3", How.DIFFERENT),
        ("5 m + 3", "8", How.UNREADABLE),
    ],
)
def test_gold_of_several_values_or_letters_is_compared(
    answer: str, gold: str, expected: How
) -> None:
    assert how(answer, gold) is expected
    if expected is How.ROUNDED:
        assert how(answer, gold, "exact") is How.DIFFERENT


@pytest.mark.parametrize(
    ("gold", "expected"),
    [("12", True), ("3 or 4", True), ("4 n - 2", True), ("D", False), ("3 or 3", False)],
)
def test_gold_is_readable_unless_it_is_text(gold: str, expected: bool) -> None:
    assert is_readable(gold) is expected
