"""Rewritten histories with templates, tools, images and limits: each token keeps one owner."""

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.branching import IMAGES, SUMMARY, TURNS, Screens, reply
from fakes.budget import examples
from fakes.history_campaign import OPERATIONS, run_family
from fakes.policy_runs import (
    LAST_TWO,
    Long,
    assert_played,
    assert_sound,
    assert_verifies,
    run,
    setting_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.env import Capabilities, PolicyContext, Turn
from envkit.messages import Message, message
from envkit.rollout import HistoryView, Limits, Question, RetryBudget
from envkit.rollout.history import HistoryPolicy, history_policy
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


def twice(view: HistoryView) -> list[Message] | None:
    """Show the same message object twice."""
    if len(view.messages) < 6:
        return None
    return [
        *view.opening,
        view.messages[-2],
        view.messages[-1],
        view.messages[-2],
        view.messages[-1],
    ]


async def test_policy_may_show_one_message_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(_: str) -> HistoryPolicy:
        return twice

    monkeypatch.setattr(history_policy.__module__ + "._imported", imported)
    trajectory = await run("mine:policy")
    assert_sound(trajectory)
    assert trajectory.branches


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


async def test_summary_that_does_not_fit_truncates_with_its_reward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(view: HistoryView) -> Question | None:
        if view.turn != 3:
            return None
        return Question(
            text="Summarise.",
            max_tokens=20,
            rewrite=lambda text: [*view.opening, message("user", text * 500)],
        )

    trajectory = await run(setting_of(monkeypatch, ask), limits=Limits(max_context_tokens=400))
    assert trajectory.stop_reason is StopReason.CONTEXT_TOKENS
    assert trajectory.reward == 3.0
    assert_verifies(trajectory, tmp_path)


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
