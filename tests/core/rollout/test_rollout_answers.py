"""The call that a tool message answers: carried by the loop, for every environment."""

from typing import Any, ClassVar

import pytest
from fakes.templates import default_codec, encode

import envkit
from envkit.env import Env
from envkit.messages import Message
from envkit.reply import Reply
from envkit.rollout import ScriptedEngine, play
from envkit.rollout.answers import ToolAnswers
from envkit.turns import Turn

CALL = '<tool_call>\n{"name": "calc", "arguments": {"q": "3*7"}}\n</tool_call>'


class Calculator(Env):
    """Answers every reply as a tool that knows nothing of the call."""

    metadata: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__(max_turns=3)

    def on_reset(self, task: Any) -> Turn:
        return Turn("What is 3*7?")

    def on_turn(self, response_text: str) -> Turn:
        return Turn("21", role="tool", done="It is" in response_text, reward=1.0)


def script(*replies: str) -> Any:
    words = iter(replies)

    def say(*_: object) -> str:
        return next(words)

    return say


@pytest.mark.parametrize("name", ["gpt-oss", "mistral-nemo"])
async def test_answers_carry_the_call_to_templates_that_write_it(name: str) -> None:
    codec = default_codec(name)
    engine = ScriptedEngine(codec, script(CALL, CALL, "It is 21."))
    trajectory = await play(Calculator(), engine, codec, seed=1)
    assert trajectory.fault is None
    answers = [entry for entry in trajectory.messages if entry["role"] == "tool"]
    assert [entry.get("name") for entry in answers][:2] == ["calc", "calc"]
    assert [entry.get("tool_call_id") for entry in answers][:2] == ["call00000", "call00001"]
    observed = codec.decode_all(trajectory.segments[2].wire_ids)
    assert ("functions.calc" if name == "gpt-oss" else "call00000") in observed


@pytest.mark.parametrize("name", ["gpt-oss", "mistral-nemo"])
async def test_answers_to_no_call_are_read_as_user_messages(name: str) -> None:
    codec = default_codec(name)
    engine = ScriptedEngine(codec, script("no call", "nor here", "It is 21."))
    trajectory = await play(Calculator(), engine, codec, seed=1)
    assert trajectory.fault is None
    assert len(trajectory.turns) == 3


async def test_answers_leave_other_templates_their_ids() -> None:
    codec = default_codec("qwen3")
    engine = ScriptedEngine(codec, script(CALL, "It is 21."))
    trajectory = await play(Calculator(), engine, codec, seed=1)
    said = "\n<|im_start|>user\n<tool_response>\n21\n</tool_response><|im_end|>\n"
    want = encode("qwen3", f"{said}<|im_start|>assistant\n")
    assert list(trajectory.segments[2].wire_ids) == want


@pytest.mark.parametrize(
    ("reply", "info", "name", "call_id"),
    [
        (CALL, None, "calc", "call00003"),
        ("<|channel|>commentary to=functions.calc<|message|>{}", None, "calc", "call00003"),
        ("<|tool_call>call:calc{q:1}<tool_call|>", None, "calc", "call00003"),
        (
            "x",
            {"tool_call": {"name": "calc", "id": "functions.calc:0"}},
            "calc",
            "functions.calc:0",
        ),
        ("x", {"tool_call": {"name": "calc", "id": "call00000"}}, "calc", "call00003"),
        ("x", {"tool_call": {"name": "<|im_end|>"}}, None, None),
        ("x", {"tool_call": "calc"}, None, None),
        ("no call", None, None, None),
    ],
)
def test_answers_find_the_call(
    reply: str, info: Any, name: str | None, call_id: str | None
) -> None:
    entry: Message = {"role": "tool", "content": "21"}
    answer = ToolAnswers(default_codec("qwen3")).readable(
        entry, reply=Reply(text=reply), info=info, turn=3
    )
    assert (answer.get("name"), answer.get("tool_call_id")) == (name, call_id)
    assert entry == {"role": "tool", "content": "21"}


@pytest.mark.slow  # its tokenizer takes seconds to load
def test_answers_replace_an_id_that_the_template_refuses() -> None:
    info = {"tool_call": {"name": "calc", "id": "x"}}
    answer = ToolAnswers(default_codec("mistral-nemo")).readable(
        {"role": "tool", "content": ""}, info=info, turn=3
    )
    assert answer.get("tool_call_id") == "call00003"


def test_answers_leave_user_messages_alone() -> None:
    entry = envkit.messages.message("user", "21")
    assert ToolAnswers(default_codec("qwen3")).readable(entry, reply=Reply(text=CALL)) is entry
