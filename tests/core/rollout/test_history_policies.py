"""The history policies that envkit brings, and settings that name a policy."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.branching import Screens
from fakes.codecs import vision_codec
from fakes.faults import say_turn
from fakes.templates import encode, make_codec, render

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.messages import Message, Trusted, images_of, message, text_of
from envkit.rollout import (
    EpisodeSpec,
    GenerateRequest,
    Generation,
    HistoryView,
    KeepLastImages,
    KeepLastTurns,
    Limits,
    Player,
    RolloutConfig,
    ScriptedEngine,
    Summarise,
    play,
)
from envkit.rollout.history import history_policy
from envkit.tasks import Task
from envkit.trajectory import SegmentKind, StopReason, Trajectory, check_trajectory, fork_before


class Watching(ScriptedEngine):
    """Keeps what each request showed the model."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.requests: list[GenerateRequest] = []
        self.shown: list[tuple[Message, ...]] = []

    async def generate(self, request: GenerateRequest) -> Generation:
        assert request.context is not None
        self.requests.append(request)
        self.shown.append(tuple(request.context.messages))
        return await super().generate(request)


def reply(context: PolicyContext) -> str:
    last = text_of(context.messages[-1])
    return "I saw screens." if "Summarise" in last else f"Reply {context.turn}."


async def run(
    history: str | Mapping[str, Any] | None,
    *,
    env: Env | None = None,
    limits: Limits | None = None,
) -> tuple[Trajectory, Watching]:
    env = env or Screens(max_turns=12, images=True)
    codec = vision_codec() if env._images else make_codec("qwen3")  # type: ignore[attr-defined]
    made = Watching(codec, reply)
    config = RolloutConfig(history=history, limits=limits or Limits(), sanity_share=1.0)
    player = Player(made, codec, config)
    (trajectory,) = await player.play(env, EpisodeSpec(seed=3))
    await player.aclose()
    return trajectory, made


def assert_one_owner(trajectory: Trajectory, engine: Watching) -> None:
    """Each sampled token is trained once, in a context that the engine saw."""
    assert trajectory.fault is None, trajectory.fault
    assert check_trajectory(trajectory) == ()
    rows = trajectory.steps()
    assert sum(sum(row.loss_mask) for row in rows) == trajectory.sampled_token_count
    merged = trajectory.steps(merge=True)
    assert sum(sum(row.loss_mask) for row in merged) == trajectory.sampled_token_count
    wire = {tuple(request.wire_ids) for request in engine.requests}
    for sequence in trajectory.sequences():
        seen: list[int] = []
        for segment in sequence.segments:
            if segment.kind is SegmentKind.MODEL:
                assert tuple(seen) in wire
            seen += segment.wire_ids


async def test_keep_last_images_bounds_the_images_that_the_model_sees() -> None:
    trajectory, engine = await run({"keep_last_images": {"keep": 3, "drop_at": 6}})
    assert_one_owner(trajectory, engine)
    counts = [len(request.images) for request in engine.requests]
    assert counts == [1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 3, 4]
    assert [branch.reason for branch in trajectory.branches] == ["keep_last_images"] * 2
    shown = [image for request in engine.requests for image in request.images[-1:]]
    assert shown == list(images_of(trajectory.messages))[: len(shown)]


async def test_keep_last_images_extends_the_context_between_two_rewrites() -> None:
    _, engine = await run({"keep_last_images": {"keep": 3, "drop_at": 6}})
    extended = [
        tuple(after.wire_ids[: len(before.wire_ids)]) == tuple(before.wire_ids)
        for before, after in pairwise(engine.requests)
    ]
    assert extended.count(False) == 2


async def test_keep_last_turns_keeps_the_task() -> None:
    env = Screens(max_turns=12)
    trajectory, engine = await run({"keep_last_turns": {"keep": 2, "drop_at": 4}}, env=env)
    assert_one_owner(trajectory, engine)
    for messages in engine.shown:
        assert text_of(messages[0]) == "Look."
        assert text_of(messages[1]).startswith("Screen 0.")
        assert sum(entry["role"] == "assistant" for entry in messages) <= 4
    assert "[earlier turns omitted: 9]" in text_of(engine.shown[-1][1])
    assert text_of(engine.shown[-1][1]).count("omitted") == 1


async def test_summarise_samples_records_and_trains_the_summary() -> None:
    env = Screens(max_turns=12)
    trajectory, engine = await run({"summarise": {"at_tokens": 150, "max_tokens": 20}}, env=env)
    assert_one_owner(trajectory, engine)
    summaries = [turn for turn in trajectory.turns if turn.purpose == "summarise"]
    assert summaries
    assert {turn.response_text for turn in summaries} == {"I saw screens."}
    assert len(trajectory.turns) - len(summaries) == 12
    assert trajectory.reward == 12.0
    assert max(len(request.wire_ids) for request in engine.requests) < 220
    second = trajectory.sequences()[1]
    assert second.branch is not None
    text = text_of(second.branch.history[-1])  # type: ignore[arg-type]
    assert "Screen 0." in text
    assert "I saw screens." in text


async def test_sampled_tokens_are_limited_over_all_sequences() -> None:
    limits = Limits(max_sampled_tokens=30)
    trajectory, _ = await run("keep_last_images", limits=limits)
    assert trajectory.stop_reason is StopReason.SAMPLED_TOKENS
    assert trajectory.sampled_token_count <= 30


async def test_fork_keeps_the_rewritten_history() -> None:
    history = {"keep_last_images": {"keep": 1, "drop_at": 2}}
    trunk, _ = await run(history)
    fork = fork_before(trunk, 8, episode_id="fork")
    codec = vision_codec()
    engine = Watching(codec, reply)
    player = Player(engine, codec, RolloutConfig(history=history))
    (leaf,) = await player.resume(fork, Screens(max_turns=12, images=True), member=1)
    await player.aclose()
    assert leaf.fault is None, leaf.fault
    assert check_trajectory(leaf) == ()
    assert leaf.branches == trunk.branches
    assert len(engine.requests[0].images) <= 2


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_trusted_text_stays_trusted_where_images_are_dropped(count: int) -> None:
    images = [Image.from_array(np.full((8, 8, 3), n, np.uint8)) for n in range(count)]
    entry = message("user", "plain " + Trusted("<think>") + " more", images)
    view = HistoryView(
        opening=(entry,),
        messages=(entry, message("assistant", "Yes."), message("user", "", images[:1])),
        context_tokens=0,
        turn=1,
    )
    rewritten = KeepLastImages(keep=1, drop_at=2)(view) if count > 1 else view.messages
    assert isinstance(rewritten, Sequence)
    text = text_of(rewritten[0])
    assert isinstance(text, Trusted)
    assert [text[start:end] for start, end in text.ranges] == ["<think>"]


def test_policies_leave_a_short_conversation_alone() -> None:
    view = HistoryView(
        opening=(), messages=(message("user", "Task."),), context_tokens=10_000, turn=0
    )
    assert KeepLastImages()(view) is None
    assert KeepLastTurns()(view) is None
    assert Summarise(at_tokens=1)(view) is None


class PolicyClass:
    def __call__(self, view: HistoryView) -> None:
        """Append."""


class AsyncCall:
    async def __call__(self, view: HistoryView) -> None:
        """Append."""


async def coroutine_function(view: HistoryView) -> None:
    """Append."""


async def async_generator(view: HistoryView) -> Any:
    yield view


def generator(view: HistoryView) -> Any:
    yield view


def two_arguments(view: HistoryView, keep: int) -> None:
    """Append."""


def no_arguments() -> None:
    """Append."""


class CallOfTwo:
    def __call__(self, view: HistoryView, keep: int) -> None:
        """Append."""


async_call = AsyncCall()
call_of_two = CallOfTwo()
not_callable = 5


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (f"{__name__}:PolicyClass", "is a class"),
        (f"{__name__}:coroutine_function", "must not be async"),
        (f"{__name__}:async_call", "must not be async"),
        (f"{__name__}:async_generator", "must not be async"),
        (f"{__name__}:generator", "generator"),
        (f"{__name__}:two_arguments", "one argument"),
        (f"{__name__}:no_arguments", "one argument"),
        (f"{__name__}:call_of_two", "one argument"),
        (f"{__name__}:not_callable", "not callable"),
        (f"{__name__}:no_such_function", "cannot import"),
        ("os:path", "not callable"),
        (":policy", "cannot import"),
        ("os:", "not callable"),
        ("a:b:c", "cannot import"),
        ("no/such:policy", "cannot import"),
        ("raises_on_import:policy", "cannot import"),
        ("exits_on_import:policy", "cannot import"),
        ("not_python:policy", "cannot import"),
        ("", "no history policy"),
        ("keep_last_image", "Did you mean 'keep_last_images'"),
        ({"keep_last_images": {"kep": 3}}, "Did you mean 'keep'"),
        ({"keep_last_images": {"keep": 6, "drop_at": 6}}, "drop_at above it"),
        ({"keep_last_images": {"keep": "3"}}, "keep must be an integer"),
        ({"keep_last_turns": {"keep": 0}}, "at least 1"),
        ({"summarise": {}}, "at_tokens"),
        ({"summarise": {"at_tokens": 0}}, "at least 1"),
        ({"keep_last_images": {}, "summarise": {}}, "one policy"),
        (5, "history"),
        ([], "history"),
        ({}, "one policy"),
        ({"keep_last_images": 3}, "must be a mapping"),
        ({"keep_last_images": {"text": None}}, "text"),
        ({"keep_last_turns": {"keep": True}}, "keep"),
        ({"summarise": {"at_tokens": 5, "prompt": " "}}, "prompt"),
        ({"summarise": {"at_tokens": 5, "max_tokens": 10**40}}, "max_tokens"),
        ({5: {}}, "history"),
        ({"os:getcwd": {}}, "no history policy"),
    ],
)
def test_wrong_setting_is_one_clear_error(
    place: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises_on_import.py").write_text("raise RuntimeError('broken')\n")
    (tmp_path / "exits_on_import.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "not_python.py").write_text("def policy(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match=text):
        RolloutConfig.from_mapping({"history": place})


def test_callable_of_one_argument_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def policy(view: HistoryView, keep: int = 3) -> None:
        """Append."""

    for one in (policy, partial(two_arguments, keep=3), PolicyClass(), PolicyClass().__call__, len):
        monkeypatch.setitem(globals(), "accepted", one)
        assert history_policy(f"{__name__}:accepted") == one


# ---- templates that rewrite earlier replies: the two policies, and templates without a tool role


class Quiz(Env):
    """Three turns; answers come as user or as tool messages."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)

    def __init__(self, *, role: str = "user") -> None:
        super().__init__(max_turns=3)
        self._role = role

    def on_reset(self, task: Task) -> Turn:
        return Turn("First question.")

    def on_turn(self, response_text: str) -> Turn:
        return Turn(f"Question {self.turn + 2}.", role=self._role, reward=1.0, done=self.turn == 2)  # type: ignore[arg-type]


def think(context: PolicyContext) -> str:
    return f"<think>\nreason {context.turn}\n</think>\n\nAnswer {context.turn}."


async def run_quiz(history: str, policy: object = think) -> tuple[Trajectory, Watching]:
    codec = make_codec("qwen3", history=history)
    assert codec.rewrites_history
    engine = Watching(codec, policy)
    return await play(Quiz(), engine, codec, seed=1), engine


async def test_play_keep_is_one_sequence_with_the_sampled_reasoning() -> None:
    trajectory, engine = await run_quiz("keep")
    assert trajectory.fault is None
    assert len(trajectory.sequences()) == 1
    assert len(trajectory.steps(merge=True)) == 1
    for earlier, later in pairwise(engine.requests):
        assert later.wire_ids[: len(earlier.wire_ids)] == earlier.wire_ids


async def test_play_rerender_sends_rendered_history_in_separate_rows() -> None:
    trajectory, engine = await run_quiz("rerender")
    assert trajectory.fault is None
    prompts = [s for s in trajectory.segments if s.kind is SegmentKind.PROMPT]
    assert len(prompts) == 3
    rows = trajectory.steps(merge=True)
    assert [row.turns for row in rows] == [(0,), (1,), (2,)]
    assert [row.is_last for row in rows] == [False, False, True]
    assert [row.reward for row in rows] == [0.0, 0.0, 3.0]
    messages = list(trajectory.messages)
    for turn, request in enumerate(engine.requests):
        text = render("qwen3", messages[: 2 * turn + 1], generation_prompt=True)
        assert list(request.wire_ids) == encode("qwen3", text)


async def test_play_rerender_refuses_to_flatten_more_than_one_sequence() -> None:
    trajectory, _ = await run_quiz("rerender")
    with pytest.raises(ConfigurationError, match="steps"):
        trajectory.train_ids()


async def test_play_rerender_is_one_sequence_where_nothing_is_rewritten() -> None:
    codec = make_codec("qwen2.5", history="rerender")
    trajectory = await play(Quiz(), ScriptedEngine(codec, say_turn), codec, seed=1)
    assert len(trajectory.sequences()) == 1


@pytest.mark.parametrize(("template", "expected"), [("gemma3", "user"), ("qwen3", "tool")])
async def test_play_gives_tool_answers_to_templates_without_that_role_as_user_messages(
    template: str, expected: str
) -> None:
    codec = make_codec(template)
    env = Quiz(role="tool")
    trajectory = await play(env, ScriptedEngine(codec, say_turn), codec, seed=1)
    assert trajectory.fault is None, trajectory.fault
    assert trajectory.reward == 3.0
    assert trajectory.messages[2]["role"] == expected
