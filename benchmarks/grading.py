"""Measure what a hostile answer costs each grader; the goal is at most 5 ms of CPU time.

Every answer below is given at several lengths, up to the maximum that the environment passes to its
grader. The figure of an answer is the fastest of three tries, so a busy machine changes little. The
worst answer of each grader is printed. Replies of 16,000 characters made of the same pieces are
also parsed, as are the longest accepted replies, with a goal of 2 s. `--all` grades with every
dataset of reasoning-gym instead of a few.

First, the geometry grader gets the cases of its policy (docs/environments/geo3k.md), which measures
differing verdicts and time. Goals: no wrong answer passes, at most 2% of right ones are rejected, a
median of 0.1 ms. `--others` also gives the cases to math-verify and mathruler, if installed, with a
limit of 2 s each; the bombs are excluded because these libraries hang on them.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from harness import print_figures, quiet, run, sized

from envkit.reply import Reply
from envkit_geo3k import grade as grade_geometry
from envkit_geo3k.answer_text import last_boxed
from envkit_reasoning_gym.answer_guard import is_formula, is_plain
from envkit_search import protocol
from envkit_search.grading import facts_of, grade, grade_compat, holds
from envkit_search.prompts import SEARCH

GOAL_MS: Final = 5.0
LONGEST_GOAL_MS: Final = 2000.0
"""Goal for the longest accepted reply; quadratic work would take minutes."""
TRIES: Final = 3
REPLY: Final = 16_000
OTHERS_SECONDS: Final = 2.0
POLICY_CASES: Final = Path(__file__).parents[1] / "tests/envs/envkit_geo3k/geo3k_answers.jsonl"
PIECES: Final = (
    "(", "((", "[", "{", "()", "{}", "[1,", "(1,", '{"a":', "1", "9", "9**", "9^", "9^9^", "-", "+",
    "--", "1+", "1-", "1*", "1/", "1.", "1,", "1,000,", "1 ", " ", "\n", "\t", "a", "a ", "a the ",
    "x", "x=", "=", "==", "1=", "1:", ":", ",", ".", "..", "e", "1e", "1e9", "0x", "%", "!", "'",
    '"', "\\", "\\frac", "\\frac{", "\\frac{1}{", "\\frac12", "\\sqrt", "\\sqrt{", "\\sqrt[3]{",
    "\\text{", "\\text{a}", "\\text{\\text{", "\\left(", "\\boxed", "\\boxed{", "\\boxed{{",
    "\\boxed{}", "\\fbox", "\\fbox{", "\\boxed \\fbox", "\\boxed{1}x", "\\approx", "\\pi",
    "\\sin", "sin ", "sin(", "sin^2 ", "x+1)*(", "+sin(x)", "x*y+",
    "^{\\circ}", "^", "^{", "_{", "$", "\u00b2", "\u221a", "\u00bd", "\u2212", "\u0301", "e\u0301",
    "\ufb03", "\u1e9b\u0323", "\U0001d7d9", "\u0661", "A", "I", "to ", "1 to ", "a.", "m angle ",
    "<answer>", "</answer>", "<search>", "<think>", "<information>", "</think>", "<think></think>",
    "<think><search>", "<search></answer>", "<search>a</search", "<search><answer></search>", "<",
    "< ", "<tool_call>", "<tool_call>{", '{"name": "search", "parameters": {', "and ", "not ",
    "lambda ", "yield ", "True ", "* ", "** ", "~", "&", "|", ">>", "<<9", "factorial(", "gamma(",
    "Sum(", "Integer(9)**", "x**", "sqrt(", "log(", "exp(", "1/0+", "0.1", "\x00", "\ud800",
    "\u202e",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """The most expensive answer of a grader."""

    milliseconds: float
    answer: str
    length: int


def answers(limit: int, pieces: Sequence[str]) -> Iterator[str]:
    """Yield hostile answers of at most `limit` characters, made of the pieces."""
    yield from ("9**9**9**9", "9^9^9^9", "10**10**10", "1e308*10", "factorial(10**7)", "2**(10**8)")
    for piece in pieces:
        for length in (60, 240, 400, limit):
            count = max(1, min(length, limit) // len(piece))
            yield piece * count
            yield "1" + piece * (count - 1)
    for opening, closing in ("()", "[]", "{}"):
        for depth in (20, limit // 2):
            yield opening * depth + "1" + closing * depth


def worst_of(work: Callable[[str], object], limit: int, pieces: Sequence[str]) -> Worst:
    """Return the answer that took longest."""
    worst = Worst(milliseconds=-1.0, answer="", length=0)
    for answer in answers(limit, pieces):
        taken = _milliseconds(work, answer)
        if taken > worst.milliseconds:
            taken = min(taken, *(_milliseconds(work, answer) for _ in range(TRIES - 1)))
        if taken > worst.milliseconds:
            worst = Worst(milliseconds=taken, answer=answer[:16], length=len(answer))
    return worst


def _milliseconds(work: Callable[[str], object], answer: str) -> float:
    started = time.process_time()
    work(answer)
    return 1000 * (time.process_time() - started)


def policy_figures(rounds: int = 5) -> dict[str, float]:
    """Return the geometry grader's figures on the cases of its policy."""
    cases = policy_cases()
    samples: list[float] = []
    for answer, gold, *_ in cases * rounds:
        started = time.perf_counter()
        grade_geometry(answer, gold)
        samples.append(1000 * (time.perf_counter() - started))
    return {
        **verdicts("geo3k", lambda answer, gold: grade_geometry(answer, gold).score == 1, cases),
        "geo3k median ms": round(statistics.median(samples), 4),
        "geo3k 95th percentile ms": round(statistics.quantiles(samples, n=20)[18], 4),
    }


def policy_cases() -> list[tuple[str, str, int, str]]:
    """Return answer, gold, score and rule of every case of the policy."""
    lines = POLICY_CASES.read_text(encoding="utf-8").splitlines()
    return [tuple(json.loads(line)) for line in lines]


def verdicts(
    name: str, accepts: Callable[[str, str], bool], cases: Sequence[tuple[str, str, int, str]]
) -> dict[str, float]:
    """Return how often a grader differs from the policy; an exception counts as a rejection."""
    counts = dict.fromkeys(("right", "right refused", "wrong", "wrong passed", "out of time"), 0.0)
    for answer, gold, score, _ in cases:
        counts["right" if score else "wrong"] += 1
        try:
            accepted = accepts(answer, gold)
        except _OutOfTimeError:
            counts["out of time"] += 1
            continue
        except Exception:  # noqa: BLE001  # other graders raise what their parsers raise
            accepted = False
        if accepted != bool(score):
            counts["right refused" if score else "wrong passed"] += 1
    return {f"{name} {count}": value for count, value in counts.items()}


class _OutOfTimeError(BaseException):
    """Not an `Exception`, which the graders would catch."""


def other_figures() -> dict[str, float]:
    """Return figures of math-verify and mathruler on the same cases, called as in verl."""
    import signal

    from math_verify import (  # pyright: ignore[reportMissingImports]
        ExprExtractionConfig,
        LatexExtractionConfig,
        parse,
        verify,
    )
    from mathruler.grader import grade_answer  # pyright: ignore[reportMissingImports]

    targets = [LatexExtractionConfig(), ExprExtractionConfig()]

    def read(text: str) -> Any:  # noqa: ANN401  # sympy objects
        return parse(text, targets, parsing_timeout=None)

    def math_verify(answer: str, gold: str) -> bool:
        boxed = answer if "\\boxed" in answer else f"\\boxed{{{answer}}}"
        return bool(verify(read(f"${gold}$"), read(boxed), timeout_seconds=None))

    def timed(grader: Callable[[str, str], bool], answer: str, gold: str) -> bool:
        signal.setitimer(signal.ITIMER_REAL, OTHERS_SECONDS)
        try:
            return grader(answer, gold)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def stop(*_: object) -> None:
        raise _OutOfTimeError

    signal.signal(signal.SIGALRM, stop)
    cases = [case for case in policy_cases() if case[3] != "bounds"]
    graders = {"math-verify": math_verify, "mathruler": grade_answer}
    found = (verdicts(name, partial(timed, grader), cases) for name, grader in graders.items())
    return {name: figure for figures in found for name, figure in figures.items()}


def _searched(answer: str) -> object:
    facts = [facts_of(protocol.Action(kind=protocol.ActionKind.ANSWER), answer)]
    accepted = ["Tallinn", "3,141", "the a an", "A" * 400]
    return grade(facts, accepted), grade_compat(facts, accepted), holds(answer, accepted)


def _read_tools(reply: str) -> object:
    return protocol.read_tools(Reply(text=reply), (SEARCH,))


def _read_tags(reply: str) -> object:
    return protocol.read_tags(Reply(text=reply))


READERS: Final[dict[str, Callable[[str], object]]] = {
    "search reply of tags": _read_tags,
    "search reply of Search-R1": protocol.read_tags_compat,
    "search answer in a reply of Search-R1": protocol.last_answer_compat,
    "search reply of tools": _read_tools,
}


def own_graders() -> Iterator[tuple[str, Callable[[str], object], int]]:
    """Yield the graders and parsers of geo3k and search, with their maximum input length."""
    for gold in ("2\\sqrt{3}", "12", "(3, -4)", "2:3"):
        yield f"geo3k answer to {gold}", partial(grade_geometry, gold=gold), 4000
    yield "geo3k box in a reply", last_boxed, REPLY
    yield "search answer", _searched, protocol.MAX_ANSWER_CHARACTERS
    yield from ((name, read, REPLY) for name, read in READERS.items())
    yield "reasoning_gym guard of lists", is_plain, 4000
    yield "reasoning_gym guard of formulas", is_formula, 4000


def reasoning_gym_graders(*, is_all: bool) -> Iterator[tuple[str, Callable[[str], object], int]]:
    """Yield datasets with a grader for their first task."""
    from envkit_reasoning_gym import COLLECTION
    from envkit_reasoning_gym.env import ReasoningGymEnv

    few = ("chain_sum", "countdown", "simple_equations", "polynomial_equations", "sudoku", "jugs",
           "arc_1d", "decimal_arithmetic", "intermediate_integration")  # fmt: skip
    names = [member.rpartition("-v")[0] for member in COLLECTION.members()]
    for name in names if is_all else few:
        env = ReasoningGymEnv(dataset=name, size=4)
        env.reset(seed=0)

        def answered(answer: str, env: ReasoningGymEnv = env) -> object:  # bound now, not later
            return env.on_turn(f"<answer>{answer}</answer>")

        yield f"reasoning_gym/{name}", answered, 4000


def _measured(
    graders: Sequence[tuple[str, Callable[[str], object], int]],
    goal_ms: float,
    pieces: Sequence[str],
) -> Iterator[tuple[str, float]]:
    """Print the worst answer of each grader; yield its milliseconds."""
    for name, work, limit in graders:
        worst = worst_of(work, limit, pieces)
        mark = "" if worst.milliseconds <= goal_ms else "  above the goal"
        print(
            f"{name:48} {worst.milliseconds:9.3f} ms  {worst.answer!r} x {worst.length}{mark}",
            flush=True,
        )
        yield name, round(worst.milliseconds, 3)


def measure(all: bool, others: bool, pieces: int | None) -> dict[str, float]:  # noqa: A002  # the option's name
    """Return the worst answer of every grader."""
    chosen = PIECES[:pieces]
    policy = policy_figures() | (other_figures() if others else {})
    print_figures(policy)
    graders = [*own_graders(), *reasoning_gym_graders(is_all=all)]
    figures = dict(_measured(graders, GOAL_MS, chosen))
    figures["worst ms"] = max(figures.values())
    print(f"{'worst':48} {figures['worst ms']:9.3f} ms")
    longest = [
        (f"longest {name}", read, protocol.MAX_REPLY_CHARACTERS) for name, read in READERS.items()
    ]
    return {**figures, **policy, **dict(_measured(longest, LONGEST_GOAL_MS, chosen))}


if __name__ == "__main__":
    run(
        measure,
        show=quiet,
        all={"action": "store_true", "help": "every dataset of reasoning-gym"},
        others={"action": "store_true", "help": "math-verify and mathruler too"},
        pieces=sized(None, 1, "only the first hostile pieces, if not all"),
    )
