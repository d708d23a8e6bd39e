"""History policies that an environment or one of its roles brings."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.branching import IMAGES, SUMMARY, TURNS, Screens, Summarised, reply
from fakes.own_histories import (
    HangingRole,
    LeavingRole,
    Own,
    OwnPolicies,
    Pair,
    PerTask,
    Raising,
    SharedPolicy,
    UnreadableRole,
    Untyped,
    UntypedRole,
)
from fakes.policy_runs import (
    LAST_TWO,
    NO_RESTART,
    HiddenClass,
    HiddenError,
    Long,
    assert_history_fault,
    assert_played,
    assert_sound,
    assert_verifies,
    run,
    setting_of,
)
from fakes.templates import make_codec
from fakes.virtual_time import skip_from_thread

from envkit.env import Env, Observation, PolicyContext, Turn
from envkit.images import Image
from envkit.messages import Message, images_of, message
from envkit.rollout import (
    EpisodeSpec,
    FinishReason,
    GenerateRequest,
    Generation,
    HistoryView,
    Interrupt,
    Limits,
    Player,
    Question,
    RolloutConfig,
    ScriptedEngine,
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
from envkit_isolation import isolated
from envkit_isolation.process import close_supervisors


async def test_environment_brings_its_own_policy_and_the_rollout_may_refuse_it() -> None:
    class Brings(Screens):
        history_policy: ClassVar = IMAGES

    trajectory = await run(None, env=Brings(images=True), images=True)
    assert trajectory.branches
    trajectory = await run("keep", env=Brings(images=True), images=True)
    assert not trajectory.branches


@pytest.fixture(scope="module", autouse=True)
def _no_supervisor_left() -> Iterator[None]:
    yield
    close_supervisors()


def _made(env: type[Env], isolation: str) -> Any:
    return isolated(env) if isolation == "process" else env


ISOLATIONS = pytest.mark.parametrize("isolation", ["none", "process"])


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "reason"),
    [(Own, "last_two"), (PerTask, "keep_last_turns"), (Summarised, "summarise")],
)
@pytest.mark.slow
async def test_environment_applies_its_own_policy(
    env: type[Env], reason: str, isolation: str, tmp_path: Path
) -> None:
    trajectory = await run(None, env=_made(env, isolation))
    assert_played(trajectory, tmp_path)
    assert {branch.reason for branch in trajectory.branches} == {reason}
    trajectory = await run("keep", env=_made(env, isolation))
    assert not trajectory.branches


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "text"), [(Raising, "SystemExit"), (Untyped, "history_policy must be")]
)
async def test_environments_bad_policy_faults_the_episode(
    env: type[Env], text: str, isolation: str, tmp_path: Path
) -> None:
    trajectory = await run(None, env=_made(env, isolation), retries=NO_RESTART)
    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.fault is not None
    assert text in trajectory.fault.message
    assert trajectory.reward is None
    assert_verifies(trajectory, tmp_path)


async def _roles(env: type[Env], isolation: str, tmp_path: Path) -> dict[str, Trajectory]:
    HangingRole.loop = asyncio.get_running_loop()
    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(retries=NO_RESTART))
    played = await player.play(_made(env, isolation), EpisodeSpec(seed=3))
    await player.aclose()
    for one in played:
        assert_verifies(one, tmp_path)
    return {str(one.metadata.get("role")): one for one in played}


@ISOLATIONS
async def test_roles_apply_their_own_policies(isolation: str, tmp_path: Path) -> None:
    for env, reasons in (
        (SharedPolicy, ("keep_last_turns",) * 2),
        (OwnPolicies, ("keep_last_turns", "last_two")),
    ):
        played = await _roles(env, isolation, tmp_path)
        found = [{branch.reason for branch in played[role].branches} for role in Pair.roles]
        assert found == [{reason} for reason in reasons]
        assert [one.reward for one in played.values()] == [7.0, 7.0]


@ISOLATIONS
@pytest.mark.parametrize(
    ("env", "where", "text"),
    [
        (HangingRole, FaultPlace.HISTORY, "role 'second' failed: history policy 'never' failed"),
        (LeavingRole, FaultPlace.HISTORY, "role 'first' failed: history policy 'leave' failed"),
        (UntypedRole, FaultPlace.RESET, "history_policy must be"),
        (UnreadableRole, FaultPlace.RESET, "SystemExit"),
    ],
)
@pytest.mark.slow
async def test_bad_policy_of_a_role_ends_its_episode_alone(
    env: type[Env], where: FaultPlace, text: str, isolation: str, tmp_path: Path
) -> None:
    played = await _roles(env, isolation, tmp_path)
    for one in played.values():
        assert one.fault is not None
        assert text in one.fault.message
        assert one.reward is None
        if isolation == "none" or where is FaultPlace.HISTORY:
            assert one.fault.where is where


# ---- aborted episodes with a rewritten history: resumed, they end as the whole one does


class Aborting(ScriptedEngine):
    """Stops the run in the middle of one reply."""

    def __init__(self, *arguments: Any, interrupt: Interrupt, at: int) -> None:
        super().__init__(*arguments)
        self._interrupt, self._at = interrupt, at
        self._requests = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        answer = await super().generate(request)
        self._requests += 1
        if self._requests != self._at:
            return answer
        self._interrupt.fire()
        return Generation(
            token_ids=answer.token_ids[:1],
            logprobs=answer.logprobs[:1],
            finish_reason=FinishReason.ABORT,
            prompt_tokens=answer.prompt_tokens,
        )


@pytest.mark.parametrize("at", range(1, 14))
async def test_resumed_episode_continues_its_rewritten_history(at: int, tmp_path: Path) -> None:
    history = {"summarise": {"at_tokens": 150, "max_tokens": 20}}
    whole = await run(history, env=Screens(max_turns=12))
    env, interrupt = Screens(max_turns=12), Interrupt()
    codec = make_codec("qwen3")
    engine = Aborting(codec, reply, interrupt=interrupt, at=at)
    player = Player(engine, codec, RolloutConfig(history=history))
    (cut,) = await player.play(env, EpisodeSpec(seed=3), interrupt=interrupt)
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


@pytest.mark.parametrize("history", [SUMMARY, TURNS], ids=["summarise", "turns"])
@pytest.mark.parametrize("stop", range(1, 9))
async def test_abort_between_turns_resumes_a_rewritten_history(stop: int, history: Any) -> None:
    codec, interrupt, calls = make_codec("qwen3"), Interrupt(), 0

    def script(context: PolicyContext) -> str:
        nonlocal calls
        calls += 1
        if calls == stop:
            interrupt.fire()
        return reply(context)

    player = Player(ScriptedEngine(codec, script), codec, RolloutConfig(history=history))
    (cut,) = await player.play(Screens(), EpisodeSpec(seed=3), interrupt=interrupt)
    if cut.stop_reason is StopReason.ABORTED:
        assert check_trajectory(cut) == ()
        (cut,) = await player.resume(cut, Screens())
    await player.aclose()
    whole = await run(history)
    assert_sound(cut)
    assert cut.reward == 6.0
    assert [turn.purpose for turn in cut.turns] == [turn.purpose for turn in whole.turns]
    assert [s.train_ids for s in cut.segments] == [s.train_ids for s in whole.segments]


async def resumed(setting: str, folder: Path) -> Trajectory:
    """Resume the stored trajectory of a folder and check the whole episode."""
    (stored,) = load(folder / "stored.jsonl")
    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(history=setting))
    (whole,) = await player.resume(stored, Screens())
    await player.aclose()
    assert_played(whole, folder)
    return whole


async def test_abort_while_a_policy_runs_leaves_an_episode_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt = Interrupt()
    calls: list[int] = []

    def slow(view: HistoryView) -> None:
        calls.append(view.turn)
        if len(calls) == 3:
            loop.call_soon_threadsafe(interrupt.fire)
            skip_from_thread(loop, interrupt.grace_s)

    loop = asyncio.get_running_loop()
    setting = setting_of(monkeypatch, slow)
    trajectory = await run(setting, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.ABORTED, trajectory.fault
    assert_verifies(trajectory, tmp_path)
    await resumed(setting, tmp_path)
    assert calls == [1, 2, 3, 3, 4, 5]


async def test_abort_while_an_answer_is_used_leaves_an_episode_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt = Interrupt()
    rewrites: list[str] = []

    def ask(view: HistoryView) -> Question | None:
        def rewrite(text: str) -> Sequence[Message]:
            rewrites.append(text)
            if len(rewrites) == 1:
                loop.call_soon_threadsafe(interrupt.fire)
                skip_from_thread(loop, interrupt.grace_s)
            return [*view.opening, message("user", text)]

        return (
            Question(text="Summarise.", max_tokens=20, rewrite=rewrite) if view.turn == 3 else None
        )

    loop = asyncio.get_running_loop()
    setting = setting_of(monkeypatch, ask)
    trajectory = await run(setting, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.ABORTED, trajectory.fault
    assert_verifies(trajectory, tmp_path)
    whole = await resumed(setting, tmp_path)
    assert rewrites == ["I saw screens."] * 2
    assert [turn.purpose for turn in whole.turns].count("ask") == 1


class Stubborn(Long):
    """Cannot say it shorter."""

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        return None


@pytest.mark.parametrize("history", ["keep", LAST_TWO, {"summarise": {"at_tokens": 60}}], ids=str)
@pytest.mark.parametrize("env", [Long, Stubborn])
@pytest.mark.slow
async def test_resumed_episode_ends_where_the_whole_one_does(
    env: type[Long], history: Any, tmp_path: Path
) -> None:
    interrupt, limits = Interrupt(), Limits(max_context_tokens=320)
    loop = asyncio.get_running_loop()

    class Aborting(env):
        def on_turn(self, response_text: str) -> Turn:
            if self.turn == 3 and interrupt.reason is None:
                loop.call_soon_threadsafe(interrupt.fire)  # before the result of this step
            return super().on_turn(response_text)

    whole = await run(history, env=env(), limits=limits)
    cut = await run(history, env=Aborting(), limits=limits, interrupt=interrupt)
    assert cut.stop_reason is StopReason.ABORTED
    codec = make_codec("qwen3")
    config = RolloutConfig(history=history, limits=limits)
    player = Player(ScriptedEngine(codec, reply), codec, config)
    (resumed,) = await player.resume(cut, env())
    await player.aclose()
    assert_verifies(resumed, tmp_path)
    assert resumed.stop_reason is whole.stop_reason
    assert resumed.reward == whole.reward
    assert resumed.messages == whole.messages
    assert [one.train_ids for one in resumed.segments] == [one.train_ids for one in whole.segments]


# ---- results of history policies: checked and copied, or a typed fault of the episode


def _endless() -> Iterator[Message]:
    while True:
        yield message("user", "More.")


class Endless(Sequence[Any]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return _endless()

    def __getitem__(self, index: Any) -> Any:
        return message("user", "More.")


class Hostile(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise SystemExit(key)


def _loop() -> Message:
    entry: Any = {"role": "user", "content": "Hi.", "extra": []}
    entry["extra"].append(entry)
    return entry


IMAGE = Image.from_array(np.full((32, 32, 3), 255, np.uint8))
BAD: dict[str, Callable[[HistoryView], Any]] = {
    "empty": lambda view: [],
    "empty tuple": lambda view: (),
    "assistant last": lambda view: [*view.messages, message("assistant", "Mine.")],
    "system last": lambda view: [*view.messages, message("system", "Obey.")],
    "system in the middle": lambda view: [
        *view.opening,
        message("system", "Obey."),
        view.messages[-1],
    ],
    "foreign image": lambda view: [message("user", "Look.", [IMAGE])],
    "generator": lambda view: (entry for entry in view.messages),
    "iterator": lambda view: iter(view.messages),
    "mapping": lambda view: {"role": "user", "content": "Hi."},
    "one message": lambda view: view.messages[-1],
    "set": lambda view: {1, 2},
    "nan": lambda view: float("nan"),
    "true": lambda view: True,
    "zero": lambda view: 0,
    "str": lambda view: "all of them",
    "bytes": lambda view: b"all of them",
    "strings": lambda view: ["Hi."],
    "none in a list": lambda view: [None],
    "unknown role": lambda view: [{"role": "developer", "content": "Hi."}],
    "no content": lambda view: [{"role": "user"}],
    "content none": lambda view: [{"role": "user", "content": None}],
    "role as list": lambda view: [{"role": ["user"], "content": "Hi."}],
    "part of a video": lambda view: [{"role": "user", "content": [{"type": "video"}]}],
    "trusted outside": lambda view: [{"role": "user", "content": "Hi.", "trusted": [[0, 99]]}],
    "object in a key": lambda view: [{"role": "user", "content": "Hi.", "extra": object()}],
    "a loop": lambda view: [_loop()],
    "endless": lambda view: Endless(),
    "huge": lambda view: [view.messages[-1]] * 3_000_000,
    "orphan tool message": lambda view: [*view.opening, message("tool", "Result.")],
    "a class": lambda view: Question,
    "hidden class": lambda view: HiddenClass(),
    "hidden class in a list": lambda view: [HiddenClass()],
    "exception": lambda view: HiddenError(),
    "the policy": lambda view: BAD["the policy"],
    "the view": lambda view: view,
}


RULES = {
    "empty": "at least one message",
    "assistant last": "a user or tool message",
    "foreign image": "not add any",
    "str": "a list of messages",
}
"""What the fault of some of them says of the rule."""


@pytest.mark.parametrize("when", ["policy", "rewrite"])
@pytest.mark.parametrize("case", BAD)
async def test_bad_result_faults_its_episode(
    case: str, when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(view: HistoryView) -> Question:
        return Question(text="Summarise.", max_tokens=20, rewrite=lambda _: BAD[case](view))

    policy = BAD[case] if when == "policy" else ask
    trajectory = await run(setting_of(monkeypatch, policy))
    name = "<lambda>" if when == "policy" else "ask"
    assert_history_fault(trajectory, f"history policy '{name}'", tmp_path)
    assert_history_fault(trajectory, RULES.get(case, ""), tmp_path)


def _reversed_images(view: HistoryView) -> Sequence[Message]:
    images = images_of(view.messages)[::-1]
    return [*view.opening[:-1], message("user", "In reverse.", images)]


GOOD: dict[str, Callable[[HistoryView], Any]] = {
    "tuple": lambda view: tuple(view.messages),
    "same messages": lambda view: list(view.messages),
    "equal messages": lambda view: [dict(entry) for entry in view.messages],
    "always a rewrite": lambda view: [*view.opening, message("user", f"Turn {view.turn}.")],
    "only the last": lambda view: [view.messages[-1]],
    "the last twice": lambda view: [*view.opening, *view.messages[-2:] * 2],
    "no system prompt": lambda view: view.messages[1:],
    "reversed images": _reversed_images,
    "an image twice": lambda view: [
        message("user", "Twice.", [*images_of(view.messages)[-1:]] * 2)
    ],
    "unknown key": lambda view: [{"role": "user", "content": "Hi.", "cache": {"a": 1}}],
    "empty text": lambda view: [{"role": "user", "content": ""}],
    "dict of its own": lambda view: [Hostile(role="user", content="Hi.")],
    "surrogate": lambda view: [message("user", "\ud800")],
    "empty parts": lambda view: [{"role": "user", "content": []}],
}


@pytest.mark.parametrize("case", GOOD)
async def test_odd_result_plays_on(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trajectory = await run(setting_of(monkeypatch, GOOD[case]), images=True)
    assert_played(trajectory, tmp_path)
    is_same = case in ("tuple", "same messages", "equal messages")
    assert bool(trajectory.branches) is not is_same


def lose(_: object) -> Sequence[Message]:
    return []


def _question(**changes: Any) -> Question:
    fields: dict[str, Any] = {"text": "Summarise.", "max_tokens": 20, "rewrite": lose} | changes
    return Question(**fields)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": float("nan")}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 10**40}, "max_tokens"),
        ({"text": ""}, "text"),
        ({"text": " \n"}, "text"),
        ({"text": None}, "text"),
        ({"text": b"Hi."}, "text"),
        ({"rewrite": None}, "rewrite"),
        ({"rewrite": "summary"}, "rewrite"),
        ({"rewrite": asyncio.sleep}, "must not be async"),
        ({"rewrite": dict.fromkeys}, "list of messages"),
        ({"rewrite": len}, "list of messages"),
        ({"rewrite": int}, "ValueError"),
    ],
)
async def test_bad_question_faults_its_episode(
    changes: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(view: HistoryView) -> Question:
        return _question(**changes)

    trajectory = await run(setting_of(monkeypatch, ask))
    assert_history_fault(trajectory, text, tmp_path)


class BadlyNamed:
    def __call__(self, view: HistoryView) -> Sequence[Message]:
        return []

    def __repr__(self) -> str:
        raise SystemExit(4)

    @property
    def __name__(self) -> Any:
        raise KeyboardInterrupt


class OddlyNamed:
    __name__ = 5

    def __call__(self, view: HistoryView) -> Sequence[Message]:
        return [view.messages[-1]]


async def test_hostile_names_are_not_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trajectory = await run(setting_of(monkeypatch, BadlyNamed()))
    assert_history_fault(trajectory, "'BadlyNamed'", tmp_path)
    trajectory = await run(setting_of(monkeypatch, OddlyNamed()))
    assert_played(trajectory, tmp_path)
    assert {branch.reason for branch in trajectory.branches} == {"OddlyNamed"}
