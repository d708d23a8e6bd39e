"""The place where an episode stops or fails decides how it ends."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from fakes.branching import Summarised
from fakes.codecs import text_codec
from fakes.envs import AdderEnv
from fakes.own_histories import Pair
from fakes.playing import play_one, resume_one
from fakes.staged import Answering, Replayed, Staged, TextEngine, Unsaved, first, say_go
from fakes.templates import make_codec
from fakes.virtual_time import skip

from envkit.env import PolicyContext
from envkit.errors import (
    ConfigurationError,
    EngineFault,
    EnvFault,
    FaultKind,
    LedgerFault,
    MissingDependencyError,
    TemplateError,
)
from envkit.rollout import (
    Backoff,
    EpisodeSpec,
    FinishReason,
    Generation,
    GroupStart,
    Interrupt,
    Limits,
    Player,
    RetryBudget,
    RolloutConfig,
)
from envkit.rollout.interrupt import Brake
from envkit.rollout.sources import FunctionSource
from envkit.tasks import ListSource
from envkit.trajectory import FaultPlace, StopReason, Trajectory, check_trajectory, fork_before

AT_ONCE = RetryBudget(max_episode_restarts=0, max_env_retries_per_turn=0)
RETRYING = RetryBudget(max_episode_restarts=0, backoff=Backoff(initial_s=0))


async def played(
    env: Any, engine: Any = None, *, retries: RetryBudget = AT_ONCE, **options: Any
) -> Trajectory:
    trajectory = await play_one(
        env, engine or Answering(), text_codec(), seed=3, retries=retries, **options
    )
    assert check_trajectory(trajectory) == ()
    return trajectory


def raising(error: BaseException) -> Callable[[], None]:
    def fail(*_: object) -> None:
        raise error

    return fail


BROKEN = EnvFault("the backend is gone", kind=FaultKind.CRASHED)


def check_fault(trajectory: Trajectory, stop: StopReason, place: FaultPlace, text: str) -> None:
    assert trajectory.stop_reason is stop, trajectory.fault
    assert trajectory.fault is not None
    assert trajectory.fault.where is place
    assert text in trajectory.fault.message
    assert trajectory.reward is None
    assert trajectory.trained_token_count == 0
    assert trajectory.env_snapshot is None


@pytest.mark.parametrize(
    ("moment", "place"),
    [
        ("build", FaultPlace.BUILD),
        ("reset", FaultPlace.RESET),
        ("step 0", FaultPlace.STEP),
        ("step 1", FaultPlace.STEP),
    ],
)
async def test_environment_that_fails_is_a_fault_of_that_place(
    moment: str, place: FaultPlace
) -> None:
    def build() -> Staged:
        if moment == "build":
            raise BROKEN
        return Staged({moment: raising(BROKEN)})

    trajectory = await played(build)
    check_fault(trajectory, StopReason.ENV_FAULT, place, "the backend is gone")
    assert trajectory.fault is not None
    assert trajectory.fault.kind is FaultKind.CRASHED


async def test_environment_that_cannot_be_saved_after_an_abort_is_a_fault() -> None:
    interrupt = Interrupt()
    env = lambda: Staged({"step 1": interrupt.fire, "snapshot": failing})  # noqa: E731
    failing = raising(BROKEN)
    # Without retries, the abort is the first moment that needs a snapshot.
    trajectory = await played(env, interrupt=interrupt)
    check_fault(trajectory, StopReason.ENV_FAULT, FaultPlace.SNAPSHOT, "the backend is gone")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (LedgerFault("lost"), "lost"),
        (TemplateError("bad"), "TemplateError: bad"),
        (KeyError("x"), "the episode failed: KeyError"),
    ],
)
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_codec_that_fails_is_a_fault_of_the_ledger(
    error: Exception, text: str, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Interrupt()

    def raise_in_codec(*_: object, **__: object) -> None:
        if is_stopped:
            interrupt.fire()  # an abort excuses only the calls that it cuts
        raise error

    monkeypatch.setattr(text_codec(), "encode_observation", raise_in_codec)
    trajectory = await played(Staged, interrupt=interrupt)
    check_fault(trajectory, StopReason.LEDGER_FAULT, FaultPlace.LEDGER, text)
    assert trajectory.fault is not None
    assert trajectory.fault.message.startswith(text)
    assert "raise_in_codec" in (trajectory.fault.traceback or "")


async def test_engine_that_fails_is_a_fault_of_the_generation() -> None:
    answer = raising(EngineFault("out of memory", kind=FaultKind.PERMANENT, retryable=False))
    engine = Answering({1: answer})  # type: ignore[dict-item]
    trajectory = await played(Staged, engine)
    check_fault(trajectory, StopReason.ENGINE_FAULT, FaultPlace.GENERATE, "out of memory")


async def test_history_policy_that_fails_is_a_fault_of_the_history() -> None:
    trajectory = await played(Staged, history="fakes.own_histories:leave")
    check_fault(trajectory, StopReason.LEDGER_FAULT, FaultPlace.HISTORY, "leave")


async def forever() -> None:
    await asyncio.sleep(99)


async def late() -> None:
    skip(60)
    await forever()


async def test_step_that_hangs_truncates_where_that_is_the_replys_doing() -> None:
    class Honest(Staged):
        capabilities = replace(Staged.capabilities, on_step_timeout="truncate")

    budget = replace(AT_ONCE, step_timeout_s=60)
    trajectory = await played(lambda: Honest({"step 1": late}), retries=budget)
    assert trajectory.stop_reason is StopReason.STEP_TIMEOUT
    assert trajectory.fault is None
    assert trajectory.reward == 1.0
    assert [turn.reward for turn in trajectory.turns] == [1.0, None]


async def test_call_that_an_abort_cuts_leaves_its_reply_to_resume() -> None:
    interrupt = Interrupt(grace_s=0.0)

    async def stopped() -> None:
        interrupt.fire()
        await forever()

    cut = await played(lambda: Staged({"step 1": stopped}), interrupt=interrupt)
    assert cut.stop_reason is StopReason.ABORTED
    assert cut.fault is None
    assert cut.env_snapshot is None  # the state after half a step is unknown
    assert [turn.reward for turn in cut.turns] == [1.0, None]
    assert [one["role"] for one in cut.messages] == ["user", "assistant"] * 2
    whole = await resume_one(cut, Replayed, Answering(), text_codec())
    assert check_trajectory(whole) == ()
    assert whole.reward == 3.0


@pytest.mark.parametrize("moment", ["reset", "step 0", "step 1"])
async def test_deadline_that_cuts_a_call_is_a_fault(moment: str) -> None:
    interrupt = Interrupt()

    async def late() -> None:
        interrupt.fire(StopReason.EPISODE_TIMEOUT)
        await forever()

    trajectory = await played(lambda: Staged({moment: late}), interrupt=interrupt)
    place = FaultPlace(moment.split()[0])
    check_fault(trajectory, StopReason.ENV_FAULT, place, "interrupted a call")


def firing(interrupt: Interrupt, reason: StopReason, turn: int) -> Callable[[PolicyContext], str]:
    def policy(context: PolicyContext) -> str:
        if context.turn == turn:
            interrupt.fire(reason)
        return say_go(context)

    return policy


@pytest.mark.parametrize("turn", [0, 1])
async def test_reply_after_the_deadline_is_a_fault(turn: int) -> None:
    interrupt = Interrupt()
    engine = Answering(policy=firing(interrupt, StopReason.EPISODE_TIMEOUT, turn))
    trajectory = await played(Staged, engine, interrupt=interrupt)
    text = f"passed while the engine sampled turn {turn}"
    check_fault(trajectory, StopReason.ENGINE_FAULT, FaultPlace.GENERATE, text)
    assert trajectory.fault is not None
    assert trajectory.fault.kind is FaultKind.TIMEOUT


@pytest.mark.parametrize("tokens", [0, 1])
async def test_reply_that_a_deadline_aborted_is_a_fault(tokens: int) -> None:
    interrupt = Interrupt()
    engine = Answering(
        {1: first(tokens, FinishReason.ABORT)},
        policy=firing(interrupt, StopReason.EPISODE_TIMEOUT, 1),
    )
    trajectory = await played(Staged, engine, interrupt=interrupt)
    text = "passed while the engine sampled turn 1"
    check_fault(trajectory, StopReason.ENGINE_FAULT, FaultPlace.GENERATE, text)


async def test_deadline_before_the_first_reply_is_a_fault() -> None:
    interrupt = Interrupt()
    env = lambda: Staged({"reset": lambda: interrupt.fire(StopReason.EPISODE_TIMEOUT)})  # noqa: E731
    trajectory = await played(env, interrupt=interrupt)
    text = "passed before the first turn ended"
    check_fault(trajectory, StopReason.ENGINE_FAULT, FaultPlace.GENERATE, text)


@pytest.mark.parametrize("turn", [0, 1])
async def test_deadline_after_a_step_keeps_the_rewards_so_far(turn: int) -> None:
    interrupt = Interrupt()
    late = lambda: interrupt.fire(StopReason.EPISODE_TIMEOUT)  # noqa: E731
    trajectory = await played(lambda: Staged({f"step {turn}": late}), interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert trajectory.fault is None
    assert trajectory.reward == len(trajectory.turns) == turn + 1
    assert trajectory.env_snapshot is None
    assert trajectory.messages[-1]["content"] == f"Answer {turn}."


async def test_deadline_between_two_turns_keeps_the_rewards_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt, encode = Interrupt(), text_codec().encode_observation

    def late(*arguments: Any, **options: Any) -> Any:
        interrupt.fire(StopReason.EPISODE_TIMEOUT)
        return encode(*arguments, **options)

    monkeypatch.setattr(text_codec(), "encode_observation", late)
    trajectory = await played(Staged, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert trajectory.reward == len(trajectory.turns) == 1


@pytest.mark.parametrize("at", ["step 2", "step 1"])
async def test_environments_own_end_wins_over_an_abort(at: str) -> None:
    interrupt = Interrupt()
    trajectory = await played(lambda: Staged({at: interrupt.fire}), interrupt=interrupt)
    is_over = at == "step 2"
    assert trajectory.stop_reason is (StopReason.TERMINATED if is_over else StopReason.ABORTED)
    assert trajectory.reward == (3.0 if is_over else None)
    assert (trajectory.env_snapshot is None) == is_over
    assert trajectory.segments[-1].kind.value == "model"


@pytest.mark.parametrize("text", ["", "The end."])
async def test_last_observation_is_recorded_unless_it_is_empty(text: str) -> None:
    trajectory = await played(lambda: Staged(turns=1, texts={0: text}))
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.reward == 1.0
    assert [one["content"] for one in trajectory.messages[2:]] == ([text] if text else [])


async def test_empty_observation_that_ends_nothing_is_recorded() -> None:
    trajectory = await played(lambda: Staged(turns=2, texts={0: ""}))
    assert trajectory.reward == 2.0
    assert [one["role"] for one in trajectory.messages] == ["user", "assistant"] * 2 + ["user"]


@pytest.mark.parametrize("where", ["before the step", "before the observation"])
async def test_held_episode_waits_until_finished_ones_have_passed(where: str) -> None:
    interrupt, stages = Interrupt(), list[str]()
    interrupt.brake = brake = Brake()

    def policy(context: PolicyContext) -> str:
        stages.append(f"reply {context.turn}")
        if where == "before the step" and context.turn == 0:
            brake.hold()
        return say_go(context)

    def step() -> None:
        stages.append("step 0")
        if where == "before the observation":
            brake.hold()

    playing = asyncio.create_task(
        played(lambda: Staged({"step 0": step}), Answering(policy=policy), interrupt=interrupt)
    )
    while brake.is_open or not brake._waiting:
        await asyncio.sleep(0.001)
    held = ["reply 0"] if where == "before the step" else ["reply 0", "step 0"]
    assert stages == held
    brake.release()
    assert (await playing).reward == 3.0
    assert stages == ["reply 0", "step 0", "reply 1", "reply 2"]


async def test_stopped_episode_does_not_wait_for_the_brake() -> None:
    interrupt = Interrupt()
    interrupt.brake = Brake()
    interrupt.brake.hold()
    engine = Answering(policy=firing(interrupt, StopReason.ABORTED, 0))
    async with asyncio.timeout(120):
        trajectory = await played(Staged, engine, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.ABORTED


async def test_record_has_the_reset_and_the_retries_of_each_step() -> None:
    failures = iter([BROKEN])

    def fail_once() -> None:
        for failure in failures:
            raise failure

    env = lambda: Replayed({"step 1": fail_once})  # noqa: E731
    trajectory = await played(env, retries=RETRYING)
    assert trajectory.reward == 3.0
    assert trajectory.reset_info == {"started": True} | dict(trajectory.reset_info)
    assert [dict(turn.env_retries) for turn in trajectory.turns] == [{}, {"crashed": 1}, {}]
    assert all(turn.env_seconds > 0 for turn in trajectory.turns)
    assert all(turn.generate_seconds > 0 for turn in trajectory.turns)
    assert [turn.weight_version for turn in trajectory.turns] == ["script"] * 3
    assert [turn.finish_reason for turn in trajectory.turns] == ["stop"] * 3
    assert [one.turn for one in trajectory.segments] == [0, 0, 1, 1, 2, 2]


async def test_ledger_keeps_what_else_the_engine_reported() -> None:
    empty: dict[str, Any] = {}

    def with_extras(extras: Mapping[str, Any]) -> Any:
        def answer(_: object, whole: Generation) -> Generation:
            return replace(whole, extras=extras)

        return answer

    engine = Answering({0: with_extras({"experts": [1]}), 1: with_extras(empty)})
    trajectory = await played(Staged, engine)
    models = [one for one in trajectory.segments if one.kind.value == "model"]
    assert [dict(one.extras) for one in models] == [{"experts": [1]}, {}, {}]
    empty["later"] = 1  # the engine's own mapping
    assert dict(models[1].extras) == {}


async def test_group_members_start_from_the_first_observation_that_was_encoded() -> None:
    start = GroupStart()
    broken = Answering()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_codec(), "encode_prompt", raising(TemplateError("bad")))
        failed = await played(Staged, broken, group_start=start)
    assert failed.stop_reason is StopReason.LEDGER_FAULT
    assert start.expected is None
    one = await played(Staged, group_start=start)
    assert one.initial_observation_hash == start.expected is not None

    class Other(Staged):
        async def on_areset(self, task: Any) -> Any:
            return replace(await super().on_areset(task), text="Start.")

    other = await played(Other, group_start=start)
    check_fault(other, StopReason.ENV_FAULT, FaultPlace.RESET, "its siblings")


async def test_prompt_has_the_tools_and_the_system_prompt_of_the_environment() -> None:
    codec = make_codec("qwen3")
    trajectory = await play_one(AdderEnv, Answering(codec=codec), codec, seed=3)
    expected = codec.encode_prompt([trajectory.messages[0]], tools=AdderEnv.tools)
    assert tuple(trajectory.segments[0].wire_ids) == tuple(expected.wire_ids)
    assert "add" in codec.decode_all(expected.wire_ids)


async def test_environments_own_history_policy_is_used() -> None:
    codec = make_codec("qwen3")
    trajectory = await play_one(Summarised, Answering(codec=codec), codec, seed=3)
    assert "summarise" in {turn.purpose for turn in trajectory.turns}


async def test_environment_with_several_agents_is_refused_by_a_single_episode() -> None:
    interrupt = Interrupt()
    cut = await played(lambda: Staged({"step 0": interrupt.fire}), interrupt=interrupt)
    with pytest.raises(ConfigurationError, match="Pair has several agents"):
        await resume_one(cut, Pair, Answering(), text_codec())


@pytest.mark.parametrize(
    ("moment", "engine_answers", "is_rebuilt"),
    [
        ("", {}, False),
        ("step 0", {}, True),
        ("", {0: raising(EngineFault("broken", retryable=False))}, False),
    ],
)
async def test_environment_is_rebuilt_after_its_own_fault(
    moment: str, engine_answers: Any, is_rebuilt: bool
) -> None:
    built: list[Staged] = []

    def build() -> Staged:
        fault = EnvFault("odd", kind=FaultKind.PERMANENT)  # a crash breaks the host itself
        happenings = {moment: raising(fault)} if not built else {}
        built.append(Staged(happenings))
        return built[-1]

    engine = Answering(engine_answers)
    player = Player(engine, text_codec(), RolloutConfig(retries=AT_ONCE))
    source = FunctionSource("staged", build)
    await player.play(source, EpisodeSpec(seed=3))
    (again,) = await player.play(source, EpisodeSpec(seed=3))
    await player.aclose()
    assert again.reward == 3.0
    assert len(built) == 1 + is_rebuilt


async def test_environment_of_the_caller_is_played_again_after_a_fault() -> None:
    failures = iter([BROKEN])

    def fail_once() -> None:
        for failure in failures:
            raise failure

    env = Staged({"step 0": fail_once})
    assert (await played(env)).stop_reason is StopReason.ENV_FAULT
    assert (await played(env)).reward == 3.0


async def test_session_of_the_engine_ends_with_the_episode_unless_forks_need_it() -> None:
    engine = Answering()
    await played(Staged, engine, episode_id="one")
    assert engine.ended == ["one"]
    player = Player(engine, text_codec())
    snapshots: dict[int, bytes] = {}
    await player.play(Staged, EpisodeSpec(seed=3, episode_id="trunk", snapshots=snapshots))
    await player.aclose()
    assert engine.ended == ["one"]
    assert sorted(snapshots) == [0, 1, 2]


async def test_restarted_episode_lasts_since_its_first_attempt() -> None:
    failures = iter([BROKEN])

    async def fail_once() -> None:
        await asyncio.sleep(0.02)
        for failure in failures:
            raise failure

    env = lambda: Unsaved({"step 0": fail_once}, turns=1)  # noqa: E731
    trajectory = await played(env, retries=RetryBudget(backoff=Backoff(initial_s=0)))
    assert (trajectory.env_restarts, trajectory.reward) == (1, 1.0)
    assert trajectory.duration_seconds >= 0.04


async def test_text_engine_records_messages_and_rewards_without_a_ledger() -> None:
    player = Player(TextEngine(), None, RolloutConfig(limits=Limits(max_turns=2)))
    (trajectory,) = await player.play(Staged, EpisodeSpec(seed=3))
    await player.aclose()
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.segments == ()
    assert [turn.response_text for turn in trajectory.turns] == ["go go go go"] * 2


async def test_fork_is_never_restarted() -> None:
    whole = await played(Staged)
    fork = fork_before(whole, 0, episode_id="fork")
    env = lambda: Unsaved({"step 0": raising(BROKEN)})  # noqa: E731
    budget = RetryBudget(max_episode_restarts=1, backoff=Backoff(initial_s=0))
    leaf = await resume_one(fork, env, Answering(), text_codec(), retries=budget)
    assert leaf.stop_reason is StopReason.ENV_FAULT
    assert leaf.env_restarts == 0


# ---- what a turn of an episode records, and when a reply is sampled again


ONCE = RetryBudget(max_episode_restarts=0, max_env_retries_per_turn=0, resample_on_parse_error=1)


class Told(Staged):
    """Has a system prompt, and one task."""

    system_prompt = "Answer with one word."

    def __init__(self) -> None:
        super().__init__()
        self.tasks = ListSource([{"word": "go"}])


async def test_episode_starts_with_the_system_prompt_of_its_environment() -> None:
    trajectory = await played(Told)
    assert trajectory.messages[0]["role"] == "system"
    shown = text_codec().decode(trajectory.segments[0].wire_ids)
    assert "Answer with one word." in shown
    assert shown.index("Answer with one word.") < shown.index("Begin.")


async def test_episode_records_the_task_that_its_environment_drew() -> None:
    assert (await played(Told)).task == {"word": "go"}


async def test_reply_is_kept_if_the_environment_cannot_take_the_step_back() -> None:
    engine = Answering(policy=lambda context: "bad")
    trajectory = await played(lambda: Unsaved(turns=1), engine, retries=ONCE)
    assert [turn.resamples for turn in trajectory.turns] == [0]
    assert trajectory.turns[0].info["said"] == ["bad"]
    assert len(engine.requests) == 1
    assert trajectory.stop_reason is StopReason.TERMINATED


async def test_module_that_a_reset_lacks_is_a_missing_dependency() -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'absent'", name="absent")

    with pytest.raises(MissingDependencyError, match="absent"):
        await played(lambda: Staged({"reset": fail}))
