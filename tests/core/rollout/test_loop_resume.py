"""A resumed episode continues exactly where an abort stopped it."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.branching import SUMMARY, Screens, reply
from fakes.codecs import text_codec, vision_codec
from fakes.faults import CountingEnv, FragileEnv, ReplayEnv, World, say_turn
from fakes.playing import play_one, resume_one
from fakes.staged import Answering, Replayed, Staged, first, say_go
from fakes.templates import make_codec

from envkit.env import Capabilities, PolicyContext
from envkit.errors import EnvFault, FaultKind
from envkit.faults import FaultPlan
from envkit.messages import text_of
from envkit.rollout import (
    Backoff,
    EpisodeSpec,
    FinishReason,
    GenerateRequest,
    Generation,
    Interrupt,
    Limits,
    Player,
    RetryBudget,
    RolloutConfig,
    Sampling,
    ScriptedEngine,
    resume,
)
from envkit.trajectory import (
    FaultPlace,
    StopReason,
    Trajectory,
    check_trajectory,
    load,
    save,
    verify_file,
)

AT_ONCE = RetryBudget(max_episode_restarts=0, backoff=Backoff(initial_s=0))


async def whole(**options: Any) -> Trajectory:
    return await play_one(Staged, Answering(), text_codec(), seed=3, **options)


async def aborted(
    at: str,
    *,
    env: type[Staged] = Staged,
    tokens: int = 2,
    happenings: Mapping[str, Callable[[], Any]] | None = None,
    policy: Callable[[PolicyContext], str] = say_go,
    **options: Any,
) -> Trajectory:
    """Abort an episode at a moment: "reply 1", "before step 1", "step 1" or "reset"."""
    kind, _, number = at.rpartition(" ")
    is_hung = at == "reset" or kind == "hung step"
    interrupt = Interrupt(grace_s=0.0) if is_hung else Interrupt()

    def fire(context: PolicyContext) -> str:
        if kind in ("reply", "before step") and context.turn == int(number):
            interrupt.fire()
        return policy(context)

    def cut(request: Any, generation: Any) -> Any:
        return first(tokens, FinishReason.ABORT)(request, generation)

    async def hang() -> None:
        interrupt.fire()
        await asyncio.sleep(99)

    moments: dict[str, Any] = dict(happenings or {})
    if kind == "step":
        moments[at] = interrupt.fire
    if kind == "hung step":
        moments[f"step {number}"] = hang
    if at == "reset":
        moments[at] = hang
    engine = Answering({int(number): cut} if kind == "reply" else {}, policy=fire)
    arguments = options.pop("arguments", {})
    played = await play_one(
        lambda: env(moments, **arguments),
        engine,
        text_codec(),
        seed=3,
        interrupt=interrupt,
        retries=AT_ONCE,
        **options,
    )
    assert played.stop_reason is StopReason.ABORTED, played.fault
    assert check_trajectory(played) == ()
    assert played.reward is None
    return played


async def resumed(cut: Trajectory, env: Any = Staged, engine: Any = None, **options: Any) -> Any:
    options = {"retries": AT_ONCE, **options}
    again = await resume_one(cut, env, engine or Answering(), text_codec(), **options)
    assert check_trajectory(again) == ()
    return again


def rest(request: Any, generation: Generation) -> Generation:
    """Answer the rest of a reply of which two tokens are known."""
    ids, logprobs = generation.token_ids[2:], generation.logprobs[2:]
    return replace(generation, token_ids=ids, logprobs=logprobs)


MOMENTS = [
    *(
        f"{kind} {turn}"
        for kind in ("reply", "before step", "step", "hung step")
        for turn in (0, 1)
    ),
    "reset",
]


@pytest.mark.parametrize("env", [Staged, Replayed])
@pytest.mark.parametrize("at", MOMENTS)
async def test_resumed_episode_equals_the_whole_one(at: str, env: type[Staged]) -> None:
    cut = await aborted(at, env=env)
    again = await resumed(cut, env, Answering({0: rest} if at.startswith("reply") else {}))
    expected = await whole()
    assert again.stop_reason is StopReason.TERMINATED
    assert again.reward == 3.0
    assert again.messages == expected.messages
    assert again.turns[-1].info == expected.turns[-1].info
    assert again.task == expected.task
    assert again.train_ids() == expected.train_ids()
    assert again.loss_mask() == expected.loss_mask()
    for one in ("prompt_tokens", "response_tokens", "finish_reason", "weight_version"):
        assert [getattr(turn, one) for turn in again.turns] == [
            getattr(turn, one) for turn in expected.turns
        ]


@pytest.mark.parametrize("at", MOMENTS[:-1])
async def test_resumed_episode_that_is_aborted_at_once_loses_nothing(at: str) -> None:
    cut = await aborted(at)
    interrupt = Interrupt(grace_s=0.0)
    interrupt.fire()
    again = await resumed(cut, interrupt=interrupt)
    assert again.stop_reason is StopReason.ABORTED
    assert again.messages == cut.messages
    assert again.env_snapshot == cut.env_snapshot
    for one in ("response_text", "finish_reason", "weight_version", "response_tokens"):
        assert [getattr(turn, one) for turn in again.turns] == [
            getattr(turn, one) for turn in cut.turns
        ]
    assert [turn.prompt_tokens for turn in again.turns] == [
        turn.prompt_tokens for turn in cut.turns
    ]
    assert (await resumed(again)).reward == 3.0


@pytest.mark.parametrize("tokens", [0, 1])
async def test_reply_that_was_aborted_in_the_queue_is_no_turn(tokens: int) -> None:
    cut = await aborted("reply 1", tokens=tokens)
    assert len(cut.turns) == 1 + tokens
    assert cut.sampled_token_count == cut.turns[0].response_tokens + tokens
    assert cut.messages[-1]["role"] == ("assistant" if tokens else "user")
    assert cut.env_snapshot is not None


async def test_snapshot_of_an_earlier_abort_is_not_kept_by_a_later_one() -> None:
    cut = await aborted("step 0")
    assert cut.env_snapshot is not None
    interrupt = Interrupt(grace_s=0.0)

    async def hang() -> None:
        interrupt.fire()
        await asyncio.sleep(99)

    again = await resumed(cut, lambda: Staged({"step 2": hang}), interrupt=interrupt)
    assert again.stop_reason is StopReason.ABORTED
    assert again.env_snapshot is None
    assert (await resumed(again)).reward == 3.0


async def test_reply_that_was_whole_is_stepped_even_if_no_token_is_left() -> None:
    cut = await aborted("before step 0")
    limits = Limits(max_response_tokens=cut.turns[0].response_tokens)
    engine = Answering()
    again = await resumed(cut, Staged, engine, limits=limits)
    assert again.stop_reason is StopReason.RESPONSE_TOKENS
    assert again.reward == 1.0
    assert engine.requests == []


@pytest.mark.parametrize("most", [2, 3, 4])
@pytest.mark.parametrize("name", ["max_new_tokens", "max_response_tokens"])
async def test_cut_reply_that_has_all_its_tokens_ends_the_episode(name: str, most: int) -> None:
    cut = await aborted("reply 0", tokens=3)
    engine = Answering({0: first(1, FinishReason.LENGTH)})
    options: dict[str, Any] = {"limits": Limits(max_response_tokens=most)}
    if name == "max_new_tokens":
        options = {"sampling": Sampling(max_new_tokens=most)}
    again = await resumed(cut, Staged, engine, **options)
    is_own = name == "max_new_tokens"
    if most <= 3:
        assert again.stop_reason is (
            StopReason.TURN_TOKENS if is_own else StopReason.RESPONSE_TOKENS
        )
        assert engine.requests == []
        assert [turn.finish_reason for turn in again.turns] == ["length"]
        assert again.turns[0].response_text == cut.turns[0].response_text
        assert again.reward == 0.0
    else:
        assert engine.requests[0].sampling.max_new_tokens == most - 3
        assert again.stop_reason is (
            StopReason.TERMINATED if is_own else StopReason.RESPONSE_TOKENS
        )


@pytest.mark.parametrize("at", ["reply 0", "before step 0"])
async def test_resumed_reply_that_does_not_parse_is_sampled_anew(at: str) -> None:
    cut = await aborted(at, policy=lambda context: "bad bad bad")
    budget = RetryBudget(resample_on_parse_error=1, max_episode_restarts=0)
    replies = iter(["bad bad", "go"] if at == "reply 0" else ["go"])
    engine = Answering(policy=lambda context: next(replies, "go"))
    again = await resumed(cut, Staged, engine, retries=budget, sampling=Sampling(max_new_tokens=9))
    assert again.turns[0].resamples == 1
    assert again.turns[0].response_text == "go"
    assert again.turns[0].response_tokens == len(again.segments[1].train_ids)
    assert engine.requests[-3].sampling.max_new_tokens == 9  # all of the room again
    assert again.reward == 3.0


async def test_abort_while_a_reply_is_sampled_anew_forgets_the_rejected_step() -> None:
    interrupt = Interrupt()
    said: list[str] = []

    def policy(context: PolicyContext) -> str:
        said.append("bad")
        if len(said) == 2:
            interrupt.fire()
        return "bad"

    cut = await play_one(
        Staged,
        Answering(policy=policy),
        text_codec(),
        seed=3,
        interrupt=interrupt,
        retries=RetryBudget(resample_on_parse_error=3),
    )
    assert cut.stop_reason is StopReason.ABORTED
    assert [(turn.reward, turn.observation_hash) for turn in cut.turns] == [(None, None)]


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


BROKEN = EnvFault("the backend is gone", kind=FaultKind.PERMANENT, retryable=False)


@pytest.mark.parametrize(
    ("moment", "place"),
    [
        ("reset", FaultPlace.RESET),
        ("restore", FaultPlace.SNAPSHOT),
        ("step 1", FaultPlace.STEP),
    ],
)
async def test_fault_of_a_resumed_episode_names_its_place(moment: str, place: FaultPlace) -> None:
    cut = await aborted("step 0")
    again = await resumed(cut, lambda: Staged({moment: raising(BROKEN)}))
    assert again.stop_reason is StopReason.ENV_FAULT
    assert again.fault is not None
    assert again.fault.where is place


async def test_step_keys_of_a_resumed_episode_are_new() -> None:
    env = Staged()
    cut = await aborted("step 0", episode_id="one")
    await resumed(cut, env)
    lives = set(env.keys)
    assert len(lives) == 1
    assert lives.pop().startswith("one~")
    fresh = Staged()
    await play_one(fresh, Answering(), text_codec(), seed=3, episode_id="two")
    assert fresh.keys == ["two"] * 3


async def test_resumed_episode_is_restarted_from_nothing_if_its_state_is_lost() -> None:
    class Lost(Staged):
        capabilities = Capabilities(thread_safe=True)

    cut = await aborted("step 1", env=Lost)
    budget = RetryBudget(max_episode_restarts=1, backoff=Backoff(initial_s=0))
    again = await resumed(cut, Lost, retries=budget)
    assert (again.env_restarts, again.reward) == (1, 3.0)
    assert again.train_ids() == (await whole()).train_ids()


LONG = "long " * 400


@pytest.mark.parametrize("short", ["(cut)", LONG, None])
@pytest.mark.parametrize("is_resumed", [False, True])
async def test_observation_that_does_not_fit_is_shortened_once(
    short: str | None, is_resumed: bool
) -> None:
    options: dict[str, Any] = {"texts": {1: LONG}, "role": "tool", "short": short}
    limits = Limits(max_context_tokens=300)
    env = Staged(**options)
    if is_resumed:
        cut = await aborted("step 1", arguments=options)
        again = await resumed(cut, env, limits=limits)
    else:
        again = await play_one(env, Answering(), text_codec(), seed=3, limits=limits)
    assert len(env.spaces) == 1
    assert 0 < env.spaces[0] < 300
    assert again.stop_reason is (
        StopReason.TERMINATED if short == "(cut)" else StopReason.CONTEXT_TOKENS
    )
    answers = [text_of(one) for one in again.messages[2::2]]
    assert answers[:2] == ["Answer 0.", "(cut)" if short == "(cut)" else LONG]
    assert len(again.messages) == (7 if short == "(cut)" else 5)
    assert again.reward == (3.0 if short == "(cut)" else 2.0)


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_shortened_answer_of_a_tool_keeps_the_call_of_its_turn(is_resumed: bool) -> None:
    codec, interrupt = make_codec("qwen3"), Interrupt()

    def call(context: PolicyContext) -> str:
        name = f"tool{context.turn}"
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'

    def env(at: Any = None) -> Staged:
        return Staged(at, texts={1: LONG}, role="tool", short="(cut)")

    limits = Limits(max_context_tokens=300)
    if is_resumed:
        cut = await play_one(
            lambda: env({"step 1": interrupt.fire}),
            Answering(policy=call, codec=codec),
            codec,
            seed=3,
            interrupt=interrupt,
        )
        engine = Answering(policy=call, codec=codec)
        again = await resume_one(cut, env, engine, codec, limits=limits)
    else:
        engine = Answering(policy=call, codec=codec)
        again = await play_one(env, engine, codec, seed=3, limits=limits)
    assert again.reward == 3.0
    assert [one.get("name") for one in again.messages[2::2]] == ["tool0", "tool1", "tool2"]
    assert again.messages[4].get("tool_call_id") == "call00001"
    assert text_of(again.messages[4]) == "(cut)"


async def asking(
    *,
    role: str = "user",
    answers: Any = None,
    limits: Limits | None = None,
    fire_at: int = -1,
    policy_name: str = "ask_once",
) -> tuple[Trajectory, Answering, Player]:
    codec, interrupt = make_codec("qwen3"), Interrupt()

    def policy(context: PolicyContext) -> str:
        if len(engine.requests) - 1 == fire_at:
            interrupt.fire()
        return "plan plan plan" if "What next?" in text_of(context.messages[-1]) else "go"

    engine = Answering(answers, policy=policy, codec=codec)
    setting = f"fakes.own_histories:{policy_name}"
    config = RolloutConfig(history=setting, limits=limits or Limits())
    player = Player(engine, codec, config)
    env = lambda: Staged(role=role)  # noqa: E731
    (trajectory,) = await player.play(env, EpisodeSpec(seed=3), interrupt=interrupt)
    assert check_trajectory(trajectory) == ()
    return trajectory, engine, player


@pytest.mark.parametrize("role", ["user", "tool"])
async def test_question_is_a_turn_that_the_environment_never_sees(role: str) -> None:
    trajectory, engine, player = await asking(role=role)
    await player.aclose()
    assert [turn.purpose for turn in trajectory.turns] == [None, None, "ask_once", None]
    assert trajectory.reward == 3.0
    assert trajectory.turns[-1].info["said"] == ["go", "go", "go"]
    assert engine.requests[2].sampling.max_new_tokens == 7
    assert trajectory.turns[2].prompt_tokens == engine.requests[2].train_length
    assert trajectory.turns[2].response_text == "plan plan plan"
    assert trajectory.turns[2].encode_seconds > 0
    assert [one.reason for one in trajectory.branches] == ["ask_once"]


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize(
    ("request_number", "tokens"),
    [(2, 0), (2, 1), (3, 0)],  # the question itself, or the reply after its answer
)
async def test_question_that_is_aborted_leaves_no_trace(
    role: str, request_number: int, tokens: int
) -> None:
    expected, _, player = await asking(role=role)
    await player.aclose()
    answers = {request_number: first(tokens, FinishReason.ABORT)}
    cut, _, player = await asking(role=role, answers=answers, fire_at=request_number)
    assert cut.stop_reason is StopReason.ABORTED
    assert [turn.purpose for turn in cut.turns] == [None, None]
    assert "What next?" not in str(cut.messages)
    assert text_of(cut.messages[-1]) == "Answer 1."
    (again,) = await player.resume(cut, lambda: Staged(role=role))
    await player.aclose()
    assert again.messages == expected.messages
    assert [one.train_ids for one in again.segments] == [one.train_ids for one in expected.segments]
    assert [turn.purpose for turn in again.turns] == [None, None, "ask_once", None]


async def test_question_needs_room_for_an_answer() -> None:
    free, _, player = await asking()
    await player.aclose()
    before = sum(turn.response_tokens for turn in free.turns[:2])
    answer = free.turns[2].response_tokens
    for bound, turns in ((before, 2), (before + 1, 3), (before + answer, 3)):
        limits = Limits(max_sampled_tokens=bound)
        trajectory, engine, player = await asking(limits=limits)
        await player.aclose()
        assert trajectory.stop_reason is StopReason.SAMPLED_TOKENS
        assert len(trajectory.turns) == len(engine.requests) == turns
        assert trajectory.sampled_token_count == bound
        assert trajectory.reward == 2.0


async def test_history_that_does_not_fit_after_an_answer_truncates_the_episode() -> None:
    limits = Limits(max_context_tokens=300)
    trajectory, _, player = await asking(limits=limits, policy_name="ask_and_overflow")
    await player.aclose()
    assert trajectory.stop_reason is StopReason.CONTEXT_TOKENS
    assert trajectory.reward == 2.0
    assert [turn.purpose for turn in trajectory.turns] == [None, None, "ask_and_overflow"]


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
async def test_abort_after_a_step_resumes_with_the_observation_that_is_pending(stop: int) -> None:
    codec, interrupt = make_codec("qwen3"), Interrupt()

    class Stopping(Screens):
        def on_turn(self, response_text: str) -> Any:
            if self.turn + 1 == stop and interrupt.reason is None:
                loop.call_soon_threadsafe(interrupt.fire)
            return super().on_turn(response_text)

    loop = asyncio.get_running_loop()
    engine = Answering(policy=reply, codec=codec)
    player = Player(engine, codec, RolloutConfig(history=SUMMARY))
    (expected,) = await player.play(Screens, EpisodeSpec(seed=3))
    (cut,) = await player.play(Stopping, EpisodeSpec(seed=3), interrupt=interrupt)
    assert cut.stop_reason is StopReason.ABORTED
    (again,) = await player.resume(cut, Screens)
    await player.aclose()
    assert check_trajectory(again) == ()
    assert again.reward == 6.0
    assert again.messages == expected.messages
    assert [turn.purpose for turn in again.turns] == [turn.purpose for turn in expected.turns]
    assert [one.train_ids for one in again.segments] == [one.train_ids for one in expected.segments]


SEEING = partial(Screens, images=True)


async def with_images(turn: int, *, is_sampling: bool) -> tuple[Trajectory, ScriptedEngine]:
    """Abort while the reply of a turn is sampled, or while the environment steps on it."""
    codec, interrupt = vision_codec(), Interrupt()

    def latency(request: GenerateRequest) -> float:
        assert request.context is not None
        if interrupt.reason is not None or request.context.turn != turn:
            return 0.0
        if is_sampling:
            asyncio.get_running_loop().call_later(0.01, interrupt.fire)
            return 30.0
        interrupt.fire()
        return 0.0

    engine = ScriptedEngine(codec, say_turn, latency=latency)
    return await play_one(SEEING, engine, codec, seed=11, interrupt=interrupt), engine


@pytest.mark.parametrize("kind", [ReplayEnv, FragileEnv])
async def test_resume_never_applies_a_step_key_of_an_earlier_life(kind: type[CountingEnv]) -> None:
    world, codec, lives = World(), text_codec(), 3
    found: Trajectory | None = None
    for life in range(lives):
        interrupt = Interrupt()

        def latency(
            request: GenerateRequest, at: int = life + 1, stop: Interrupt = interrupt
        ) -> float:
            assert request.context is not None
            if request.context.turn == at < lives:
                stop.fire()
            return 0.0

        player = Player(ScriptedEngine(codec, say_turn, latency=latency), codec)
        spec, env = EpisodeSpec(seed=5, episode_id="e"), partial(kind, world, FaultPlan(0.0))
        if found is None:
            (found,) = await player.play(env, spec, interrupt=interrupt)
        else:
            (found,) = await player.resume(found, env, interrupt=interrupt)
        await player.aclose()
    assert found is not None
    assert found.stop_reason is StopReason.TERMINATED, found.fault
    assert set(world.steps.values()) == {1}
    assert len({episode for episode, _, _ in world.steps}) == lives


async def test_resume_continues_a_stored_trajectory(tmp_path: Path) -> None:
    codec = vision_codec()
    cut, engine = await with_images(2, is_sampling=True)
    save(cut, tmp_path / "cut.jsonl")
    (stored,) = load(tmp_path / "cut.jsonl")
    assert not any(segment.features for segment in stored.segments)
    whole = await resume(stored, SEEING, engine, codec)
    assert whole.reward == 6.0
    assert len(whole.tensors()["image_grid_thw"]) == 6
    save(whole, tmp_path / "whole.jsonl")
    report = verify_file(tmp_path / "whole.jsonl")
    assert report.is_sound, report


@pytest.mark.parametrize("steps", range(8))
async def test_resume_cancelled_before_it_starts_leaves_no_unawaited_coroutine(steps: int) -> None:
    cut, engine = await with_images(0, is_sampling=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = asyncio.ensure_future(resume(cut, SEEING, engine, vision_codec()))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
    assert [str(one.message) for one in caught] == []
