"""History policies: what the model sees after a rewrite, and that every token keeps one owner."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.codecs import vision_codec
from fakes.templates import make_codec

from envkit.env import Capabilities, Env, PolicyContext, Turn
from envkit.errors import ConfigurationError
from envkit.images import Image
from envkit.messages import Message, Trusted, images_of, message, text_of
from envkit.rollout import (
    EpisodeSpec,
    FinishReason,
    GenerateRequest,
    Generation,
    HistoryView,
    Interrupt,
    KeepLastImages,
    KeepLastTurns,
    Limits,
    Player,
    Question,
    RolloutConfig,
    ScriptedEngine,
    Summarise,
)
from envkit.rollout.history import history_policy
from envkit.tasks import Task
from envkit.trajectory import (
    FaultPlace,
    SegmentKind,
    StopReason,
    Trajectory,
    check_trajectory,
    fork_before,
    load,
    save,
    verify_file,
)


class Screens(Env):
    """Shows a new image in every turn."""

    capabilities: ClassVar[Capabilities] = Capabilities(thread_safe=True, replay_safe=True)
    system_prompt = "Look."

    def __init__(self, *, max_turns: int = 12, images: bool = True) -> None:
        super().__init__(max_turns=max_turns)
        self._images = images

    def on_reset(self, task: Task) -> Turn:
        return Turn("Screen 0.", images=self._image(0))

    def on_turn(self, response_text: str) -> Turn:
        number = self.turn + 1
        return Turn(f"Screen {number}.", images=self._image(number), reward=1.0)

    def _image(self, number: int) -> tuple[Image, ...]:
        if not self._images:
            return ()
        return (Image.from_array(np.full((32, 32, 3), number, np.uint8)),)


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
    interrupt: Interrupt | None = None,
    engine: type[Watching] = Watching,
) -> tuple[Trajectory, Watching]:
    env = env or Screens()
    codec = vision_codec() if env._images else make_codec("qwen3")  # type: ignore[attr-defined]
    made = engine(codec, reply)
    config = RolloutConfig(history=history, limits=limits or Limits(), sanity_share=1.0)
    player = Player(made, codec, config)
    try:
        (trajectory,) = await player.play(env, EpisodeSpec(seed=3), interrupt=interrupt)
        if trajectory.stop_reason is StopReason.ABORTED:
            (trajectory,) = await player.resume(trajectory, env)
    finally:
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


async def test_environment_brings_its_own_policy_and_the_rollout_may_refuse_it() -> None:
    class Own(Screens):
        history_policy: ClassVar = {"keep_last_images": {"keep": 1, "drop_at": 2}}

    trajectory, _ = await run(None, env=Own())
    assert trajectory.branches
    trajectory, _ = await run("keep", env=Own())
    assert not trajectory.branches


async def test_keep_last_turns_keeps_the_task() -> None:
    env = Screens(images=False)
    trajectory, engine = await run({"keep_last_turns": {"keep": 2, "drop_at": 4}}, env=env)
    assert_one_owner(trajectory, engine)
    for messages in engine.shown:
        assert text_of(messages[0]) == "Look."
        assert text_of(messages[1]).startswith("Screen 0.")
        assert sum(entry["role"] == "assistant" for entry in messages) <= 4
    assert "[earlier turns omitted: 9]" in text_of(engine.shown[-1][1])
    assert text_of(engine.shown[-1][1]).count("omitted") == 1


async def test_summarise_samples_records_and_trains_the_summary() -> None:
    env = Screens(images=False)
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


class Aborting(Watching):
    """Stops the run in the middle of one reply."""

    interrupt: ClassVar[Interrupt]
    at: ClassVar[int] = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        answer = await super().generate(request)
        if len(self.requests) != type(self).at:
            return answer
        type(self).interrupt.fire()
        return Generation(
            token_ids=answer.token_ids[:1],
            logprobs=answer.logprobs[:1],
            finish_reason=FinishReason.ABORT,
            prompt_tokens=answer.prompt_tokens,
        )


@pytest.mark.parametrize("at", range(1, 14))
async def test_resumed_episode_continues_its_rewritten_history(at: int, tmp_path: Path) -> None:
    history = {"summarise": {"at_tokens": 150, "max_tokens": 20}}
    whole, _ = await run(history, env=Screens(images=False))
    Aborting.interrupt, Aborting.at = Interrupt(), at
    env = Screens(images=False)
    codec = make_codec("qwen3")
    engine = Aborting(codec, reply)
    player = Player(engine, codec, RolloutConfig(history=history))
    (cut,) = await player.play(env, EpisodeSpec(seed=3), interrupt=Aborting.interrupt)
    assert cut.stop_reason is StopReason.ABORTED, cut.fault
    save(cut, tmp_path / "cut.jsonl")
    assert verify_file(tmp_path / "cut.jsonl").is_sound
    (stored,) = load(tmp_path / "cut.jsonl")
    (resumed,) = await player.resume(stored, env)
    await player.aclose()
    assert resumed.fault is None, resumed.fault
    assert check_trajectory(resumed) == ()
    assert resumed.reward == whole.reward
    assert [turn.purpose for turn in resumed.turns].count("summarise") >= 1
    rows = resumed.steps(merge=True)
    assert sum(sum(row.loss_mask) for row in rows) == resumed.sampled_token_count


def lose_all(view: HistoryView) -> list[Message]:
    return []


def speak(view: HistoryView) -> list[Message]:
    return [*view.messages, message("assistant", "I speak for the model.")]


def invent(view: HistoryView) -> list[Message]:
    image = Image.from_array(np.full((32, 32, 3), 255, np.uint8))
    return [message("user", "Look at this.", [image])]


def fail(view: HistoryView) -> None:
    raise KeyError("no such screen")


def lie(view: HistoryView) -> object:
    return "all messages"


def ask_badly(view: HistoryView) -> Question:
    return Question(text="Summarise.", max_tokens=5, rewrite=lambda text: [])


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("lose_all", "at least one message"),
        ("speak", "a user or tool message"),
        ("invent", "not add any"),
        ("fail", "no such screen"),
        ("lie", "a list of messages"),
        ("ask_badly", "at least one message"),
    ],
)
async def test_policy_that_breaks_the_rules_faults_the_episode(
    policy: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(place: str) -> object:
        return globals()[policy]

    monkeypatch.setattr(history_policy.__module__ + "._imported", found)
    trajectory, _ = await run("mine:policy")
    assert trajectory.stop_reason is StopReason.LEDGER_FAULT
    assert trajectory.fault is not None
    assert trajectory.fault.where is FaultPlace.HISTORY
    assert text in trajectory.fault.message
    assert trajectory.reward is None


async def test_summary_that_does_not_fit_truncates_the_episode() -> None:
    env = Screens(images=False)
    limits = Limits(max_context_tokens=160)
    trajectory, _ = await run({"summarise": {"at_tokens": 150}}, env=env, limits=limits)
    assert trajectory.stop_reason is StopReason.CONTEXT_TOKENS
    assert trajectory.reward is not None
    assert check_trajectory(trajectory) == ()


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
    (leaf,) = await player.resume(fork, Screens(), member=1)
    await player.aclose()
    assert leaf.fault is None, leaf.fault
    assert check_trajectory(leaf) == ()
    assert leaf.branches == trunk.branches
    assert len(engine.requests[0].images) <= 2


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("keep_last_image", "Did you mean 'keep_last_images'"),
        ({"keep_last_images": {"kep": 3}}, "Did you mean 'keep'"),
        ({"keep_last_images": {"keep": 6, "drop_at": 6}}, "drop_at above it"),
        ({"keep_last_images": {"keep": "3"}}, "keep must be an integer"),
        ({"keep_last_turns": {"keep": 0}}, "at least 1"),
        ({"summarise": {}}, "at_tokens"),
        ({"summarise": {"at_tokens": 0}}, "at least 1"),
        ({"keep_last_images": {}, "summarise": {}}, "one policy"),
        ("no_such_module:policy", "cannot import"),
    ],
)
def test_history_setting_says_what_is_wrong(setting: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        RolloutConfig(history=setting)


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
