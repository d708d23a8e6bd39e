"""Forty thousand malformed replies, and what a cut one is worth, for every environment."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from fakes.malformed_replies import feed, huge_replies, malformed_replies
from fakes.matrix import share
from fakes.needs import REASONING_GYM
from fakes.search_backend import MemoryBackend, tasks

import envkit
from envkit.env import Env, PolicyContext
from envkit.reply import CUT, CUT_NOTICE, FinishReason, Reply
from envkit_actions import FAMILIES, Action, ActionKind, InexpressibleActionError, Status
from envkit_desktop import ComputerUseEnv

PER_ENVIRONMENT = 40_000


@dataclass(frozen=True, kw_only=True)
class Way:
    """An environment set up in one way, and what it is made to read."""

    env_id: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sound: Sequence[str]
    calls: Sequence[tuple[str, str]] = ()
    ways: int
    """Ways of this environment, which share its replies."""

    def make(self) -> envkit.Env:
        made: Any = envkit.make(self.env_id, disable_env_checker=True, **self.arguments)
        return made.unwrapped


THOUGHT = "<think>Let me see.</think>\n"

TAGS = (f"{THOUGHT}<search>river Vessa</search>", f"{THOUGHT}<answer>nobody</answer>")

SEARCH = (
    'I look.\n<tool_call>\n{"name": "search", "arguments": {"query": "Tindel", "topk": 2}}\n'
    "</tool_call>",
    "<answer>nobody</answer>",
)

GEOMETRY = (
    '<tool_call>{"name": "calc_score", "arguments": {"answer": "-\\\\frac{5}{2}"}}</tool_call>',
    '<tool_call>{"name": "zoom", "arguments": {"region": [0, 0.25, 0.5, 1]}}</tool_call>',
    "So \\boxed{-\\frac{5}{2}}.",
    "\\boxed{-\\text{about } 2\\sqrt{3} : 7^{2} \\approx -3}",
)

ACTIONS = (
    Action(kind=ActionKind.CLICK, x=30, y=40),
    Action(kind=ActionKind.TYPE, text="it's <b>"),
    Action(kind=ActionKind.KEY, keys=("ctrl", "c")),
    Action(kind=ActionKind.DRAG, x=1, y=2, path=((3, 4), (50, 60))),
    Action(kind=ActionKind.SCROLL, x=5, y=6, dy=240),
    Action(kind=ActionKind.WAIT, seconds=1.0),
    Action(kind=ActionKind.TERMINATE, status=Status.FAILURE),
)


def _search(sound: Sequence[str], **arguments: Any) -> Way:
    given: dict[str, Any] = {"tasks": tasks(), "backend": MemoryBackend(), "max_turns": 64}
    calls = (("search", "query"), ("search", "topk"))
    return Way(
        env_id="search-v0", arguments={**given, **arguments}, sound=sound, calls=calls, ways=3
    )


def _written(name: str) -> list[str]:
    """Return sound replies of a family of actions."""
    dialect = ComputerUseEnv(action=name).dialect
    replies: list[str] = []
    for action in ACTIONS:
        try:
            replies.append(dialect.write([action]))
        except InexpressibleActionError:
            continue
    return replies


WAYS: dict[str, Way] = {
    "search tags": _search(TAGS, reward="format"),
    "search tools": _search(SEARCH, reward="f1", protocol="tools"),
    "search em_compat": _search(TAGS, reward="em_compat"),
    "geo3k": Way(
        env_id="geo3k-v0",
        arguments={"max_turns": 64},
        sound=GEOMETRY,
        calls=(("calc_score", "answer"), ("zoom", "region")),
        ways=1,
    ),
    "canary": Way(
        env_id="canary-v0", arguments={"turns": 64}, sound=("The code is K7MX, sure.",), ways=1
    ),
    "reasoning_gym": Way(
        env_id="reasoning_gym/chain_sum-v0",
        arguments={"max_turns": 64},
        sound=("I add.\n<answer>12x</answer>", "<answer>1e9</answer>"),
        ways=1,
    ),
    **{
        f"computer use {name}": Way(
            env_id="computer-use-v0",
            arguments={"action": name, "max_turns": 64},
            sound=_written(name),
            calls=(("computer", "action"), ("computer", "coordinate"), ("computer", "actions")),
            ways=len(FAMILIES),
        )
        for name in FAMILIES
    },
}


@pytest.mark.parametrize("name", share(WAYS, of=4))
def test_environment_survives_malformed_replies(name: str) -> None:
    if name == "reasoning_gym":
        REASONING_GYM.require()
    way = WAYS[name]
    counts = feed(way.make(), malformed_replies(name, 300, way.sound, way.calls))
    assert counts.replies == 300
    assert 60 < counts.errors < 300, "some are understood, which tries what follows the parser"
    assert counts.episodes > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_environment_survives_its_share_of_forty_thousand(name: str) -> None:
    if name == "reasoning_gym":
        REASONING_GYM.require()
    way = WAYS[name]
    count = -(-PER_ENVIRONMENT // way.ways)
    replies = malformed_replies(f"{name}, all", count, way.sound, way.calls)
    assert feed(way.make(), replies).replies == count


@pytest.mark.parametrize("name", share(WAYS, of=6))
def test_environment_survives_replies_of_10_megabytes(name: str) -> None:
    if name == "reasoning_gym":
        REASONING_GYM.require()
    way = WAYS[name]
    assert feed(way.make(), huge_replies(name, way.sound)).replies == 2


def test_replies_are_the_same_for_one_seed_and_of_every_kind() -> None:
    def some(seed: str) -> list[str]:
        return list(malformed_replies(seed, 8000, TAGS, [("search", "query")]))

    replies = some("a")
    assert replies == some("a")
    assert replies[:100] != some("b")[:100]
    assert sum(len(reply) > 60_000 for reply in replies) >= 2
    for mark in (
        "NaN",
        "Infinity",
        "\ud800",
        "[[[[[[",
        '{"a":{"a":',
        "<information>",
        "</tool_res",
    ):
        assert any(mark in reply for reply in replies), mark
    assert any(reply.count('"query"') == 2 for reply in replies)
    assert len(set(replies)) > 6000
    lengths = [len(reply) for reply in itertools.islice(huge_replies("a", TAGS), 2)]
    assert min(lengths) >= 10_000_000


LAKE = {"env": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}

ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "canary-v0": {},
    "geo3k-v0": {},
    "search-v0": {},
    "search-v0 tools": {"protocol": "tools"},
    "gymnasium-v0": LAKE,
    "gymnasium-v0 tags": {**LAKE, "action_form": "tags"},
    "computer-use-v0": {"families": ["toggle_checks"]},
}

HOW: dict[str, Callable[[str], Reply]] = {
    "cut after the whole text": lambda text: Reply(text=text, finish=FinishReason.LENGTH),
    "cut inside the text": lambda text: Reply(
        text=text[: len(text) // 2], finish=FinishReason.LENGTH
    ),
    "only thought": lambda text: Reply(text=text, opened="<think>"),
    "thought of the model": lambda text: Reply(text=f"<think>Maybe:\n{text}"),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_answer_that_was_cut_or_only_thought_earns_nothing(name: str, how: str) -> None:
    env = cast(Env, envkit.make(name.split()[0], **ENVIRONMENTS[name]).unwrapped)
    observation, _ = env.reset(seed=3)
    context = PolicyContext(
        env=env, task=env.task, turn=0, messages=(env.format_observation(observation),), seed=3
    )
    reply = HOW[how](env.oracle()(context).replace("</think>", ""))
    env.announce(reply)
    step = env.step(reply.text)

    assert (step.reward, step.terminated) == (0.0, False)
    assert step.info["tool_call"] is None
    assert step.info["parse_error"] == CUT if reply.is_cut else step.info["parse_error"]
    assert (CUT_NOTICE in step.observation["text"]) == reply.is_cut
    env.close()
