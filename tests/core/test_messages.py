"""Chat messages and replies: order of parts, how a reply ended, and what of it is only thought."""

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PilImage

from envkit.errors import ConfigurationError, ContractError
from envkit.images import Image
from envkit.messages import check_message, images_of, message, text_of
from envkit.reply import THOUGHTS, FinishReason, Reply

RED = Image.from_pil(PilImage.new("RGB", (2, 2), "red"))
BLUE = Image.from_pil(PilImage.new("RGB", (2, 2), "blue"))


def test_message_without_images_is_a_plain_string() -> None:
    assert message("tool", "3") == {"role": "tool", "content": "3"}


def test_message_puts_images_before_the_text() -> None:
    entry = message("user", "Which?", [RED, BLUE])

    assert entry["content"] == [
        {"type": "image", "image": RED},
        {"type": "image", "image": BLUE},
        {"type": "text", "text": "Which?"},
    ]
    assert images_of([message("system", "s"), entry, message("user", "", [RED])]) == (
        RED,
        BLUE,
        RED,
    )
    assert text_of(entry) == "Which?"
    assert text_of(message("user", "plain")) == "plain"


def test_good_message_is_returned_as_it_is() -> None:
    entry = message("user", "Which?", [RED])

    assert check_message(entry, source="test") is entry


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        (None, "must return a message"),
        ({"role": "user"}, "must return a message"),
        ({"role": "human", "content": ""}, "got 'human'"),
        ({"role": "user", "content": 5}, "got int"),
        ({"role": "user", "content": ["text"]}, "a part must be"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "a part must be"),
        ({"role": "user", "content": [{"type": "image", "image": "x.png"}]}, "a part must be"),
        ({"role": "system", "content": [{"type": "image", "image": RED}]}, "role 'system'"),
        (
            {"role": "user", "content": [{"type": "image", "image": b"\x89PNG"}]},
            "envkit.Image",
        ),
    ],
)
def test_wrong_message_names_its_maker_and_the_rule(entry: Any, part: str) -> None:
    with pytest.raises(ContractError, match=r"geo3k\.format_observation") as caught:
        check_message(entry, source="geo3k.format_observation")

    assert part in str(caught.value)


MARKS = sorted(set(THOUGHTS) | set(THOUGHTS.values()))
TEXTS = st.lists(
    st.sampled_from([*MARKS, "<tool_call>", "</tool_call>", "<function=", "</function>", "{", "}"])
    | st.sampled_from(['{"a": "<think>"}', "[TOOL_CALLS]", " \n", "5"])
    | st.text(max_size=4),
    max_size=20,
).map("".join)
REPLIES = st.builds(
    Reply,
    text=TEXTS,
    finish=st.sampled_from(FinishReason),
    opened=st.sampled_from(["", *THOUGHTS]),
    is_opening_known=st.booleans(),
)


@given(REPLIES)
def test_a_reply_survives_the_wire_a_copy_and_a_pickle(reply: Reply) -> None:
    assert Reply.from_wire(json.loads(json.dumps(reply.to_wire()))) == reply
    assert copy.deepcopy(reply) == reply == pickle.loads(pickle.dumps(reply))


@given(REPLIES)
def test_closing_an_open_thought_leaves_nothing_open_and_no_new_answer(reply: Reply) -> None:
    closed = reply.with_text(reply.text + reply.open_thought + "x" * bool(reply.open_thought))

    assert closed.open_thought == ""
    assert closed.answer == reply.answer + "x" * bool(reply.open_thought)


@given(REPLIES, TEXTS)
def test_what_follows_in_an_open_thought_is_no_answer(reply: Reply, more: str) -> None:
    longer = reply.with_text(f"{reply.text}\0{more}")

    if reply.open_thought and reply.open_thought not in longer.text[-len(more) - 40 :]:
        assert longer.answer == reply.answer


@pytest.mark.parametrize(("opening", "closing"), THOUGHTS.items())
def test_thoughts_are_split_off_whoever_opened_them(opening: str, closing: str) -> None:
    by_model = Reply(text=f"{opening}\nhm\n{closing}\n\nFive")
    by_prompt = Reply(text=f"\nhm\n{closing}\n\nFive", opened=opening)
    later = Reply(text=f"Four. {opening}no{closing}Five {opening}or six")

    assert (by_model.thinking, by_model.answer) == ("hm", "\n\nFive")
    assert (by_prompt.thinking, by_prompt.answer) == ("hm", "\n\nFive")
    assert (later.thinking, later.answer) == ("no\nor six", "Four. Five ")
    assert (by_model.open_thought, later.open_thought) == ("", closing)


def test_a_stray_closing_mark_ends_a_thought_of_the_prompt() -> None:
    reply = Reply(text='<tool_call>{"name": "f"}</tool_call> hm</think>Five')

    assert reply.answer == "Five"


def test_a_stray_closing_mark_is_text_if_the_prompt_is_known_to_have_opened_no_thought() -> None:
    text = "hm</think>Five"
    known = Reply(text=text, is_opening_known=True)
    opened = Reply(text=f"{text}</think>!", opened="<think>", is_opening_known=True)

    assert (known.thinking, known.answer, known.thought_spans) == ("", text, ())
    assert (opened.thinking, opened.answer) == ("hm", "Five</think>!")


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>{"name": "f", "arguments": {"a": "</think> and <think>"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call></think>"}}</tool_call>',
        "<function=f><parameter=a>\n</think> and <think>\n</parameter></function>",
        '[TOOL_CALLS][{"name": "f", "arguments": {"a": "</think>"}}]',
        '[TOOL_CALLS]f[ARGS]{"a": "<think>"}',
        '{"name": "f", "parameters": {"a": "</think> <think>"}}',
    ],
)
def test_marks_in_the_arguments_of_a_call_are_data(call: str) -> None:
    assert (Reply(text=call).answer, Reply(text=call).thinking) == (call, "")
    thought = Reply(text=f"<think>hm</think>{call}")
    assert (thought.answer, thought.thinking) == (call, "hm")


def test_an_unclosed_draft_does_not_hide_the_end_of_its_thought() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'

    assert Reply(text=f'I try <tool_call>{{"name": "g"}} no</think>{call}').answer == call
    assert Reply(text=f"I try <tool_call>{{ no</think>{call}").answer == call


def test_only_a_whole_reply_has_a_final_answer() -> None:
    for finish in FinishReason:
        reply = Reply(text="<think>a</think>b", finish=finish)
        assert reply.is_cut == (finish is not FinishReason.STOP)
        assert reply.answer == "b"
        assert reply.final == ("" if reply.is_cut else "b")


def test_a_reply_refuses_what_is_none() -> None:
    with pytest.raises(ConfigurationError, match="must be a str, got int"):
        Reply(text=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="finish of a Reply must be one of"):
        Reply(text="", finish="eos")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="opened must be"):
        Reply(text="", opened="<b>")
    for data in (None, 5, {"finish": "stop"}, {"text": "a", "more": 1}):
        with pytest.raises(ConfigurationError, match="a reply is a string, or an object"):
            Reply.from_wire(data)


def test_hostile_replies_are_split_in_linear_time() -> None:
    for piece in ("<think>", "</think>", "<tool_call>", "[TOOL_CALLS]{", "<think></think>"):
        text = piece * 40_000 + "</think>"
        assert Reply(text=text).thinking is not None  # hangs if it takes quadratic time
