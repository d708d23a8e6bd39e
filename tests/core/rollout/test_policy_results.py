"""Results of history policies: checked and copied, or a typed fault of the episode."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.policy_runs import (
    HiddenClass,
    HiddenError,
    assert_history_fault,
    assert_played,
    run,
    setting_of,
)

from envkit.images import Image
from envkit.messages import Message, images_of, message
from envkit.rollout import HistoryView, Question


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
