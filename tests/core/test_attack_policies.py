"""History policies of strangers: whatever one does ends its own episode, with a typed fault."""

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fakes.branching import Screens, Summarised, reply
from fakes.codecs import vision_codec
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
from fakes.templates import make_codec

from envkit.env import Env, Observation, PolicyContext, Turn
from envkit.errors import ConfigurationError, FaultKind, type_name
from envkit.images import Image
from envkit.isolation.process import close_supervisors
from envkit.messages import Message, images_of, message, text_of
from envkit.rollout import (
    EpisodeSpec,
    HistoryView,
    Interrupt,
    Limits,
    Player,
    Question,
    RetryBudget,
    RolloutConfig,
    ScriptedEngine,
)
from envkit.rollout.history import history_policy
from envkit.rollout.sources import isolated
from envkit.trajectory import (
    FaultPlace,
    StopReason,
    Trajectory,
    check_trajectory,
    load,
    save,
    verify_file,
)
from envkit.trajectory.sequence import branch_history

QUICK = RetryBudget(step_timeout_s=0.3, max_episode_restarts=0)
LAST_TWO = "fakes.own_histories:last_two"


def _setting(monkeypatch: pytest.MonkeyPatch, policy: Any) -> str:
    """Name a policy that is not at the top of a module."""
    monkeypatch.setitem(globals(), "chosen", policy)
    return f"{__name__}:chosen"


async def run(
    history: Any,
    *,
    env: Any = None,
    images: bool = False,
    script: Any = reply,
    template: str = "qwen3",
    interrupt: Interrupt | None = None,
    **options: Any,
) -> Trajectory:
    codec = vision_codec() if images else make_codec(template)
    config = RolloutConfig(history=history, sanity_share=1.0, **options)
    player = Player(ScriptedEngine(codec, script), codec, config)
    try:
        (trajectory,) = await player.play(
            env or Screens(images=images), EpisodeSpec(seed=3), interrupt=interrupt
        )
    finally:
        await player.aclose()
    return trajectory


def assert_history_fault(trajectory: Trajectory, text: str, tmp_path: Path) -> None:
    assert trajectory.stop_reason is StopReason.LEDGER_FAULT
    assert trajectory.fault is not None
    assert trajectory.fault.where is FaultPlace.HISTORY, trajectory.fault
    assert text in trajectory.fault.message
    assert trajectory.reward is None
    assert_verifies(trajectory, tmp_path)


def assert_verifies(trajectory: Trajectory, tmp_path: Path) -> None:
    assert check_trajectory(trajectory) == ()
    save(trajectory, tmp_path / "stored.jsonl")
    assert verify_file(tmp_path / "stored.jsonl").is_sound
    (stored,) = load(tmp_path / "stored.jsonl")
    assert stored.messages == trajectory.messages


def assert_played(trajectory: Trajectory, tmp_path: Path) -> None:
    assert trajectory.fault is None, trajectory.fault
    assert trajectory.reward == 6.0
    assert_verifies(trajectory, tmp_path)
    rows = trajectory.steps(merge=True)
    assert sum(sum(row.loss_mask) for row in rows) == trajectory.sampled_token_count


# --- what a policy does with its argument ---------------------------------------------------


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

    trajectory = await run(_setting(monkeypatch, keeper))
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

    trajectory = await run(_setting(monkeypatch, edit))
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

    trajectory = await run(_setting(monkeypatch, toggle), images=True)
    assert_played(trajectory, tmp_path)
    assert len(trajectory.branches) == 2


# --- a policy that does not come back -------------------------------------------------------


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
        history=_setting(monkeypatch, hang_if_odd),
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


async def test_abort_while_a_policy_runs_leaves_an_episode_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt = Interrupt(grace_s=0.1)
    calls: list[int] = []

    def slow(view: HistoryView) -> None:
        calls.append(view.turn)
        if len(calls) == 3:
            loop.call_soon_threadsafe(interrupt.fire)
            time.sleep(30)

    loop = asyncio.get_running_loop()
    setting = _setting(monkeypatch, slow)
    async with asyncio.timeout(20):
        trajectory = await run(setting, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.ABORTED, trajectory.fault
    assert_verifies(trajectory, tmp_path)
    (stored,) = load(tmp_path / "stored.jsonl")
    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(history=setting))
    (whole,) = await player.resume(stored, Screens())
    await player.aclose()
    assert_played(whole, tmp_path)
    assert calls == [1, 2, 3, 3, 4, 5]


async def test_abort_while_an_answer_is_used_leaves_an_episode_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt = Interrupt(grace_s=0.1)
    rewrites: list[str] = []

    def ask(view: HistoryView) -> Question | None:
        def rewrite(text: str) -> Sequence[Message]:
            rewrites.append(text)
            if len(rewrites) == 1:
                loop.call_soon_threadsafe(interrupt.fire)
                time.sleep(30)
            return [*view.opening, message("user", text)]

        return (
            Question(text="Summarise.", max_tokens=20, rewrite=rewrite) if view.turn == 3 else None
        )

    loop = asyncio.get_running_loop()
    setting = _setting(monkeypatch, ask)
    trajectory = await run(setting, interrupt=interrupt)
    assert trajectory.stop_reason is StopReason.ABORTED, trajectory.fault
    assert_verifies(trajectory, tmp_path)
    (stored,) = load(tmp_path / "stored.jsonl")
    codec = make_codec("qwen3")
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(history=setting))
    (whole,) = await player.resume(stored, Screens())
    await player.aclose()
    assert_played(whole, tmp_path)
    assert rewrites == ["I saw screens."] * 2
    assert [turn.purpose for turn in whole.turns].count("ask") == 1


async def test_episode_deadline_during_a_policy_is_a_fault(tmp_path: Path) -> None:
    RELEASE.clear()
    trajectory = await run(f"{__name__}:sleep", limits=Limits(episode_timeout_s=3))
    RELEASE.set()
    assert_history_fault(trajectory, "episode", tmp_path)


# --- a policy that raises, or is asynchronous -----------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Weird(BaseException):
    pass


class Hidden(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__name__":
            raise SystemExit(name)
        return super().__getattribute__(name)


class HiddenError(BaseException, metaclass=Hidden):
    pass


class HiddenClass:
    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise SystemExit("class")


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
    trajectory = await run(_setting(monkeypatch, policy))
    assert_history_fault(trajectory, type_name(error), tmp_path)


@pytest.mark.parametrize("when", ["policy", "rewrite"])
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
        trajectory = await run(_setting(monkeypatch, policy))
        gc.collect()
    assert_history_fault(trajectory, "must not be async", tmp_path)


# --- what a policy returns ------------------------------------------------------------------


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


@pytest.mark.parametrize("when", ["policy", "rewrite"])
@pytest.mark.parametrize("case", BAD)
async def test_bad_result_faults_its_episode(
    case: str, when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(view: HistoryView) -> Question:
        return Question(text="Summarise.", max_tokens=20, rewrite=lambda _: BAD[case](view))

    policy = BAD[case] if when == "policy" else ask
    trajectory = await run(_setting(monkeypatch, policy))
    name = "<lambda>" if when == "policy" else "ask"
    assert_history_fault(trajectory, f"history policy '{name}'", tmp_path)


def _reversed_images(view: HistoryView) -> Sequence[Message]:
    images = images_of(view.messages)[::-1]
    return [*view.opening[:-1], message("user", "In reverse.", images)]


GOOD: dict[str, Callable[[HistoryView], Any]] = {
    "tuple": lambda view: tuple(view.messages),
    "same messages": lambda view: list(view.messages),
    "equal messages": lambda view: [dict(entry) for entry in view.messages],
    "always a rewrite": lambda view: [*view.opening, message("user", f"Turn {view.turn}.")],
    "only the last": lambda view: [view.messages[-1]],
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
    trajectory = await run(_setting(monkeypatch, GOOD[case]), images=True)
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

    trajectory = await run(_setting(monkeypatch, ask))
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
    trajectory = await run(_setting(monkeypatch, BadlyNamed()))
    assert_history_fault(trajectory, "'BadlyNamed'", tmp_path)
    trajectory = await run(_setting(monkeypatch, OddlyNamed()))
    assert_played(trajectory, tmp_path)
    assert {branch.reason for branch in trajectory.branches} == {"OddlyNamed"}


# --- settings -------------------------------------------------------------------------------


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


# --- limits ---------------------------------------------------------------------------------


class Long(Screens):
    """Says more than fits in its fourth turn, and can say it shorter."""

    rooms: ClassVar[list[int]] = []

    def on_turn(self, response_text: str) -> Turn:
        text = "long " * 400 if self.turn == 3 else f"Screen {self.turn + 1}."
        return Turn(text, reward=1.0)

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        type(self).rooms.append(tokens)
        return {**observation, "text": "long " * max(1, (tokens - 20) // 2)}


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

    trajectory = await run(_setting(monkeypatch, ask), limits=Limits(max_context_tokens=400))
    assert trajectory.stop_reason is StopReason.CONTEXT_TOKENS
    assert trajectory.reward == 3.0
    assert_verifies(trajectory, tmp_path)


# --- tools ----------------------------------------------------------------------------------


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
        answers = set(roles[3::2])
        assert answers == {"user"} if template in ("gpt-oss", "phi3") else answers == {"tool"}


# --- an environment's own policy ------------------------------------------------------------


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
    trajectory = await run(None, env=_made(env, isolation), retries=QUICK)
    assert trajectory.stop_reason is StopReason.ENV_FAULT
    assert trajectory.fault is not None
    assert text in trajectory.fault.message
    assert trajectory.reward is None
    assert_verifies(trajectory, tmp_path)


async def _roles(env: type[Env], isolation: str, tmp_path: Path) -> dict[str, Trajectory]:
    codec = make_codec("qwen3")
    retries = RetryBudget(step_timeout_s=1, max_episode_restarts=0)
    player = Player(ScriptedEngine(codec, reply), codec, RolloutConfig(retries=retries))
    async with asyncio.timeout(15):
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


class Stubborn(Long):
    """Cannot say it shorter."""

    def shorten(self, observation: Observation, tokens: int) -> Observation | None:
        return None


@pytest.mark.parametrize("history", ["keep", LAST_TWO, {"summarise": {"at_tokens": 60}}], ids=str)
@pytest.mark.parametrize("env", [Long, Stubborn])
async def test_resumed_episode_ends_where_the_whole_one_does(
    env: type[Long], history: Any, tmp_path: Path
) -> None:
    interrupt, limits = Interrupt(), Limits(max_context_tokens=320)
    loop = asyncio.get_running_loop()

    class Aborting(env):
        def on_turn(self, response_text: str) -> Turn:
            if self.turn == 3 and interrupt.reason is None:
                loop.call_soon_threadsafe(interrupt.fire)
                time.sleep(0.2)
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
