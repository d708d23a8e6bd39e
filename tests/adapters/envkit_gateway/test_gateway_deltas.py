"""What is shown of a growing reply is the beginning of its final form."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envkit.errors import LedgerFault
from envkit.reply import THOUGHTS, FinishReason, Reply
from envkit.rollout import Generation
from envkit.toolcalls.json_formats import CALL_MARKS
from envkit_gateway.deltas import Delta, ReplyDeltas, TokenText
from envkit_gateway.messages import AgentMessage
from envkit_gateway.reading import read_tool
from envkit_gateway.replies import reply_of
from envkit_gateway.request import AgentRequest

RUN = read_tool({"name": "run", "parameters": {"type": "object", "properties": {}}})
CALLS = (
    '<tool_call>\n{"name": "run", "arguments": {"command": "<think>"}}\n</tool_call>',
    "<tool_call>\n<function=run>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>run\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    '[TOOL_CALLS]run[ARGS]{"a": 1}',
    '<|python_tag|>{"name": "run", "parameters": {}}',
    ' {"name" : "run", "parameters": {}}',
)
STOPS = ("STOP", "\n\n", "ab", "</think>", "</tool_call>")
MARKS = (*THOUGHTS, *THOUGHTS.values(), *CALL_MARKS)
THINKING = (
    "<think>a </think>",
    "\n<think>\nb\n</think>\n",
    "[THINK]c[/THINK]",
    "<think> </think>\n\n",
)
PIECES = st.one_of(
    st.sampled_from((*MARKS, *STOPS)),
    st.sampled_from(CALLS).flatmap(lambda one: st.sampled_from((one, f"a \n{one}\n", f"{one} b"))),
    st.sampled_from(THINKING),
    st.sampled_from(MARKS).flatmap(lambda one: st.integers(1, len(one)).map(lambda n: one[:n])),
    st.sampled_from(
        ("<think>", "</think>", "\n\n", " ", "\n", "a", "b", "{", '{"name"', '"x": 1}')
    ),
    st.text(alphabet="a b\n<{[|é😀\ud800", max_size=4),
)


def final(text: str, *, opened: str, stop: Sequence[str], tools: bool, finish: FinishReason) -> Any:
    """Return thinking and text of a whole reply."""
    generation = Generation(token_ids=(1,), logprobs=(0.0,), finish_reason=finish, prompt_tokens=1)
    request = AgentRequest(messages=(), tools=(RUN,) if tools else (), stop=tuple(stop))
    said = Reply(text=text, finish=finish, opened=opened, is_opening_known=True)
    message = reply_of(said, generation, request, number=0).message
    return Delta(message.thinking or "", message.text)


def shown(chunks: Sequence[str], **begun: Any) -> list[Delta]:
    """Return what is shown after each chunk."""
    deltas, thinking, text = ReplyDeltas(**begun), "", ""
    found: list[Delta] = []
    for chunk in chunks:
        more = deltas.feed(chunk)
        assert not (more.thinking and text), "thinking after text"
        thinking, text = thinking + more.thinking, text + more.text
        found.append(Delta(thinking, text))
    return found


def ended(text: str, stop: Sequence[str], extra: int) -> str:
    """Cut a text where an engine stops: after a stop string and the rest of its token."""
    ends = [place + len(one) for one in stop if (place := text.find(one)) >= 0]
    return text[: min(ends) + extra] if ends else text


@given(
    first=st.sampled_from(("", "", CALLS[-1], '{"name": "Bo"}')),
    pieces=st.lists(PIECES, max_size=8),
    opened=st.sampled_from(("", "<think>", "[THINK]")),
    stop=st.lists(st.sampled_from(STOPS), max_size=2, unique=True),
    tools=st.booleans(),
    finish=st.sampled_from((FinishReason.STOP, FinishReason.LENGTH)),
    extra=st.integers(0, 3),
    size=st.sampled_from((1, 1, 2, 7, 1000)),
)
@settings(max_examples=800, deadline=None)
def test_shown_text_is_the_beginning_of_the_final_form(
    first: str,
    pieces: list[str],
    opened: str,
    stop: list[str],
    tools: bool,
    finish: FinishReason,
    extra: int,
    size: int,
) -> None:
    text = ended("".join([first, *pieces]), stop, extra)
    whole = final(text, opened=opened, stop=stop, tools=tools, finish=finish)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    for delta in shown(chunks, opened=opened, stop=stop, has_calls=tools):
        assert whole.thinking.startswith(delta.thinking)
        assert whole.text.startswith(delta.text)
        assert not delta.text or delta.thinking == whole.thinking


@pytest.mark.parametrize("tools", [False, True])
def test_plain_text_is_shown_as_it_comes(tools: bool) -> None:
    chunks = ["<th", "ink>I ", "see</thi", "nk>\n\n", "Two", " < ", "three", "."]
    assert shown(chunks, opened="", stop=(), has_calls=tools) == [
        Delta(),
        Delta("I"),
        Delta("I see"),
        Delta("I see"),
        Delta("I see", "Two"),
        Delta("I see", "Two <" if tools else "Two < "),
        Delta("I see", "Two < three"),
        Delta("I see", "Two < three."),
    ]


def test_reply_that_does_not_begin_with_what_was_shown_is_a_fault() -> None:
    message = AgentMessage(role="assistant", parts=({"type": "text", "text": "don't"},))
    assert Delta(text="do").rest_of(message) == Delta(text="n't")
    for shown_before in (Delta(text="do n"), Delta(thinking="do")):
        with pytest.raises(LedgerFault, match="must begin with what was streamed"):
            shown_before.rest_of(message)


class Bytes:
    """A vocabulary of bytes and texts, which decodes bytes as SentencePiece's fallback does."""

    def __init__(self, *, is_whole_run: bool) -> None:
        self.is_whole_run = is_whole_run
        self.words = ["hello", " you", "<|end|>"]

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        found, run = "", b""
        for one in [*ids, None]:
            if one is not None and one < 256:
                run += bytes([one])
                continue
            if self.is_whole_run:
                try:
                    found += run.decode()
                except UnicodeDecodeError:
                    found += "\ufffd" * len(run)
            else:
                found += run.decode(errors="replace")
            run = b""
            found += "" if one is None else self.words[one - 256]
        return found


def test_text_that_later_tokens_change_is_followed_by_nothing() -> None:
    words = ["do", " n", "'t", " it"]

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[one] for one in ids).replace(" n't", "n't")

    text = TokenText(decode, lambda _: (), stop_ids=())
    assert [text.feed([one]) for one in range(4)] == ["do", " n", "", ""]


TOKENS = st.one_of(
    st.integers(256, 257).map(lambda one: [one]),
    st.sampled_from("\né😀a\ufffd").map(lambda one: list(one.encode())),
    st.integers(0, 255).map(lambda one: [one]),
)


@given(
    runs=st.lists(TOKENS, max_size=12),
    is_whole_run=st.booleans(),
    sizes=st.lists(st.integers(1, 4), min_size=48, max_size=48),
    is_stopped=st.booleans(),
)
@settings(max_examples=600, deadline=None)
@example(runs=[[10], [0xE3], [256]], is_whole_run=True, sizes=[1] * 48, is_stopped=False)
def test_text_of_growing_ids_never_changes(
    runs: list[list[int]], is_whole_run: bool, sizes: list[int], is_stopped: bool
) -> None:
    vocabulary = Bytes(is_whole_run=is_whole_run)
    ids = [one for run in runs for one in run]
    whole = vocabulary.decode(ids)
    text = TokenText(vocabulary.decode, vocabulary.encode, stop_ids=(258,))
    given_ids, at, found = [*ids, *([258] if is_stopped else [])], 0, ""
    for size in sizes:
        found += text.feed(given_ids[at : at + size])
        at += size
        assert whole.startswith(found)
    if ids and ids[-1] >= 256:
        assert found == whole
