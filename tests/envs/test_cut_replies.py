"""What a cut reply and a thought are worth in the environments: no call, no answer, no end."""

from collections.abc import Callable
from typing import Any, cast

import pytest

import envkit
from envkit.env import Env, PolicyContext
from envkit.reply import CUT, CUT_NOTICE, FinishReason, Reply

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
