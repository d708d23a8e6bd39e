"""Rewritten histories with templates, tools, images and limits: each token keeps one owner."""

import asyncio
import gc
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.branching import IMAGES, SUMMARY, TURNS, Screens, reply
from fakes.budget import examples
from fakes.history_campaign import OPERATIONS, run_family
from fakes.policy_runs import (
    LAST_TWO,
    NO_RESTART,
    HiddenError,
    Long,
    assert_history_fault,
    assert_played,
    assert_sound,
    run,
    setting_of,
)
from fakes.templates import make_codec
from fakes.virtual_time import skip, skip_from_thread
from fakes.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.env import Capabilities, PolicyContext, Turn
from envkit.errors import ConfigurationError, FaultKind, describe, type_name
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
from envkit.trajectory import StopReason
from envkit.trajectory.sequence import branch_history


class ToolScreens(Screens):
    """Answers in messages of tools."""

    def on_turn(self, response_text: str) -> Turn:
        return Turn(f"Result {self.turn}.", role="tool", reward=1.0)


class Picky(Screens):
    """Understands every second attempt only."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)
    attempts: ClassVar[dict[int, int]] = {}

    def on_turn(self, response_text: str) -> Turn:
        if response_text.startswith("Bad"):
            return Turn("What?", reward=0.0, info={"parse_error": "bad"})
        return super().on_turn(response_text)


class Wavering:
    """Says something that does not parse at the first attempt of each turn."""

    def __init__(self) -> None:
        self.last = -1

    def __call__(self, context: PolicyContext) -> str:
        text = reply(context)
        if context.turn == self.last or text.startswith("I saw"):
            return text
        self.last = context.turn
        return f"Bad {text}"


@pytest.mark.parametrize("history", [SUMMARY, TURNS], ids=["summarise", "turns"])
@pytest.mark.parametrize("env", [Screens, ToolScreens])
@pytest.mark.parametrize("template", ["gemma3", "mistral-7b", "qwen2.5", "qwen3"])
async def test_rewrites_fit_templates(template: str, env: type[Screens], history: Any) -> None:
    trajectory = await run(history, env=env(), template=template)
    assert_sound(trajectory)
    assert trajectory.branches
    assert trajectory.reward == 6.0


@pytest.mark.parametrize("history", [SUMMARY, TURNS], ids=["summarise", "turns"])
async def test_resampled_replies_survive_a_rewrite(history: Any) -> None:
    trajectory = await run(
        history,
        env=Picky(),
        script=Wavering(),
        retries=RetryBudget(resample_on_parse_error=1),
    )
    assert_sound(trajectory)
    assert trajectory.branches
    assert trajectory.reward == 6.0
    assert sum(turn.resamples for turn in trajectory.turns) == 6


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_max_images_counts_what_the_model_sees(limit: int) -> None:
    trajectory = await run(IMAGES, images=True, limits=Limits(max_images=limit))
    assert_sound(trajectory)
    ended = StopReason.MAX_IMAGES if limit == 1 else StopReason.ENV_TRUNCATED
    assert trajectory.stop_reason is ended


@pytest.mark.parametrize(
    "history",
    [
        "keep",
        {"keep_last_turns": {"keep": 1, "drop_at": 2}},
        {"keep_last_turns": {"keep": 1, "drop_at": 3}},
        {"summarise": {"at_tokens": 60, "max_tokens": 20}},
        {"summarise": {"at_tokens": 250, "max_tokens": 20}},
        LAST_TWO,
    ],
    ids=str,
)
async def test_long_observation_is_shortened_for_any_history(history: Any, tmp_path: Path) -> None:
    Long.rooms.clear()
    trajectory = await run(history, env=Long(), limits=Limits(max_context_tokens=320))
    assert Long.rooms
    assert trajectory.stop_reason is StopReason.ENV_TRUNCATED
    assert_played(trajectory, tmp_path)
    for sequence in trajectory.sequences():
        assert len(sequence.train_ids()) <= 320


async def test_context_limit_counts_each_sequence_alone(tmp_path: Path) -> None:
    def shown(limit: int | None) -> Any:
        return run(LAST_TWO, limits=Limits(max_context_tokens=limit))

    whole = await shown(None)
    longest = max(len(one.train_ids()) for one in whole.sequences())
    assert sum(len(one.train_ids()) for one in whole.sequences()) > 2 * longest
    assert_played(await shown(longest + 1), tmp_path)


class Tools(Screens):
    """Answers a call in each turn."""

    def on_turn(self, response_text: str) -> Turn:
        call = {"name": "look", "arguments": {"turn": self.turn}, "id": None}
        return Turn(f"Result {self.turn}.", role="tool", reward=1.0, info={"tool_call": call})


def call_tool(context: PolicyContext) -> str:
    arguments = f'{{"name": "look", "arguments": {{"turn": {context.turn}}}}}'
    return f"Look. <tool_call>\n{arguments}\n</tool_call>"


@pytest.mark.parametrize(
    "template",
    ["deepseek-r1", "glm4moe", "gpt-oss", "llama3.1", "mistral-nemo", "phi3", "qwen3", "smollm2"],
)
@pytest.mark.slow
async def test_kept_tool_results_follow_their_calls_in_every_template(
    template: str, tmp_path: Path
) -> None:
    history = {"keep_last_turns": {"keep": 2, "drop_at": 3}}
    trajectory = await run(history, env=Tools(), template=template, script=call_tool)
    assert_played(trajectory, tmp_path)
    assert trajectory.branches
    for branch in trajectory.branches:
        roles = [entry["role"] for entry in branch_history(branch, trajectory.messages)]
        assert roles[:3] == ["system", "user", "assistant"]
        needs_calls = template in ("gpt-oss", "mistral-nemo", "phi3")
        assert set(roles[3::2]) == {"user" if needs_calls else "tool"}


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(1_000_000, 2**31), operations=st.integers(5, 40))
def test_history_keeps_one_owner_for_each_token(seed: int, operations: int) -> None:
    run_family(seed, Counter(), operations)


@pytest.mark.slow
def test_history_keeps_one_owner_over_many_families() -> None:
    counts: Counter[str] = Counter()
    for seed in range(300):
        run_family(seed, counts)
    assert all(counts[name] for name in OPERATIONS)
    assert sum(counts[name] for name in OPERATIONS) >= 12_000


# ---- calls of a history policy: one that raises, hangs or is asynchronous faults its own episode


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
STEP_S = 60.0
"""A policy that does not hang takes less on any machine."""


class Clock:
    """Where policies that hang find the clock that decides whether they are late."""

    loop: ClassVar[asyncio.AbstractEventLoop]


def sleep(view: HistoryView) -> None:
    skip_from_thread(Clock.loop, STEP_S)
    RELEASE.wait(120)


def spin(view: HistoryView) -> None:
    skip_from_thread(Clock.loop, STEP_S)
    while not RELEASE.is_set():
        pass


def ask_and_sleep(view: HistoryView) -> Question:
    return Question(text="Summarise.", max_tokens=20, rewrite=sleep)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["sleep", "spin", "ask_and_sleep"])
async def test_policy_that_hangs_faults_its_episode(policy: str, tmp_path: Path) -> None:
    RELEASE.clear()
    Clock.loop = asyncio.get_running_loop()
    retries = replace(NO_RESTART, step_timeout_s=STEP_S)
    trajectory = await run(f"{__name__}:{policy}", retries=retries)
    RELEASE.set()
    assert_history_fault(trajectory, "longer than its 60 s", tmp_path)
    assert trajectory.fault is not None
    assert trajectory.fault.kind is FaultKind.TIMEOUT
    assert "step_timeout_s" in trajectory.fault.message


@pytest.mark.slow
async def test_hanging_policies_leave_threads_for_other_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang_if_odd(view: HistoryView) -> None:
        if "odd" in text_of(view.opening[-1]):
            RELEASE.wait(120)

    class Odd(Screens):
        def on_reset(self, task: Any) -> Turn:
            return Turn("odd" if task["odd"] else "even")

    codec = make_codec("qwen3")
    config = RolloutConfig(
        history=setting_of(monkeypatch, hang_if_odd),
        retries=replace(NO_RESTART, step_timeout_s=STEP_S),
    )
    player = Player(ScriptedEngine(codec, reply), codec, config)
    ended: list[bool] = []

    async def play(number: int) -> None:
        spec = EpisodeSpec(seed=number, task={"odd": number % 2})
        (trajectory,) = await player.play(Odd(), spec)
        ended.append(trajectory.fault is not None)

    RELEASE.clear()
    playing = asyncio.gather(*(play(number) for number in range(40)))
    await until(lambda: len(ended) == 20)
    while not playing.done():
        skip(STEP_S)
        await asyncio.sleep(0.02)
    await player.aclose()
    RELEASE.set()
    assert ended == [False] * 20 + [True] * 20


@pytest.mark.slow
async def test_episode_deadline_during_a_policy_is_a_fault(tmp_path: Path) -> None:
    RELEASE.clear()
    Clock.loop = asyncio.get_running_loop()
    trajectory = await run(f"{__name__}:sleep", limits=Limits(episode_timeout_s=STEP_S))
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
        KeyError("no such screen"),
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
    assert_history_fault(trajectory, describe(error), tmp_path)


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
