"""Answers that a grader would run never reach it; right answers always do."""

import itertools
import random
from typing import Any

import pytest
from fakes.matrix import share
from fakes.needs import REASONING_GYM
from hypothesis import given
from hypothesis import strategies as st

from envkit_reasoning_gym.answer_guard import is_arithmetic, is_formula, is_plain, is_safe
from envkit_reasoning_gym.env import ReasoningGymEnv

# Some of these graders also pay fixed answers, which is another test's subject.
pytestmark = pytest.mark.filterwarnings("ignore:reasoning-gym's grader of:RuntimeWarning")

EVALUATED = (
    "string_insertion",
    "spiral_matrix",
    "binary_matrix",
    "n_queens",
    "countdown",
    "puzzle24",
    "simple_integration",
    "intermediate_integration",
    "polynomial_multiplication",
)
PROGRAMS = (
    "open({path!r}, 'w')",
    "[open({path!r}, 'w')]",
    "__import__('pathlib').Path({path!r}).touch()",
    "[x for x in [open({path!r}, 'w')]]",
    "f'{{open({path!r}, chr(119))}}'",
    "(lambda: open({path!r}, 'w'))()",
    "1 + open({path!r}, 'w')",
    "x + exec('open({path!r}, chr(119))')",
)


@REASONING_GYM.mark
@pytest.mark.parametrize(
    ("dataset", "program"), share(itertools.product(EVALUATED, PROGRAMS), of=5)
)
def test_program_in_an_answer_is_not_run(dataset: str, program: str, tmp_path: Any) -> None:
    path = tmp_path / "written"
    env = ReasoningGymEnv(dataset=dataset, size=2)
    env.reset(seed=0)
    step = env.step(f"<answer>{program.format(path=str(path))}</answer>")
    assert step.reward == 0.0
    assert not path.exists()


NOT_NUMBERS = ("nan", "-NaN", "n a n", "((nan))", "nani", "1 + nani", "nan + 2i", "inf - infi")


@REASONING_GYM.mark
@pytest.mark.parametrize("answer", [*NOT_NUMBERS, "(" * 400_000 + ")" * 400_000])
def test_number_that_is_none_is_at_no_distance_from_the_right_one(answer: str) -> None:
    env = ReasoningGymEnv(dataset="complex_arithmetic", size=2)
    env.reset(seed=0)
    assert env.step(f"<answer>{answer}</answer>").reward == 0.0


@REASONING_GYM.mark
@pytest.mark.parametrize("size", [4, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dataset", [*EVALUATED, "complex_arithmetic"])
def test_own_answers_pass_the_guard(dataset: str, size: int) -> None:
    env = ReasoningGymEnv(dataset=dataset, size=size)
    source: Any = env.tasks
    answers = [source.entry(source.task(index))["answer"] for index in range(size)]
    assert all(
        is_safe(dataset, answer)
        for answer in answers
        if answer is not None and "Integral" not in answer
    )


@REASONING_GYM.mark
def test_copying_the_integral_of_the_task_is_not_a_solution() -> None:
    env = ReasoningGymEnv(dataset="intermediate_integration", size=2)
    source: Any = env.tasks
    entry = source.entry(source.task(0))
    assert source.score(f"Integral({entry['metadata']['integrand']}, x)", entry).score == 0.0


@pytest.mark.parametrize(
    "answer",
    ["[[0, 1], [1, 0]]", "['A', 'B']", "1 2 3", "3 -1 2", "ABCDE", "_ Q _\nQ _ _", "", "7", "(((("],
)
def test_lists_of_values_and_plain_texts_are_plain(answer: str) -> None:
    assert is_plain(answer)


@pytest.mark.parametrize(
    "answer",
    ["9**9**9", "'a' * 10**9", "[1] * 9", "a()", "a.b", "a[0]", "[i for i in x]", "f'{a}'",
     "lambda: 0", "1 if a else 2", "(a := 1)", "{**a}", "[*a]", "-" * 3000, "[" * 5000],
)  # fmt: skip
def test_computing_answers_are_not_plain(answer: str) -> None:
    try:
        compile(answer, "", "eval")
    except SyntaxError:
        return  # and so the grader cannot run it either
    except (MemoryError, RecursionError):
        pass
    assert not is_plain(answer)


@pytest.mark.parametrize("answer", ["(95 - 26) * 4/3", "1+2-3*(4/5)", "-7 + .5"])
def test_arithmetic_is_accepted(answer: str) -> None:
    assert is_arithmetic(answer)
    assert is_formula(answer)


@pytest.mark.parametrize(
    "answer",
    ["2**3", "9^9", "x", "5!", "1,2;3", "factorial(9)", "9" * 30, "(" * 30 + "1" + ")" * 30,
     "1+" * 400 + "1", "(1,2)", "1)+(2", "0x10", "1_0", "1e9", "__a__", "'a'"],
)  # fmt: skip
def test_only_sums_are_arithmetic(answer: str) -> None:
    assert not is_arithmetic(answer)


@pytest.mark.parametrize(
    "answer",
    ["x**2 - 3*x + C", "sin(x)**2/2 + C", "-exp(-2*x)/4", "x**(3/2)", "log(x + 1)", "2*x*y**2",
     "(x + 1)**5", "x^2", "sqrt(x)*x**-2"],
)  # fmt: skip
def test_formula_is_accepted(answer: str) -> None:
    assert is_formula(answer)


@pytest.mark.parametrize(
    "answer",
    ["9**9**9", "(9**9)**9", "9**(9**9)", "x**99", "x**(9*99)", "((x**9))**9", "2**-(3**20)",
     "eval(x)", "gamma(x)", "Sum(x)", "import os", "x.y", "x!", "open", "[x]", "'x'"],
)  # fmt: skip
def test_large_powers_and_other_names_are_not_formulas(answer: str) -> None:
    assert not is_formula(answer)


@given(st.text(max_size=80), st.sampled_from(EVALUATED))
def test_any_text_gets_a_verdict(answer: str, dataset: str) -> None:
    assert is_safe(dataset, answer) in (True, False)
    assert is_safe("chain_sum", answer)


@REASONING_GYM.mark
def test_small_damage_to_a_right_formula_never_raises() -> None:
    rng = random.Random(1)
    env = ReasoningGymEnv(dataset="polynomial_multiplication", size=30)
    source: Any = env.tasks
    for index in range(30):
        entry = source.entry(source.task(index))
        answer = entry["answer"]
        at = rng.randrange(len(answer))
        damaged = answer[:at] + rng.choice("()*x9^-!") + answer[at:]
        assert 0.0 <= source.score(damaged, entry).score <= 1.0
        assert source.score(answer, entry).score == 1.0
