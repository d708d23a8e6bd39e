"""Rewards of terms: weights, gates, exact sums, and terms that fail."""

import asyncio
import math
import random
import threading
from contextvars import ContextVar
from dataclasses import replace

import pytest
from fakes.virtual_time import skip
from fakes.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from envkit import EnvFault, FaultKind
from envkit.env import Env, Turn
from envkit.errors import ConfigurationError, ContractError, UnknownNameError
from envkit.messages import message
from envkit.rewards import Gate, RewardContext, Rewards, Term
from envkit.rewards.rewards import _MAX_THREADS
from envkit.tasks import Task

CONTEXT = RewardContext(task={"answer": "42"}, answer="42")


def worth(name: str, value: float, **options: object) -> Term:
    return Term(name=name, score=lambda _: value, **options)  # type: ignore[arg-type]


def is_right(context: RewardContext) -> bool:
    return context.answer == context.task["answer"]


def test_terms_are_weighted_and_add_up() -> None:
    reward = Rewards(worth("right", 1.0), worth("length", 4, weight=-0.25)).score(CONTEXT)

    assert reward.terms == {"right": 1.0, "length": -1.0}
    assert reward.scores == {"right": 1.0, "length": 4.0}
    assert reward.total == 0.0


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3)), min_size=1, max_size=12),
    st.randoms(),
)
def test_the_total_is_exact_in_any_order(
    pairs: list[tuple[float, float]], rng: random.Random
) -> None:
    terms = [worth(str(n), score, weight=weight) for n, (score, weight) in enumerate(pairs)]
    reward = Rewards(*terms).score(CONTEXT)
    rng.shuffle(terms)

    assert reward.total == Rewards(*terms).score(CONTEXT).total
    assert reward.total == math.fsum(reward.terms.values())
    assert asyncio.run(Rewards(*terms).ascore(CONTEXT)).total == reward.total


def test_a_gate_opens_by_an_earlier_score_or_by_the_context() -> None:
    rewards = Rewards(
        worth("format", 0.5, weight=0.0),
        worth("half", 1.0, gate=Gate(term="format", at_least=0.5)),
        worth("full", 1.0, gate=Gate(term="format")),
        worth("behind", 1.0, gate=Gate(term="full", at_least=-1.0)),
        Term(name="answered", score=is_right, gate=lambda context: context.answer == "42"),
        Term(name="silent", score=is_right, gate=lambda context: not context.answer),
    )

    reward = rewards.score(CONTEXT)

    assert reward.terms == {
        "format": 0.0,
        "half": 1.0,
        "full": 0.0,
        "behind": 0.0,
        "answered": 1.0,
        "silent": 0.0,
    }
    assert [name for name, score in reward.scores.items() if score is None] == [
        "full",
        "behind",
        "silent",
    ]


async def test_a_closed_gate_computes_nothing_and_waits_for_nothing() -> None:
    asked: list[str] = []

    def ask(name: str, value: float, **options: object) -> Term:
        async def score(context: RewardContext) -> float:
            asked.append(name)
            await until(lambda: len(asked) >= 2)  # neither waits for the other's answer
            return value

        return Term(name=name, score=score, **options)  # type: ignore[arg-type]

    rewards = Rewards(
        ask("first", 0.0),
        ask("second", 1.0),
        ask("third", 1.0, gate=Gate(term="first")),
        ask("fourth", 1.0, gate=Gate(term="second")),
    )

    reward = await rewards.ascore(CONTEXT)

    assert reward.terms == {"first": 0.0, "second": 1.0, "third": 0.0, "fourth": 1.0}
    assert list(reward.terms) == ["first", "second", "third", "fourth"]
    assert asked == ["first", "second", "fourth"]


async def test_synchronous_scores_do_not_hold_up_the_event_loop() -> None:
    begun, released = threading.Event(), threading.Event()

    def score(context: RewardContext) -> float:
        begun.set()
        return float(released.wait(120))

    scoring = asyncio.create_task(Rewards(Term(name="slow", score=score)).ascore(CONTEXT))
    await until(begun.is_set)
    released.set()
    assert (await scoring).total == 1.0


class StopsEarly:
    """A score that is an object, and asynchronous."""

    async def __call__(self, context: RewardContext) -> float:
        return 0.5


async def test_any_form_of_a_score_is_awaited() -> None:
    async def half(context: RewardContext) -> float:
        return 0.5

    rewards = Rewards(
        Term(name="function", score=half),
        Term(name="plain function", score=lambda context: half(replace(context, answer=""))),
        Term(name="object", score=StopsEarly()),
    )
    assert (await rewards.ascore(CONTEXT)).total == 1.5


@pytest.mark.parametrize("error", [KeyError("x"), StopIteration(), TimeoutError(), OSError("gone")])
async def test_a_score_that_raises_is_a_grader_fault(error: Exception) -> None:
    def broken(context: RewardContext) -> float:
        raise error

    rewards = Rewards(worth("fine", 1.0), Term(name="broken", score=broken))
    for score in (lambda: rewards.score(CONTEXT), lambda: asyncio.run(rewards.ascore(CONTEXT))):
        with pytest.raises(EnvFault, match="reward term 'broken' failed") as caught:
            await asyncio.to_thread(score)
        assert caught.value.kind is FaultKind.GRADER


async def test_a_fault_keeps_its_kind_and_cancels_the_others() -> None:
    cancelled = asyncio.Event()

    async def slow(context: RewardContext) -> float:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1.0

    async def away(context: RewardContext) -> float:
        await asyncio.sleep(0.01)
        raise EnvFault("away", kind=FaultKind.TRANSIENT)

    with pytest.raises(EnvFault, match="away") as caught:
        await Rewards(Term(name="slow", score=slow), Term(name="away", score=away)).ascore(CONTEXT)

    assert caught.value.kind is FaultKind.TRANSIENT
    assert cancelled.is_set()


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", [1.0]])
def test_a_score_that_is_not_finite_breaks_the_contract(value: object) -> None:
    rewards = Rewards(Term(name="odd", score=lambda _: value))  # type: ignore[arg-type, return-value]

    with pytest.raises(ContractError, match="'odd' must return a finite number"):
        rewards.score(CONTEXT)


def test_a_gate_that_raises_is_a_grader_fault() -> None:
    term = Term(name="x", score=is_right, gate=lambda context: context.task["missing"])
    rewards = Rewards(term)

    with pytest.raises(EnvFault, match="reward term 'x' failed: KeyError"):
        rewards.score(CONTEXT)


def test_wrong_terms_are_refused() -> None:
    async def score(context: RewardContext) -> float:
        return 1.0

    with pytest.raises(ConfigurationError, match="at least one term"):
        Rewards()
    with pytest.raises(ConfigurationError, match="two reward terms are named 'a'"):
        Rewards(worth("a", 1.0), worth("a", 1.0))
    with pytest.raises(UnknownNameError, match="Did you mean 'format'"):
        Rewards(worth("format", 1.0), worth("b", 1.0, gate=Gate(term="formal")))
    with pytest.raises(UnknownNameError):  # a later term
        Rewards(worth("a", 1.0, gate=Gate(term="b")), worth("b", 1.0))
    with pytest.raises(ConfigurationError, match="needs a name"):
        worth("", 1.0)
    with pytest.raises(ConfigurationError, match="must be finite"):
        worth("a", 1.0, weight=math.nan)
    with pytest.raises(ConfigurationError, match="await ascore"):
        Rewards(Term(name="a", score=score)).score(CONTEXT)
    with pytest.raises(ConfigurationError, match="await ascore"):
        Rewards(Term(name="a", score=lambda context: score(replace(context)))).score(CONTEXT)


def test_rewards_are_made_of_functions_terms_and_lists() -> None:
    assert Rewards.of(is_right).score(CONTEXT).terms == {"is_right": 1.0}
    assert Rewards.of(lambda _: 0.5).score(CONTEXT).terms == {"reward": 0.5}
    assert Rewards.of([worth("a", 1), worth("b", 2)]).score(CONTEXT).total == 3.0
    for wrong in ("right", 3, [is_right]):
        with pytest.raises(ConfigurationError):
            Rewards.of(wrong)  # type: ignore[arg-type]


class GuessEnv(Env):
    """A synchronous environment that composes its reward."""

    rewards = Rewards(
        worth("tried", 1.0, weight=0.25), Term(name="right", score=lambda c: c.answer == "7")
    )

    def on_reset(self, task: Task) -> Turn:
        return Turn("Guess.")

    def on_turn(self, response_text: str) -> Turn:
        reward = self.rewards.score(RewardContext(task=self.task, answer=response_text))
        info = {"reward_terms": reward.terms}
        return Turn("Over.", reward=reward.total, done=True, info=info)


def test_a_synchronous_environment_uses_the_same_terms() -> None:
    env = GuessEnv()
    env.reset(seed=0)

    step = env.step("7")

    assert step.reward == 1.25
    assert step.info["reward_terms"] == {"tried": 0.25, "right": 1.0}


def as_number(context: RewardContext) -> float:
    return float(float(context.answer) == float(context.task["answer"]))


def by_hand(context: RewardContext) -> float:
    return 1.0 / context.info["calls"]


@pytest.mark.parametrize(
    "answer", ["", "forty-two", "\x00", "\ud800", "4" * 5000 + "x", "1e400", "nan", "[" * 10_000]
)
async def test_an_answer_that_makes_a_term_fail_scores_0(answer: str) -> None:
    """The value of the second term would be NaN or infinite for some of them."""
    distance = Term(name="distance", score=lambda c: 1.0 - abs(float(c.answer) - 42), weight=0.5)
    rewards = Rewards(worth("fine", 1.0), Term(name="right", score=as_number), distance)
    context = replace(CONTEXT, answer=answer)

    for reward in (rewards.score(context), await rewards.ascore(context)):
        assert reward.total == 0.0
        assert reward.terms == {"fine": 0.0, "right": 0.0, "distance": 0.0}
        assert "failed: " in reward.info()["ungraded"]
    assert rewards.score(replace(CONTEXT, answer="42")).total == 2.5


async def test_a_term_is_computed_once_per_task_for_a_policy_that_does_nothing() -> None:
    seen: list[RewardContext] = []

    async def picky(context: RewardContext) -> float:
        seen.append(context)
        return 1.0 / (len(context.messages) < 3)

    rewards = Rewards(Term(name="picky", score=picky, gate=lambda context: context.answer == "x"))
    said = (message("user", "Q"), message("assistant", "a"), message("user", "b"))
    context = RewardContext(task={"prompt": "Q"}, answer="x", messages=said)
    assert [(await rewards.ascore(context)).total for _ in range(3)] == [0.0] * 3
    assert [one.messages for one in seen if one.answer == ""] == [
        (message("user", "Q"), message("assistant", ""))
    ]
    assert len(seen) == 4


def test_the_untouched_context_decides_who_is_at_fault() -> None:
    rewards = Rewards(Term(name="share", score=by_hand))
    context = replace(CONTEXT, info={"calls": 0})

    with pytest.raises(EnvFault, match="fails on untouched state too: reward term 'share'"):
        rewards.score(context)
    other = Rewards(Term(name="share", score=by_hand))
    reward = other.score(context, untouched=replace(CONTEXT, info={"calls": 1}))
    assert (reward.total, reward.scores) == (0.0, {"share": None})


def test_a_gate_that_only_one_answer_breaks_scores_0() -> None:
    gated = Term(name="x", score=is_right, gate=lambda context: int(context.answer) > 0)

    assert Rewards(gated).score(replace(CONTEXT, answer="none")).total == 0.0


class RefusedError(Exception):
    status_code = 400


@pytest.mark.parametrize(
    ("cause", "is_fault"),
    [
        (ConnectionRefusedError("nobody listens"), True),
        (BrokenPipeError("the program did not read"), False),
        (RefusedError("too long"), False),
        (TimeoutError("too slow"), False),
        (SystemExit(1), False),
    ],
)
async def test_a_server_that_fails_is_never_a_score(cause: BaseException, is_fault: bool) -> None:
    def ask(context: RewardContext) -> float:
        if not context.answer:
            return 0.0
        if isinstance(cause, SystemExit):
            raise cause
        raise RuntimeError("no verdict") from cause

    rewards = Rewards(Term(name="asked", score=ask))
    if is_fault:
        with pytest.raises(EnvFault, match="no verdict"):
            await rewards.ascore(CONTEXT)
    else:
        assert (await rewards.ascore(CONTEXT)).total == rewards.score(CONTEXT).total == 0.0


async def test_a_score_that_hangs_on_one_answer_scores_0_and_holds_up_nobody() -> None:
    release, hung = threading.Event(), list[str]()

    def stuck(context: RewardContext) -> float:
        if context.answer == "bomb":
            hung.append(context.answer)
            release.wait(120)
        return float(context.answer == "42")

    rewards = Rewards(Term(name="stuck", score=stuck, timeout_s=60))
    contexts = [replace(CONTEXT, answer="bomb") for _ in range(3 * _MAX_THREADS)]
    scoring = asyncio.gather(*(rewards.ascore(one) for one in (*contexts, CONTEXT)))
    try:
        for times in (1, 2, 3):
            await until(lambda times=times: len(hung) == times * _MAX_THREADS)
            skip(60)
        found = await scoring
    finally:
        release.set()
    assert [one.total for one in found] == [0.0] * len(contexts) + [1.0]
    assert "longer than its 60 s" in str(found[0].failure)


async def test_a_score_that_always_hangs_is_a_grader_fault() -> None:
    release, calls = threading.Event(), list[str]()

    def stuck(context: RewardContext) -> float:
        calls.append(context.answer)
        return float(release.wait(120))

    try:
        with pytest.raises(EnvFault, match="untouched"):
            await Rewards(Term(name="stuck", score=stuck, timeout_s=0.1)).ascore(CONTEXT)
    finally:
        release.set()
    assert calls == ["42", ""]


async def test_a_score_on_a_thread_sees_the_context_of_its_caller() -> None:
    number = ContextVar("number", default=0)
    number.set(3)
    rewards = Rewards(Term(name="number", score=lambda context: number.get()))

    assert (await rewards.ascore(CONTEXT)).total == 3.0


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan])
def test_a_term_without_time_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s must be above 0"):
        Term(name="x", score=is_right, timeout_s=seconds)
