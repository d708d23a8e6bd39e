"""What the gateway hands to an agent: no call of a reply that was cut or only thought."""

from typing import Any

import pytest

from envkit.reply import THOUGHTS, FinishReason, Reply
from envkit.rollout import Generation
from envkit_gateway.reading import read_tool
from envkit_gateway.replies import reply_of
from envkit_gateway.request import AgentRequest

RUN = read_tool(
    {
        "name": "run",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
)
CALL = '<tool_call>\n{"name": "run", "arguments": {"command": "rm -r /d/old"}}\n</tool_call>'
XML = "<tool_call>\n<function=run>\n<parameter=command>\nrm -r /d/old\n</parameter>\n"
XML_END = "</function>\n</tool_call>"


def given(text: str, finish: FinishReason = FinishReason.STOP, **fields: Any) -> Any:
    generation = Generation(token_ids=(1,), logprobs=(0.0,), finish_reason=finish, prompt_tokens=1)
    request = AgentRequest(messages=(), tools=(RUN,), stop=fields.pop("stop", ()))
    said = Reply(text=text, finish=finish, **fields)
    return reply_of(said, generation, request, number=0)


@pytest.mark.parametrize("call", [CALL, XML + XML_END])
def test_a_whole_call_is_handed_on(call: str) -> None:
    reply = given(call)
    assert [one.name for one in reply.calls] == ["run"]
    assert (reply.finish, reply.is_bad) == ("tool_calls", False)


@pytest.mark.parametrize("text", [CALL, XML + XML_END, XML, XML[:60], CALL[:50]])
def test_no_call_of_a_cut_reply_is_handed_on(text: str) -> None:
    reply = given(text, FinishReason.LENGTH)
    assert (reply.calls, reply.finish, reply.is_bad) == ((), "length", True)
    assert reply.message.parts == ({"type": "text", "text": text},)


@pytest.mark.parametrize("opened", THOUGHTS)
def test_no_call_of_a_thought_is_handed_on(opened: str) -> None:
    reply = given(CALL, opened=opened)
    assert (reply.calls, reply.finish, reply.is_bad) == ((), "stop", True)
    assert (reply.message.thinking, reply.message.parts) == (CALL, ())
    by_model = given(f"Let me see. {opened}{CALL}")
    assert (by_model.calls, by_model.message.thinking) == ((), CALL)


def test_a_stop_string_may_close_a_call() -> None:
    reply = given(f"Now.\n{CALL}", stop=("</tool_call>",))
    assert [one.name for one in reply.calls] == ["run"]
    assert reply.stop_string == "</tool_call>"
    assert given("Five. END", stop=("END",)).message.parts == ({"type": "text", "text": "Five. "},)


@pytest.mark.parametrize(
    ("text", "stop", "shown", "ended_by"),
    [
        ("Five. END", ("END",), "Five. ", "END"),
        ("Five. ENDING", ("END",), "Five. ", "END"),
        ("Five.\n\nUser", ("\n\nUs", "\n"), "Five.", "\n"),
        ("Five.</s> Six", ("Six", "</s>"), "Five.", "</s>"),
        ("Five.", ("END",), "Five.", None),
        ("Five.", (), "Five.", None),
    ],
)
def test_agent_sees_nothing_from_the_stop_string_on(
    text: str, stop: tuple[str, ...], shown: str, ended_by: str | None
) -> None:
    """A stop string may end inside the last token, which then says more."""
    reply = given(text, stop=stop)
    assert reply.stop_string == ended_by
    assert reply.message.parts == ({"type": "text", "text": shown},)


def test_call_before_a_stop_string_in_the_last_token_is_handed_on() -> None:
    reply = given(f"Now.\n{CALL}.", stop=("</tool_call>",))
    assert [one.name for one in reply.calls] == ["run"]
    assert reply.message.text.strip() == "Now."


@pytest.mark.parametrize(
    ("text", "opened", "thinking", "answer"),
    [
        ("<think>a</think>\n\nb", "", "a", "b"),
        (" <think>a</think> <think>b</think>c", "", "a\nb", "  c"),
        ("a <think>b</think> c", "", "", "a <think>b</think> c"),
        ("a</think>b", "", "", "a</think>b"),
        ("a</think>b</think><think>c", "<think>", "a", "b</think><think>c"),
        ("<think>a", "", "a", ""),
    ],
)
def test_a_thought_ends_where_the_answer_begins(
    text: str, opened: str, thinking: str, answer: str
) -> None:
    message = given(text, opened=opened, is_opening_known=True).message
    assert (message.thinking or "", message.text) == (thinking, answer)


def test_a_call_in_a_thought_after_the_answer_is_not_run() -> None:
    reply = given(f"I see. <think>{CALL}</think> Done. {CALL}", is_opening_known=True)
    assert [one.name for one in reply.calls] == ["run"]
    assert reply.message.text == "I see.  Done."


@pytest.mark.parametrize("space", ["", "\n", "  "])
def test_white_space_before_an_answer_does_not_depend_on_its_calls(space: str) -> None:
    without, with_call = given(f"{space}I see."), given(f"{space}I see. {CALL}")
    assert with_call.calls
    assert without.message.text == with_call.message.text == f"{space}I see."
