"""Calls of a history policy: one that raises, hangs or is asynchronous faults its own episode."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.branching import Screens, reply
from fakes.policy_runs import (
    QUICK,
    HiddenError,
    assert_history_fault,
    assert_played,
    run,
    setting_of,
)
from fakes.templates import make_codec

from envkit.env import Turn
from envkit.errors import ConfigurationError, FaultKind, type_name
from envkit.messages import Message, message, text_of
from envkit.rollout import (
    EpisodeSpec,
    HistoryView,
    Limits,
    Player,
    Question,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
)


def vandalise(view: HistoryView) -> None:
    """Change everything that can be changed."""
    for entry in (*view.opening, *view.messages):
        if isinstance(entry["content"], list):
            entry["content"].clear()
        entry["role"] = "assistant"
        entry["content"] = "vandalised"
        entry["tool_calls"] = [{}]


async def test_policy_cannot_change_the_record(tmp_path: Path) -> None:
    trajectory = await run(f"{__name__}:vandalise", images=True)
    assert_played(trajectory, tmp_path)
    plain = await run("keep", images=True)
    assert trajectory.messages == plain.messages
    assert [one.train_ids for one in trajectory.segments] == [
        one.train_ids for one in plain.segments
    ]


async def test_policy_cannot_change_the_record_through_its_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Message] = []

    def keeper(view: HistoryView) -> Sequence[Message] | None:
        for entry in given:
            entry["content"] = "changed after it was returned"
        if len(view.messages) < 6:
            return None
        given[:] = [*view.opening, message("user", "Go on."), view.messages[-1]]
        return given

    trajectory = await run(setting_of(monkeypatch, keeper))
    assert_played(trajectory, tmp_path)
    assert trajectory.branches
    assert "changed after" not in repr(trajectory.branches) + repr(trajectory.messages)


async def test_changed_message_is_recorded_as_the_policys_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def edit(view: HistoryView) -> Sequence[Message] | None:
        if len(view.messages) < 6:
            return None
        view.messages[-2]["content"] = "edited in place"
        return [*view.opening, *view.messages[-2:]]

    trajectory = await run(setting_of(monkeypatch, edit))
    assert_played(trajectory, tmp_path)
    assert all(text_of(entry) != "edited in place" for entry in trajectory.messages)
    first = trajectory.branches[0].history
    assert [type(one) for one in first] == [int, int, dict, int]


async def test_policy_may_show_images_of_the_opening_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def toggle(view: HistoryView) -> Sequence[Message] | None:
        if view.turn == 2:
            return [message("user", "No images."), view.messages[-2], message("user", "Next.")]
        if view.turn == 4:
            return [*view.opening, *view.messages[-2:]]
        return None

    trajectory = await run(setting_of(monkeypatch, toggle), images=True)
    assert_played(trajectory, tmp_path)
    assert len(trajectory.branches) == 2


RELEASE = threading.Event()


def sleep(view: HistoryView) -> None:
    RELEASE.wait(30)


def spin(view: HistoryView) -> None:
    while not RELEASE.is_set():
        pass


def ask_and_sleep(view: HistoryView) -> Question:
    return Question(text="Summarise.", max_tokens=20, rewrite=sleep)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["sleep", "spin", "ask_and_sleep"])
async def test_policy_that_hangs_faults_its_episode(policy: str, tmp_path: Path) -> None:
    RELEASE.clear()
    async with asyncio.timeout(20):  # of 30 s that the policy sleeps
        trajectory = await run(f"{__name__}:{policy}", retries=QUICK)
    RELEASE.set()
    assert_history_fault(trajectory, "longer than its 0.3 s", tmp_path)
    assert trajectory.fault is not None
    assert trajectory.fault.kind is FaultKind.TIMEOUT
    assert "step_timeout_s" in trajectory.fault.message


@pytest.mark.slow
async def test_hanging_policies_leave_threads_for_other_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang_if_odd(view: HistoryView) -> None:
        if "odd" in text_of(view.opening[-1]):
            RELEASE.wait(30)

    class Odd(Screens):
        def on_reset(self, task: Any) -> Turn:
            return Turn("odd" if task["odd"] else "even")

    codec = make_codec("qwen3")
    config = RolloutConfig(
        history=setting_of(monkeypatch, hang_if_odd),
        retries=RetryBudget(step_timeout_s=6, max_episode_restarts=0),
    )
    player = Player(ScriptedEngine(codec, reply), codec, config)
    ended: list[bool] = []

    async def play(number: int) -> None:
        spec = EpisodeSpec(seed=number, task={"odd": number % 2})
        (trajectory,) = await player.play(Odd(), spec)
        ended.append(trajectory.fault is not None)

    RELEASE.clear()
    await asyncio.gather(*(play(number) for number in range(40)))
    await player.aclose()
    RELEASE.set()
    assert ended == [False] * 20 + [True] * 20


@pytest.mark.slow
async def test_episode_deadline_during_a_policy_is_a_fault(tmp_path: Path) -> None:
    RELEASE.clear()
    trajectory = await run(f"{__name__}:sleep", limits=Limits(episode_timeout_s=3))
    RELEASE.set()
    assert_history_fault(trajectory, "episode", tmp_path)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Weird(BaseException):
    pass


@pytest.mark.parametrize("when", ["policy", "rewrite"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(),
        Weird(),
        Unprintable(),
        HiddenError(),
        ConfigurationError("not mine"),
        RecursionError("deep"),
        MemoryError(),
    ],
    ids=type_name,
)
async def test_policy_that_raises_faults_its_episode(
    error: BaseException, when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def throw(_: object) -> Any:
        raise error

    def ask(view: HistoryView) -> Question:
        return Question(text="Summarise.", max_tokens=20, rewrite=throw)

    policy = throw if when == "policy" else ask
    trajectory = await run(setting_of(monkeypatch, policy))
    assert_history_fault(trajectory, type_name(error), tmp_path)


async def test_fault_of_a_policy_that_raises_says_what_was_raised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(view: HistoryView) -> None:
        raise KeyError("no such screen")

    trajectory = await run(setting_of(monkeypatch, fail), images=True)
    assert_history_fault(trajectory, "no such screen", tmp_path)


@pytest.mark.parametrize("when", ["policy", "rewrite"])
@pytest.mark.slow
async def test_coroutine_is_refused_without_a_warning(
    when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def later() -> None:
        """Never run."""

    def ask(view: HistoryView) -> Question:
        return Question(text="Summarise.", max_tokens=20, rewrite=lambda _: later())  # type: ignore[arg-type,return-value]

    def answer(view: HistoryView) -> Any:
        return later()

    policy = answer if when == "policy" else ask
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trajectory = await run(setting_of(monkeypatch, policy))
        gc.collect()
    assert_history_fault(trajectory, "must not be async", tmp_path)
